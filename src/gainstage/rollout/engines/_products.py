"""Linear layers laid out for skinny products: few rows against a whole weight, as decoding asks for.

Reading weights is what a step costs, and layout decides how fast they are read. Copies are made of float32 layers
on a CPU only, plain ones and those with low-rank adapters, which are added in; everything else (quantised layers,
other adapters, GPUs) is called as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Map = Callable[[Tensor], Tensor]

_COPY_BYTES = 1 << 30  # largest model that is copied
_COPY_STEPS = 12  # steps after which a copy has paid for itself
_PACK_FROM = 1 << 18  # numbers in a weight from which oneDNN's blocked layout beats a transposed copy
_PACK_ROWS = 32  # rows the blocked layout is chosen for; any number works


def copy_pays(model: nn.Module, steps: int) -> bool:
    """Whether the model's weights are laid out anew for a call of that many steps."""
    weights = list(model.parameters())
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    return (
        steps >= _COPY_STEPS
        and size <= _COPY_BYTES
        and all(w.device.type == "cpu" and w.dtype == torch.float32 for w in weights)
    )


def pair(x: Tensor, heads: int) -> Tensor:
    """`"* H*E"` with the halves of each of the heads interleaved, `x0, x_half, x1, x_half+1, ...`; 0 heads: as is."""
    return x.unflatten(-1, (heads, 2, -1)).transpose(-1, -2).flatten(-3) if heads else x


def dense(module: Any) -> tuple[Tensor, Tensor | None] | None:
    """Weight and bias of a layer that is one product, active low-rank adapters (Hu et al. 2021) added; else None."""
    if type(module) is nn.Linear:
        return module.weight, module.bias
    kind = type(module)
    if (kind.__module__, kind.__name__) != ("peft.tuners.lora.layer", "Linear"):
        return None
    base = module.get_base_layer()
    if type(base) is not nn.Linear or (module.merged and module.disable_adapters):
        return None
    weight = base.weight
    for name in () if module.merged or module.disable_adapters else module.active_adapters:
        if name not in module.lora_A:
            continue
        if name in module.lora_variant or module.lora_B[name].bias is not None:
            return None
        weight = weight + module.get_delta_weight(name)
    return weight, base.bias


def linear(module: Any, copy: bool, heads: int = 0) -> Map:
    """`x "N I" -> pair(module(x), heads) "N O"`."""
    found = dense(module) if copy else None
    if found is None:
        return (lambda x: pair(module(x), heads)) if heads else module
    weight, bias = pair(found[0].t(), heads), found[1]
    bias = None if bias is None else pair(bias, heads).contiguous()
    if weight.numel() < _PACK_FROM or not _packs():
        return _product(weight.contiguous(), bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.t().contiguous(), _PACK_ROWS)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def linears(modules: Sequence[Any], copy: bool, heads: Sequence[int]) -> Callable[[Tensor], Sequence[Tensor]]:
    """Layers that read the same input; small ones are one product. `heads` as in `linear`, one each."""
    found = [dense(module) for module in modules] if copy else []
    small = [each for each in found if each is not None and each[0].numel() < _PACK_FROM]
    if len(small) < len(modules):
        maps = [linear(module, copy, count) for module, count in zip(modules, heads, strict=True)]
        return lambda x: [each(x) for each in maps]
    weights = [pair(weight.t(), count) for (weight, _), count in zip(small, heads, strict=True)]
    biases = [w.new_zeros(w.shape[0]) if b is None else b for w, b in small]
    bias = torch.cat([pair(b, count) for b, count in zip(biases, heads, strict=True)])
    joint = _product(torch.cat(weights, 1).contiguous(), None if all(b is None for _, b in small) else bias)
    widths = [weight.shape[1] for weight in weights]
    return lambda x: joint(x).split(widths, 1)


def add_linear(module: Any, copy: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """`(residual, x) -> residual + module(x)`."""
    found = dense(module) if copy else None
    if found is not None and found[0].numel() < _PACK_FROM and found[1] is None:
        weight = found[0].t().contiguous()
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
