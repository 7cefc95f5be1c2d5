"""Advantages to zero mean and unit std over the whole batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gainstage.ops.groups import TOLERANCE
from gainstage.ops.masked import masked_mean, masked_spread, masked_var
from gainstage.registry import component
from gainstage.types import Batch


def whiten(x: Tensor, mask: Tensor, ddof: int = 0, floor: float = 1e-8, weight: Tensor | None = None) -> Tensor:
    """`(x - mean) / sqrt(max(var, floor))` over all true positions of the batch, `"B T"`, zeros off the mask.

    Entries equal within 1e-6 become exactly 0, as does a single entry. The statistics are in float64.

    Args:
        x: `Float "B T"`.
        mask: `Bool "B T"`.
        ddof: 0 for the population variance, 1 for the sample variance.
        floor: least variance.
        weight: `Float "B T"`, weight of each position in mean and variance; ddof must be 0 then.
    """
    x, mask = x.double(), mask.bool()
    largest = torch.where(mask, x.abs(), torch.zeros_like(x)).max().clamp(min=1) if x.numel() else x.new_ones(())
    if bool(masked_spread(x, mask) <= TOLERANCE * largest):
        return torch.zeros_like(x, dtype=torch.float32)
    mean = masked_mean(x, mask, weight)
    var = masked_var(x, mask, ddof) if weight is None else masked_mean((x - mean) ** 2, mask, weight)
    whitened = (x - mean) / var.clamp(min=floor).sqrt()
    return torch.where(mask, whitened, torch.zeros_like(x)).to(torch.float32)


@component("credit")
@dataclass
class Whiten:
    """Advantages normalised over every decision of the rollout batch, before it is cut into minibatches."""

    ddof: int = 0
    """0: population variance (REINFORCE++); 1: sample variance."""
    floor: float = 1e-8
    """Least variance; a higher one damps batches in which the advantages hardly differ."""
    over: Literal["token", "sequence"] = "token"
    """`token`: long answers weigh more in mean and variance; `sequence`: every answer weighs the same."""

    needs = ("advantages", "mask")
    writes = ("advantages",)

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ValueError(f"whiten.ddof must be 0 or 1, got {self.ddof}")
        if self.over == "sequence" and self.ddof:
            raise ValueError("whiten.over='sequence' has weighted statistics: set ddof to 0")
        if self.floor <= 0:
            raise ValueError(f"whiten.floor must be positive, got {self.floor}")

    def assign(self, batch: Batch) -> dict[str, Tensor]:
        mask = batch["mask"]
        weight = None
        if self.over == "sequence":
            weight = (1 / mask.sum(1, keepdim=True).clamp(min=1).double()).expand(mask.shape)
        return {"advantages": whiten(batch["advantages"], mask, self.ddof, self.floor, weight)}
