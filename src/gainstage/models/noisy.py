"""Layers whose weights carry learned noise: exploration that a net drives by itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class NoisyLinear(nn.Module):
    """`y = (W + S_W * E) x + b + S_b * e` with factorised Gaussian noise, drawn anew at every call (arXiv 1706.10295).

    `E = f(e_out) f(e_in)^T` and `e = f(e_out)` with `f(x) = sign(x) sqrt |x|` (eq. 10 and 11): one draw serves all rows
    of a call. `S` is learned; the net itself turns the noise down where it does no good.

    Args:
        wide, out: widths of input and output.
        std: start of S, over the root of `wide`; 0.5 in the paper.
    """

    def __init__(self, wide: int, out: int, std: float = 0.5) -> None:
        super().__init__()
        if not std >= 0:
            raise ValueError(f"std must be at least 0, got {std}")
        bound = 1 / math.sqrt(wide)
        self.weight = nn.Parameter(torch.empty(out, wide).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(out).uniform_(-bound, bound))
        self.weight_std = nn.Parameter(torch.full((out, wide), std * bound))
        self.bias_std = nn.Parameter(torch.full((out,), std * bound))

    def forward(self, x: Tensor, noisy: bool = True) -> Tensor:
        """`x "N wide"` to `"N out"`; without `noisy` by the means alone."""
        mean = linear(x, self.weight, self.bias)
        if not noisy:
            return mean
        into, out = (_scaled(torch.randn(size, device=x.device)) for size in reversed(self.weight.shape))
        return mean + (linear(x * into, self.weight_std) + self.bias_std) * out


def _scaled(noise: Tensor) -> Tensor:
    return noise.sign() * noise.abs().sqrt()
