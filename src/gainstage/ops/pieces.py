"""Episodes inside rows of steps that run through their ends."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pieces:
    """Episodes and parts of episodes in rows of steps.

    `number "B T"`: piece that a step belongs to, counted over all rows; `whole "P"`: it begins and ends in its row.
    """

    number: Tensor
    whole: Tensor

    @classmethod
    def of(cls, start: Tensor, ends: Tensor, mask: Tensor) -> Pieces:
        """From flags `Bool "B T"`: an episode begins with this step, ends with it, it is a decision at all."""
        rows = torch.arange(len(start), device=start.device).unsqueeze(1)
        place = start.long().cumsum(1) + rows * (start.shape[1] + 1)
        _, number = torch.unique(place, return_inverse=True)
        count = int(number.max()) + 1
        flags = [
            torch.zeros(count, dtype=torch.int64, device=start.device).index_add_(
                0, number.flatten(), flag.flatten().long()
            )
            for flag in (start, ends & mask)
        ]
        return cls(number, (flags[0] > 0) & (flags[1] > 0))

    def total(self, values: Tensor) -> Tensor:
        """Sums `"P"` of values `"B T"`."""
        out = torch.zeros(len(self.whole), dtype=torch.float64, device=values.device)
        return out.index_add_(0, self.number.flatten(), values.flatten().double())
