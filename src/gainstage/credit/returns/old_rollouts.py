"""What experience of older policies counts: truncated importance weights, and rollouts that are too far away."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gainstage.ops.distributions import of_numbers
from gainstage.ops.masked import masked_mean
from gainstage.registry import component
from gainstage.types import Batch, column

column("importance", "step")  # constant part of a decision's weight: probability now over that when it was drawn


def truncated(logp: Tensor, behaviour: Tensor, cap: float) -> Tensor:
    """`min(exp(log pi_old - log mu), cap)`, the shape of both: the weight of data that mu drew."""
    return (logp - behaviour).clamp(max=math.log(cap)).exp()


@component("credit")
@dataclass
class OldRollouts:
    """Decides what of the store's older rollouts takes part, and how much it counts (column `importance`).

    Goes behind whatever needs whole streams (`gae`): afterwards `mask` holds only what `drawn` picked. The newest
    rollout has weight 1. A rollout whose policy is further than `max_kl` from the present one is left out.
    """

    c_max: float = 2.0
    """Largest weight; lower bounds variance at the price of bias towards the old policies."""
    max_kl: float = 0.1
    """Largest mean KL(now || then) in nats over a rollout's states; ten times a trust region's delta."""
    role: str = "policy"
    """Policy that learns."""

    needs = ("mask", "drawn", "mu", "age", "actions", "behaviour_logprobs")
    writes = ("mask", "importance")

    def __post_init__(self) -> None:
        if not (self.c_max >= 1 and self.max_kl > 0):
            raise ValueError(f"c_max must be at least 1 and max_kl positive, got {self.c_max} and {self.max_kl}")

    @property
    def uses(self) -> tuple[str, ...]:
        return (self.role,)

    def estimate(self, batch: Batch, ctx: Any) -> dict[str, Tensor]:
        mask, age = batch["mask"].bool(), batch["age"]
        now = ctx.models[self.role].distribution(batch)
        weight = truncated(now.log_prob(batch["actions"]), batch["behaviour_logprobs"], self.c_max)
        weight = torch.where((age == 0).unsqueeze(1), 1.0, weight)
        gone = now.kl(of_numbers(now, batch["mu"]))
        near = torch.ones_like(age, dtype=torch.bool)
        for number in range(1, int(age.max()) + 1):
            rows = age == number
            far = float(masked_mean(gone[rows], mask[rows])) > self.max_kl
            near &= ~(rows & far)
            ctx.log("importance/rollouts_dropped", float(far))
        kept = mask & batch["drawn"] & near.unsqueeze(1)
        used = weight[kept].double()
        ctx.log("importance/ess", float(used.sum().square() / used.square().sum() / len(used)) if len(used) else 0.0)
        ctx.log("importance/old", float((kept & (age > 0).unsqueeze(1)).sum()))
        return {"mask": kept, "importance": weight}
