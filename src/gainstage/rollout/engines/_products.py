"""Linear layers laid out for skinny products: few rows against a whole weight, as decoding asks for.

Reading weights is what a step costs, and layout decides how fast they are read. Copies are made of plain float32
layers on a CPU only; everything else (adapters, quantised layers, GPUs) is called as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Map = Callable[[Tensor], Tensor]

COPY_BYTES = 1 << 30  # largest model that is copied
_PACK_FROM = 1 << 18  # numbers in a weight from which oneDNN's blocked layout beats a transposed copy
_PACK_ROWS = 32  # rows the blocked layout is chosen for; any number works


def copied(model: nn.Module) -> bool:
    """Whether the model's weights are laid out anew for a call."""
    weights = list(model.parameters())
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    return size <= COPY_BYTES and all(w.device.type == "cpu" and w.dtype == torch.float32 for w in weights)


def pair(x: Tensor, heads: int) -> Tensor:
    """`"* H*E"` with the halves of each of the heads interleaved, `x0, x_half, x1, x_half+1, ...`; 0 heads: as is."""
    return x.unflatten(-1, (heads, 2, -1)).transpose(-1, -2).flatten(-3) if heads else x


def linear(module: Any, copy: bool, heads: int = 0) -> Map:
    """`x "N I" -> pair(module(x), heads) "N O"`."""
    if not copy or type(module) is not nn.Linear:
        return (lambda x: pair(module(x), heads)) if heads else module
    weight = pair(module.weight.t(), heads)
    bias = None if module.bias is None else pair(module.bias, heads).contiguous()
    if weight.numel() < _PACK_FROM or not _packs():
        return _product(weight.contiguous(), bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.t().contiguous(), _PACK_ROWS)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def linears(modules: Sequence[Any], copy: bool, heads: Sequence[int]) -> Callable[[Tensor], Sequence[Tensor]]:
    """Layers that read the same input; small ones are one product. `heads` as in `linear`, one each."""
    if not copy or any(type(m) is not nn.Linear or m.weight.numel() >= _PACK_FROM for m in modules):
        maps = [linear(module, copy, count) for module, count in zip(modules, heads, strict=True)]
        return lambda x: [each(x) for each in maps]
    weight = torch.cat([pair(m.weight.t(), count) for m, count in zip(modules, heads, strict=True)], 1).contiguous()
    biases = [m.weight.new_zeros(m.out_features) if m.bias is None else m.bias for m in modules]
    bias = torch.cat([pair(b, count) for b, count in zip(biases, heads, strict=True)])
    joint = _product(weight, None if all(m.bias is None for m in modules) else bias)
    widths = [module.out_features for module in modules]
    return lambda x: joint(x).split(widths, 1)


def add_linear(module: Any, copy: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """`(residual, x) -> residual + module(x)`."""
    small = copy and type(module) is nn.Linear and module.weight.numel() < _PACK_FROM and module.bias is None
    if small:
        weight = module.weight.t().contiguous()
        return lambda residual, x: torch.addmm(residual, x, weight)
    product = linear(module, copy)
    return lambda residual, x: residual + product(x)


def _product(weight: Tensor, bias: Tensor | None) -> Map:
    return (lambda x: x @ weight) if bias is None else (lambda x: torch.addmm(bias, x, weight))


@functools.cache
def _packs() -> bool:
    """Whether this build of torch offers oneDNN's packed products, and they are right."""
    x, weight = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)
        found = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.allclose(found, F.linear(x, weight))
