"""Stored tokens scored under another role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gainstage.registry import RecipeError, component
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

    def start(self, ctx: Any) -> None:
        """Raises RecipeError where the role reads token ids in another way than the policy that writes them."""
        if "policy" not in ctx.models or self.role not in ctx.models:
            return
        policy, scorer = (getattr(ctx.models[role], "tokenizer", None) for role in ("policy", self.role))
        if policy is None or scorer is None or policy is scorer:
            return
        if policy.get_vocab() != scorer.get_vocab():
            raise RecipeError(
                f"credit.reference_logprobs: the role {self.role!r} has another tokenizer than the policy, so it "
                f"cannot score the policy's token ids; load a model of the same family under models.{self.role}"
            )

    def estimate(self, batch: Batch, ctx: Any) -> dict[str, Tensor]:
        return {} if self.out in batch else {self.out: reference_logprobs(batch, ctx.models[self.role])}
