"""Statistics of rows that share a key. Rows stay in their order; every result is per row or per group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 1e-6
"""Values within this of each other count as equal (times the largest magnitude where that exceeds 1),
so that float32 rounding never becomes an advantage."""


@dataclass(frozen=True)
class Groups:
    """`index "N"` names each row's group in 0..count-1; rows outside `member "N"` belong to none."""

    index: Tensor
    member: Tensor
    count: int

    def sum(self, x: Tensor) -> Tensor:
        """Sum per group, Float "G" in float64."""
        kept = torch.where(self.member, x.double(), torch.zeros_like(x, dtype=torch.float64))
        return torch.zeros(self.count, dtype=torch.float64, device=x.device).index_add(0, self.index, kept)

    def size(self) -> Tensor:
        """Members per group, Float "G"."""
        return self.sum(torch.ones_like(self.index))

    def mean(self, x: Tensor) -> Tensor:
        """Mean per group, Float "G"; 0 for a group without members."""
        return self.sum(x) / self.size().clamp(min=1)

    def std(self, x: Tensor, ddof: int = 1) -> Tensor:
        """Standard deviation per group, Float "G"; 0 where there are no more than `ddof` members."""
        centred = (
            torch.where(self.member, x.double(), torch.zeros_like(x, dtype=torch.float64)) - self.mean(x)[self.index]
        )
        free = self.size() - ddof
        return torch.where(free > 0, (self.sum(centred**2) / free.clamp(min=1)).sqrt(), torch.zeros_like(free))

    def extreme(self, x: Tensor, how: str) -> Tensor:
        """`amax` or `amin` per group, Float "G"; +-inf for a group without members."""
        start = float("-inf") if how == "amax" else float("inf")
        kept = torch.where(self.member, x.double(), torch.full_like(x, start, dtype=torch.float64))
        empty = torch.full((self.count,), start, dtype=torch.float64, device=x.device)
        return empty.scatter_reduce(0, self.index, kept, how)

    def constant(self, x: Tensor) -> Tensor:
        """Bool "G": all members are equal within `TOLERANCE`; true for one member or none."""
        high, low = self.extreme(x, "amax"), self.extreme(x, "amin")
        scale = torch.maximum(high.abs(), low.abs()).clamp(min=1)
        return (high - low <= TOLERANCE * scale) | (self.size() <= 1)


def group_rows(keys: Tensor, member: Tensor | None = None) -> Groups:
    """Group rows by `keys "N"` or `"N k"`; rows that are not `member "N"` take no part in any statistic."""
    _, index = torch.unique(keys if keys.dim() > 1 else keys.unsqueeze(1), dim=0, return_inverse=True)
    index = index.reshape(-1)
    member = torch.ones_like(index, dtype=torch.bool) if member is None else member.bool()
    return Groups(index, member, int(index.max()) + 1 if len(index) else 0)


def finite_or_absent(r: Tensor, where: str) -> Tensor:
    """Bool "N": the rows that carry a value. NaN means that none applies.

    Raises:
        ValueError: an infinite value; the message names the rows.
    """
    infinite = torch.isinf(r)
    if bool(infinite.any()):
        rows = torch.nonzero(infinite).flatten().tolist()
        raise ValueError(f"{where}: the reward of row {rows} is infinite; mend the reward function or clip it")
    return ~torch.isnan(r)
