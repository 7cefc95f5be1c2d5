"""Advantages of several streams of rewards as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gainstage.credit.tokens.whiten import whiten
from gainstage.registry import component
from gainstage.types import Batch

Normalise = Literal["none", "each"]


def mix_advantages(advantages: Tensor, weights: Sequence[float], mask: Tensor, normalise: Normalise = "none") -> Tensor:
    """`sum_s w_s A_s`, `"S B T" -> "B T"`, zeros off the mask.

    Args:
        normalise: `each` brings every stream to zero mean and unit std first, so that weights compare whatever the
            streams are measured in.

    Raises:
        ValueError: not one weight a stream.
    """
    if len(weights) != len(advantages):
        raise ValueError(f"mix: {len(weights)} weights for {len(advantages)} streams of rewards")
    total = torch.zeros_like(advantages[0])
    for weight, stream in zip(weights, advantages):
        total = total + weight * (whiten(stream, mask) if normalise == "each" else stream)
    return torch.where(mask.bool(), total, torch.zeros_like(total))


@component("credit")
@dataclass
class Mix:
    """One advantage out of those of several streams of rewards, weighted (RND, arXiv 1810.12894: 2 and 1)."""

    weights: list[float]
    """One for each stream that `gae.streams` names; 0 leaves a stream out of the policy's gradient."""
    normalise: Normalise = "none"
    """`each`: bring every stream to zero mean and unit std first."""

    needs = ("stream_advantages", "mask")
    writes = ("advantages",)

    def __post_init__(self) -> None:
        if not self.weights or not any(self.weights):
            raise ValueError(f"mix.weights needs a number for each stream, one of them not 0; got {self.weights}")

    def assign(self, batch: Batch) -> dict[str, Tensor]:
        streams = batch["stream_advantages"].movedim(-1, 0)
        return {"advantages": mix_advantages(streams, self.weights, batch["mask"], self.normalise)}
