"""A look at distillation: how far the student is from its teacher at each place of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gainstage.ops.divergences import full_kl
from gainstage.registry import RecipeError, component
from gainstage.types import Batch


def by_position(values: Tensor, mask: Tensor, positions: int) -> tuple[Tensor, Tensor]:
    """Mean over rows of what stands at each decision, counted from 1, and how many rows have one.

    Args:
        values: `Float "N"`, one a decision of `mask "B T"`, row by row.
        positions: decisions that have a mean of their own; what comes later shares the last entry.

    Returns:
        means and counts, `Float "positions + 1"`; a mean without a decision is NaN.
    """
    number = (mask.cumsum(1) - 1)[mask].clamp(max=positions)
    count = torch.zeros(positions + 1, dtype=values.dtype, device=values.device)
    total = count.clone().index_add(0, number, values)
    count = count.index_add(0, number, torch.ones_like(values))
    return total / count.where(count > 0, torch.full_like(count, torch.nan)), count


@component("credit")
@dataclass
class ReverseKl:
    """Logs KL(policy || role) over the whole vocabulary at each position; writes nothing and trains nothing.

    If it grows with the position, late tokens stand behind prefixes that the teacher would not have written
    (arXiv 2606.22600). `kl/position/1` is the first decision, `kl/position/later` what comes after `positions`.
    """

    role: str = "teacher"
    """Role whose distribution the policy's is compared with; its weights have to be here."""
    student: str = "policy"
    """Role that wrote the answers."""
    rows: int = 16
    """Answers that are looked at: the first of the batch. Each costs a pass through both models."""
    positions: int = 12
    """Decisions that are logged one by one."""

    needs = ("tokens", "mask", "temperature?")
    writes = ()

    def __post_init__(self) -> None:
        for name in ("rows", "positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"reverse_kl.{name} must be at least 1, got {getattr(self, name)}")
        self.uses = (self.student, self.role)

    def start(self, ctx: Any) -> None:
        """Raises RecipeError where a role cannot say a whole distribution."""
        for role in self.uses:
            if not hasattr(ctx.models[role], "hidden"):
                raise RecipeError(f"credit.reverse_kl: the role {role!r} gives no distribution; load its weights here")

    @torch.no_grad()
    def estimate(self, batch: Batch, ctx: Any) -> dict[str, Tensor]:
        part = batch.take(list(range(min(self.rows, batch.rows))))
        if not bool(part["mask"].any()):
            return {}
        found = [ctx.models[role].evaluate(part, want=("distribution",)).extras["distribution"] for role in self.uses]
        kl = full_kl(*found)
        ctx.log("kl/full", float(kl.mean()))
        means, counts = by_position(kl, part["mask"], self.positions)
        for place, (mean, count) in enumerate(zip(means.tolist(), counts.tolist(), strict=True), 1):
            if count:
                ctx.log(f"kl/position/{place if place <= self.positions else 'later'}", mean)
        return {}
