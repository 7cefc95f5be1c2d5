"""Bandits: arms with Gaussian payoffs, and arms whose payoff depends on when they were last played or left alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.tasks.control.batched_env import Simulation, State, TaskEnv, normal
from gainstage.types.spaces import Box, Discrete


class Arms(Simulation):
    """One choice, then the episode is over; nothing is seen."""

    def arms(self, count: int) -> None:
        self.max_steps = None  # one choice ends an episode
        self.observation_space = Box.of(0, 1, (1,))
        self.action_space = Discrete(count)


A = TypeVar("A", bound=Arms)


class ArmsEnv(TaskEnv[A]):
    """State: `nothing "B 1"`."""

    def start(self) -> State:
        return {"nothing": torch.zeros(self.starting, 1, device=self.device)}

    def observe(self, state: State) -> Tensor:
        return state["nothing"]


@component("task")
@dataclass
class Bandit(Arms):
    """One choice among arms with Gaussian payoffs, then the episode is over; nothing is seen.

    Args:
        means: of the arms.
        std: of every payoff.
    """

    name: ClassVar[str] = "bandit"

    means: tuple[float, ...] = (1.0, 0.8, 0.0)
    std: float = 1.0

    def __post_init__(self) -> None:
        if len(self.means) < 2 or self.std < 0:
            raise ValueError(f"means must name at least 2 arms and std be at least 0, got {self.means} and {self.std}")
        self.arms(len(self.means))

    def make(self, copies: int, device: torch.device | str = "cpu") -> BanditEnv:
        return BanditEnv(self, copies, device)


class BanditEnv(ArmsEnv[Bandit]):
    """Facts of a step: `success` (the best arm), `regret` (its mean less the chosen one's)."""

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        means = torch.tensor(self.task.means, device=self.device)
        mean = means[action]
        reward = mean + self.task.std * normal(self.draw(2)).squeeze(1)
        regret = means.max() - mean
        return state, reward, torch.ones_like(action, dtype=torch.bool), {"success": regret == 0, "regret": regret}


@component("task")
@dataclass
class SwitchBandit(Simulation):
    """Arms that recover while they rest and tire while they are played (arXiv 2306.00338): patience pays.

    An arm that has rested for d rounds pays `rested[d-1]` (the last entry from there on), one that was played in the
    last m rounds in a row pays `tired[m-1]` (likewise). Every arm starts as rested for one round. Playing none is the
    last action and pays nothing. Shown: for every arm its rest and its burst, as shares of the longest that count.

    Args:
        rested: one row an arm, payoffs after 1, 2, ... rounds of rest.
        tired: one row an arm, payoffs after 1, 2, ... rounds of play in a row.
        std: standard deviation of the noise.
        max_steps: an episode is cut off after so many (null = never).
    """

    name: ClassVar[str] = "switch_bandit"

    rested: tuple[tuple[float, ...], ...] = ((0.2, 0.6, 0.9, 1.0), (0.3, 0.5, 0.6, 0.6))
    tired: tuple[tuple[float, ...], ...] = ((0.1, 0.0, 0.0), (0.25, 0.2, 0.1))
    std: float = 0.0
    max_steps: int | None = 100

    def __post_init__(self) -> None:
        shapes = [{len(row) for row in table} for table in (self.rested, self.tired)]
        if len(self.rested) != len(self.tired) or any(len(shape) != 1 or 0 in shape for shape in shapes):
            raise ValueError("rested and tired need a row for every arm, all rows of a table of the same length")
        self.observation_space = Box.of(0, 1, (2 * len(self.rested),))
        self.action_space = Discrete(len(self.rested) + 1)

    def make(self, copies: int, device: torch.device | str = "cpu") -> SwitchBanditEnv:
        return SwitchBanditEnv(self, copies, device)


class SwitchBanditEnv(TaskEnv[SwitchBandit]):
    """State: `since "B N"`: rounds of rest as positive numbers, rounds of play in a row as negative ones."""

    def __init__(self, task: SwitchBandit, size: int, device: torch.device | str = "cpu") -> None:
        super().__init__(task, size, device)
        tired, rested = torch.tensor(task.tired, device=self.device), torch.tensor(task.rested, device=self.device)
        self.burst, self.rest = tired.shape[1], rested.shape[1]
        # column burst + since: -burst .. -1, an idle 0, 1 .. rest
        self.pays = torch.cat((tired.flip(1), torch.zeros(len(tired), 1, device=self.device), rested), dim=1)

    def start(self) -> State:
        return {"since": torch.ones(self.starting, len(self.pays), dtype=torch.int64, device=self.device)}

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        since = state["since"]
        played = torch.nn.functional.one_hot(action, len(self.pays) + 1)[:, :-1].bool()
        now = self.pays.gather(1, (since.T + self.burst)).T
        noise = self.task.std * normal(self.draw(2)).squeeze(1) if self.task.std > 0 else 0.0
        reward = (now * played).sum(1) + noise * played.any(1)
        on = torch.where(since > 0, -1, since - 1).clamp(min=-self.burst)
        off = torch.where(since < 0, 1, since + 1).clamp(max=self.rest)
        return {"since": torch.where(played, on, off)}, reward, torch.zeros_like(played[:, 0]), {"idle": ~played.any(1)}

    def observe(self, state: State) -> Tensor:
        since = state["since"]
        return torch.cat((since.clamp(min=0) / self.rest, (-since).clamp(min=0) / self.burst), dim=1)
