"""One number per row or span onto its decisions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.types import Batch


def broadcast(values: Tensor, mask: Tensor, span: Tensor | None = None) -> Tensor:
    """`values "B"` on every decision of its row, or `values "B S"` by `span "B T"`; `Float "B T"`, zeros off the mask.

    Args:
        values: one number per row, or per span (turn, block, segment) of a row.
        mask: trained decisions, `Bool "B T"`.
        span: index of each position's span; negative for positions outside every span.
    """
    if span is None:
        return torch.where(mask, values.unsqueeze(1), torch.zeros((), dtype=values.dtype, device=values.device))
    spread = values.gather(1, span.long().clamp(0, values.shape[1] - 1))
    return torch.where(mask & (span >= 0), spread, torch.zeros_like(spread))


@component("credit")
@dataclass
class Broadcast:
    """The row's advantage on each of its decisions."""

    needs = ("advantage", "mask")
    writes = ("advantages",)

    def assign(self, batch: Batch) -> dict[str, Tensor]:
        return {"advantages": broadcast(batch["advantage"], batch["mask"])}
