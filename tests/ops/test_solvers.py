"""Solves without a matrix: conjugate gradient, products with a Hessian."""

from __future__ import annotations

import pytest
import torch

from gainstage.ops.solvers import conjugate_gradient, flatten, hessian_product, shift


def test_conjugate_gradient_solves_in_as_many_steps_as_there_are_dimensions():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    matrix, b = root @ root.T + torch.eye(6), torch.randn(6, generator=generator, dtype=torch.float64)
    x = conjugate_gradient(lambda v: matrix @ v, b, iters=6, tol=0.0)
    assert torch.allclose(x, torch.linalg.solve(matrix, b), atol=1e-8)
    rough = conjugate_gradient(lambda v: matrix @ v, b, iters=2)
    assert float((matrix @ rough - b).norm()) < float(b.norm())


def test_a_singular_matrix_gives_the_solution_inside_its_range():
    p = torch.full((3,), 1 / 3)
    fisher = torch.diag(p) - torch.outer(p, p)
    g = torch.tensor([1.0, 0.0, -1.0]) / 3
    assert torch.allclose(conjugate_gradient(lambda v: fisher @ v, g), torch.tensor([1.0, 0.0, -1.0]), atol=1e-6)


def test_nothing_to_solve_and_negative_curvature_stop_at_once():
    zero = torch.zeros(3)
    assert torch.equal(conjugate_gradient(lambda v: v, zero), zero)
    assert torch.equal(conjugate_gradient(lambda v: -v, torch.ones(3)), zero)
    with pytest.raises(ValueError, match="iters"):
        conjugate_gradient(lambda v: v, zero, iters=0)


def test_hessian_products_equal_the_hessian():
    x = torch.tensor([0.3, -0.7], dtype=torch.float64, requires_grad=True)
    unused = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x**4).sum() + x[0] * x[1]

    gradient = torch.autograd.grad(f(x) + 0 * unused.sum(), [x, unused], create_graph=True)
    v = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    want = torch.autograd.functional.hessian(f, x.detach()) @ v[:2]
    got = hessian_product(gradient, [x, unused], damping=0.5)(v)
    assert torch.allclose(got, torch.cat((want, torch.zeros(1))) + 0.5 * v)


def test_shifting_there_and_back_is_exact():
    parts = [torch.randn(2, 3), torch.randn(4)]
    origin = flatten(parts)
    shift(parts, origin, torch.randn(10))
    assert not torch.equal(flatten(parts), origin)
    shift(parts, origin, torch.zeros(10))
    assert torch.equal(flatten(parts), origin)
