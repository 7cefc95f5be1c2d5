"""Arms with heavy tails: what is likeliest to pay very much is not what pays most on the average."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.tasks.control.bandits import Arms, ArmsEnv
from gainstage.tasks.control.batched_env import State


@component("task")
@dataclass
class ParetoBandit(Arms):
    """One choice among arms with Pareto payoffs, then the episode is over; nothing is seen.

    An arm pays at least its scale, and more than c with probability `(scale / c) ** tail`; its mean is
    `scale * tail / (tail - 1)`. By default the heavier an arm's tail, the lower its mean.

    Args:
        scales: least payoff of each arm.
        tails: of each arm, above 1; smaller = heavier, `.inf` = the scale itself, always.
    """

    name: ClassVar[str] = "pareto_bandit"

    scales: tuple[float, ...] = (1.0, 0.75, 0.4)
    tails: tuple[float, ...] = (40.0, 8.0, 2.1)

    def __post_init__(self) -> None:
        if len(self.scales) < 2 or len(self.scales) != len(self.tails):
            raise ValueError(f"scales and tails must name the same arms, at least 2, got {self.scales}, {self.tails}")
        if min(self.scales) <= 0 or min(self.tails) <= 1:
            raise ValueError(f"scales must be above 0 and tails above 1, got {self.scales} and {self.tails}")
        self.arms(len(self.scales))

    @property
    def means(self) -> list[float]:
        """Mean payoff of each arm."""
        return [
            s if math.isinf(t) else s * t / (t - 1) for s, t in zip(self.scales, self.tails, strict=True)
        ]  # fmt: skip

    def make(self, copies: int, device: torch.device | str = "cpu") -> ParetoBanditEnv:
        return ParetoBanditEnv(self, copies, device)


class ParetoBanditEnv(ArmsEnv[ParetoBandit]):
    """Facts of a step: `success` (the arm with the highest mean), `worth` (the arm's mean)."""

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        scales, tails, means = (
            torch.tensor(x, device=self.device) for x in (self.task.scales, self.task.tails, self.task.means)
        )
        chance = (1 - self.draw(1).squeeze(1)).clamp(min=2.0**-24)  # of a payoff at least as large
        reward = scales[action] * chance ** (-1 / tails[action])
        facts = {"success": means[action] == means.max(), "worth": means[action]}
        return state, reward, torch.ones_like(action, dtype=torch.bool), facts
