"""Ranks and their normal scores."""

from __future__ import annotations

import torch
from torch import Tensor


def midrank(x: Tensor) -> Tensor:
    """Ascending ranks along the last axis, `x "... G" -> Float "... G"`: 1 = lowest, ties share their mean rank.

    NaN ranks below every number (NaN entries tie with each other).
    """
    x = torch.where(torch.isnan(x), torch.full_like(x, float("-inf")), x)
    below = (x.unsqueeze(-2) < x.unsqueeze(-1)).sum(-1)
    equal = (x.unsqueeze(-2) == x.unsqueeze(-1)).sum(-1)
    return below + (equal + 1) / 2


def normal_scores(rank: Tensor, size: int) -> Tensor:
    """Standard normal quantile of `(rank - 1/2) / size` for ranks 1..size, same shape as `rank`."""
    return torch.special.ndtri((rank.double() - 0.5) / size).to(torch.get_default_dtype())
