"""Sums that run along time."""

from __future__ import annotations

import torch
from torch import Tensor


def forward_filter(
    x: Tensor, carry: Tensor | None, gamma: float, mask: Tensor | None = None, ends: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`F_t = gamma F_(t-1) + x_t` along time, copy by copy.

    Args:
        x: `Float "B T"`, a row a copy.
        carry: `"B"`, what the fragment before left; None = nothing.
        mask: `Bool "B T"`; a step where nothing was decided leaves the sum as it is.
        ends: `Bool "B T"`; after such a step the sum begins anew. None = it never does.

    Returns:
        All sums `"B T"`, and what goes on into the next fragment.
    """
    carry = x.new_zeros(len(x)) if carry is None else carry
    sums = torch.empty_like(x)
    for t in range(x.shape[1]):
        moved = gamma * carry + x[:, t]
        carry = moved if mask is None else torch.where(mask[:, t], moved, carry)
        sums[:, t] = carry
        if ends is not None:
            carry = torch.where(ends[:, t], 0.0, carry)
    return sums, carry
