"""Reward to go over decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gainstage.credit import STEP_REWARDS
from gainstage.registry import component
from gainstage.types import Batch
from gainstage.types.levels import place_on_last


@dataclass(frozen=True)
class Decisions:
    """The trained decisions of each row side by side, so that what lies between them (tool output,
    prompts, padding) neither cuts nor discounts.

    `place "B T"`: which decision a position belongs to: its own, the last one before it, or the first
    of the row where none is before it. `valid "B K"`: rows have different numbers of decisions.
    """

    mask: Tensor
    place: Tensor
    valid: Tensor

    @classmethod
    def of(cls, mask: Tensor) -> Decisions:
        mask = mask.bool()
        count = mask.sum(1)
        width = max(int(count.max()) if len(count) else 0, 1)
        place = (mask.cumsum(1) - 1).clamp(min=0)
        return cls(mask, place, torch.arange(width, device=mask.device) < count.unsqueeze(1))

    def pull(self, x: Tensor) -> Tensor:
        """The values at the decisions, `"B T" -> "B K"`."""
        return self.settle(torch.where(self.mask, x, torch.zeros_like(x)))

    def settle(self, x: Tensor) -> Tensor:
        """Sums of `x` over each decision and what follows it until the next one, `"B T" -> "B K"`.

        A reward on a masked position thus reaches the decision before it. NaN outside the mask is 0.
        """
        x = torch.where(self.mask, x, torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0))
        out = torch.zeros(self.valid.shape, dtype=x.dtype, device=x.device).scatter_add(1, self.place, x)
        return torch.where(self.valid, out, torch.zeros_like(out))

    def push(self, y: Tensor) -> Tensor:
        """Back to positions, `"B K" -> "B T"`, zeros off the mask."""
        return torch.where(self.mask, y.gather(1, self.place), torch.zeros((), dtype=y.dtype, device=y.device))


def discounted_return(r: Tensor, mask: Tensor, gamma: float = 1.0, ends: Tensor | None = None) -> Tensor:
    """`G_t = r_t + gamma G_next` over the decisions of each row, `Float "B T"`, zeros off the mask.

    Only decisions discount: tokens that a tool wrote between two of them do not, and do not cut.

    Args:
        r: rewards, `Float "B T"`; one that stands on a masked position counts for the decision before it.
        mask: trained decisions, `Bool "B T"`.
        gamma: discount per decision.
        ends: `Bool "B T"`, an episode is over after this decision; what follows belongs to another one.
    """
    decisions = Decisions.of(mask)
    rewards = decisions.settle(r)
    keep = torch.full_like(rewards, gamma)
    if ends is not None:
        keep = torch.where(decisions.settle(ends.to(rewards.dtype)) > 0, 0.0, keep)
    out = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for k in reversed(range(rewards.shape[1])):
        running = rewards[:, k] + keep[:, k] * running
        out[:, k] = running
    return decisions.push(out)


def whole(ends: Tensor, mask: Tensor) -> Tensor:
    """Decisions whose episode ends inside the row, `Bool "B T"`: only their reward to go is all there."""
    return mask.bool() & (ends & mask).flip(1).cummax(1).values.flip(1).bool()


@component("credit")
@dataclass
class Discounted:
    """Reward to go as the advantage: REINFORCE without a baseline of its own.

    It ends with the episode, also where a time limit cut it off (no value follows). A row that is a fragment of a
    longer stream leaves its last episode open: those decisions are not trained on, unless `whole` is false.
    """

    gamma: float = 1.0
    """Discount per decision; below 1 early tokens of long answers lose credit."""
    source: Literal["reward", "advantage"] = "reward"
    """`reward`: all rewards, each on its own decision; `advantage`: the row's advantage, put on the last decision."""

    whole: bool = True
    """Leave out decisions whose episode does not end inside the row; rows that are whole texts have none."""

    writes = ("advantages", "returns", "mask?")

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"discounted.gamma must lie in [0, 1], got {self.gamma}")

    @property
    def needs(self) -> tuple[str, ...]:
        return (*STEP_REWARDS, "terminated?", "cut?") if self.source == "reward" else ("advantage", "mask")

    def assign(self, batch: Batch) -> dict[str, Tensor]:
        mask = batch["mask"]
        rewards = batch.rewards_at("step") if self.source == "reward" else place_on_last(batch["advantage"], mask)
        if "terminated" not in batch:
            returns = discounted_return(rewards, mask, self.gamma)
            return {"advantages": returns, "returns": returns.clone()}
        ends = batch["terminated"] | batch["cut"] if "cut" in batch else batch["terminated"].bool()
        returns = discounted_return(rewards, mask, self.gamma, ends)
        kept = {"mask": whole(ends, mask)} if self.whole else {}
        return {"advantages": returns, "returns": returns.clone(), **kept}
