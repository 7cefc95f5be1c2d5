"""On-policy distillation: the teacher's log-ratio as the advantage of each sampled token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.types import Batch, column

column("teacher_logprobs", "step")


def teacher_advantage(teacher: Tensor, student: Tensor, mask: Tensor) -> Tensor:
    """`log pi_teacher - log pi_student` of the sampled tokens, `Float "B T"`, zeros off the mask.

    Its mean under the student is minus the reverse KL. `student` is the log-prob at sampling time.

    Raises:
        ValueError: a log-prob that is not finite at a real position; the message carries the count.
    """
    mask = mask.bool()
    for name, values in (("teacher", teacher), ("student", student)):
        if missing := int((mask & ~torch.isfinite(values)).sum()):
            raise ValueError(f"{name} log-probs are missing or infinite at {missing} of {int(mask.sum())} tokens")
    zero = torch.zeros_like(teacher)
    return torch.where(mask, teacher, zero) - torch.where(mask, student, zero)


def prefix_discrepancy_weight(a: Tensor, mask: Tensor, gamma: float = 0.5, eps: float = 1e-8) -> Tensor:
    """`1 + gamma (1 - D_t / D)` with D_t = sum of |a| before t, D the row's total, `Float "B T"`, zeros off the mask.

    (arXiv 2606.22600.) The first token has weight 1 + gamma, later ones less, the more the student has drifted.
    """
    size = torch.where(mask.bool(), a.abs(), torch.zeros_like(a))
    before = size.cumsum(1) - size
    total = size.sum(1, keepdim=True).clamp(min=eps)
    weight = 1 + gamma * (1 - before / total)
    return torch.where(mask.bool(), weight, torch.zeros_like(weight))


def position_mask(mask: Tensor, which: Literal["all", "first", "last"], share: float) -> Tensor:
    """The first or last `share` of each row's decisions, Bool "B T": decision number t of n with t <= share n,
    or t > (1 - share) n."""
    if which == "all":
        return mask.bool()
    number, count = mask.cumsum(1), mask.sum(1, keepdim=True)
    slack = 1e-9
    if which == "first":
        return mask.bool() & (number <= share * count + slack)
    return mask.bool() & (number > (1 - share) * count + slack)


@component("credit")
@dataclass
class TeacherLogratio:
    """Teacher minus student log-prob on each sampled token, weighted less after the student has drifted."""

    gamma: float = 0.0
    """0: plain on-policy distillation; higher trusts early tokens more (0.5 in IW-OPD) and enlarges the step."""
    clip: float = math.inf
    """Largest size of a token's advantage."""
    positions: Literal["all", "first", "last"] = "all"
    """Train on all decisions of an answer, or on its first or last `share` only (the others leave the mask)."""
    share: float = 0.3
    """Share of the decisions for `first` and `last`."""

    needs = ("teacher_logprobs", "behaviour_logprobs", "mask")

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise ValueError(f"teacher_logratio.gamma must not be negative, got {self.gamma}")
        if self.clip <= 0:
            raise ValueError(f"teacher_logratio.clip must be positive, got {self.clip}")
        if not 0 < self.share <= 1:
            raise ValueError(f"teacher_logratio.share must lie in (0, 1], got {self.share}")

    @property
    def writes(self) -> tuple[str, ...]:
        return ("advantages",) if self.positions == "all" else ("advantages", "mask")

    def assign(self, batch: Batch) -> dict[str, Tensor]:
        mask = batch["mask"]
        a = teacher_advantage(batch["teacher_logprobs"], batch["behaviour_logprobs"], mask)
        weighted = a.clamp(-self.clip, self.clip) * prefix_discrepancy_weight(a, mask, self.gamma)
        if self.positions == "all":
            return {"advantages": weighted}
        kept = position_mask(mask, self.positions, self.share)
        return {"advantages": torch.where(kept, weighted, torch.zeros_like(weighted)), "mask": kept}
