"""Matrix-free solves on flat vectors: products with a matrix that is never written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
"""`A v "N"` of a vector `v "N"`."""


@torch.no_grad()
def conjugate_gradient(product: Product, b: Tensor, iters: int = 10, tol: float = 1e-10) -> Tensor:
    """`x "N"` with `A x = b` for a symmetric positive (semi-)definite A (Hestenes and Stiefel 1952), started at 0.

    Args:
        product: `v -> A v`.
        b: `"N"`; for a singular A it must lie in A's range, and `x` is then the solution without a part outside it.
        iters: at most so many products.
        tol: stops where the squared norm of the residual is below this.

    Raises:
        ValueError: iters below 1.
    """
    if iters < 1:
        raise ValueError(f"conjugate_gradient: iters must be at least 1, got {iters}")
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    size = residual @ residual
    for _ in range(iters):
        if float(size) <= tol:
            break
        image = product(direction)
        curve = direction @ image
        if not float(curve) > 0:  # not positive definite along this direction: what was found so far stands
            break
        step = size / curve
        x += step * direction
        residual -= step * image
        before, size = size, residual @ residual
        direction = residual + (size / before) * direction
    return x


def hessian_product(gradient: Sequence[Tensor], parameters: Sequence[Tensor], damping: float = 0.0) -> Product:
    """`v -> H v + damping v` for the Hessian of a scalar whose gradient was made with `create_graph=True`.

    Args:
        gradient: of the scalar, one tensor a parameter.
        parameters: the tensors themselves.
        damping: added to the diagonal.
    """
    flat = flatten(gradient)

    def product(v: Tensor) -> Tensor:
        with torch.enable_grad():
            rows = torch.autograd.grad(flat @ v, parameters, retain_graph=True, allow_unused=True)
        found = [torch.zeros_like(p) if row is None else row for p, row in zip(parameters, rows, strict=True)]
        return flatten(found) + damping * v

    return product


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors end to end as one vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


@torch.no_grad()
def shift(parameters: Sequence[Tensor], origin: Tensor, step: Tensor) -> None:
    """Set the parameters to `origin + step`, both flat."""
    moved, place = origin + step, 0
    for parameter in parameters:
        parameter.copy_(moved[place : place + parameter.numel()].view_as(parameter))
        place += parameter.numel()
