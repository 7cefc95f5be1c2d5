"""Stored tokens scored under another role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.types import Batch, column


@torch.no_grad()
def reference_logprobs(batch: Batch, policy: Any) -> Tensor:
    """Log-probs of the stored decisions under `policy`, `Float "B T"`: same context and temperature, no gradient."""
    return policy.evaluate(batch).logprobs.detach()


@component("credit")
@dataclass
class ReferenceLogprobs:
    """Log-probs of the stored decisions under a role; nothing to do where the column is there already."""

    role: str = "reference"
    """Role that scores: the reference of a KL, a teacher, or the policy itself at the start of the update."""
    out: str = "ref_logprobs"
    """Step column that is written."""

    needs = ("mask", "tokens?", "author?", "temperature?")

    def __post_init__(self) -> None:
        column(self.out, "step")

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.out,)

    @property
    def uses(self) -> tuple[str, ...]:
        return (self.role,)

    def estimate(self, batch: Batch, ctx: Any) -> dict[str, Tensor]:
        return {} if self.out in batch else {self.out: reference_logprobs(batch, ctx.models[self.role])}
