"""Problems binned by how often they were solved lately, and drawn by the weight of their bin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.select.data.shuffle import requests_for, train_problems
from gainstage.select.data.signals import signals
from gainstage.types import Request, Trajectory


def difficulty_bins(pass_rate: Tensor, edges: Sequence[float]) -> Tensor:
    """Bin of each pass rate, `Float "N" -> Int "N"`: 0 = hardest, len(edges) = easiest.

    An edge belongs to the outer side: edges up to 1/2 to the harder bin, edges above to the easier one.
    So `[0, 1]` makes never / sometimes / always, `[0.25, 0.75]` makes <= 1/4, between, >= 3/4.

    Raises:
        ValueError: edges that do not ascend.
    """
    if list(edges) != sorted(set(edges)):
        raise ValueError(f"difficulty_bins.edges must ascend, got {list(edges)}")
    bins = torch.zeros_like(pass_rate, dtype=torch.long)
    for edge in edges:
        bins += (pass_rate > edge if edge <= 0.5 else pass_rate >= edge).long()
    return bins


def rollout_budget(p: float, n_max: int, n_min: int = 2, p0: float = 0.6) -> int:
    """Samples for a problem with success rate p: `n_max` up to p0, then falling linearly to `n_min` at p = 1.

    DART (arXiv 2509.23866).

    Raises:
        ValueError: n_min below 2 (no group statistics) or above n_max.
    """
    if not 2 <= n_min <= n_max:
        raise ValueError(f"rollout_budget: the least number of samples must lie in [2, {n_max}], got {n_min}")
    if p <= p0:
        return n_max
    return max(n_min, math.ceil(n_max * (1 - p) / (1 - p0) - 1e-9))


@component("select")
@dataclass
class DifficultyBins:
    """Draws a bin by weight, then a problem of it; problems not seen yet are a bin of their own.

    The pass rate of a problem is a running mean of its groups' success rates. An empty bin's share goes
    to the others. Within one call no problem comes twice until its bin is used up.
    """

    samples: int = 8
    """Answers to each problem (one group)."""
    edges: list[float] = field(default_factory=lambda: [0.25, 0.75])
    """Borders between bins of pass rate, ascending."""
    weights: list[float] = field(default_factory=lambda: [1.0, 2.0, 1.0])
    """Share of each bin, hardest first, one more than edges; 0 leaves a bin out."""
    unseen: float = 1.0
    """Share of the problems without a pass rate; higher explores faster."""
    memory: float = 0.5
    """Weight of the past in a pass rate; higher forgets more slowly."""
    min_samples: int | None = None
    """Fewer samples, down to this, for problems that are mostly solved; absent: always `samples`."""
    success_at: float = 1.0
    """Signal that counts as solved."""
    signal: str = ""
    """Reward part or row column that is looked at; empty: the task's verdict."""

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.edges) + 1:
            raise ValueError(
                f"difficulty_bins.weights needs one entry more than edges, got {len(self.weights)}, {len(self.edges)}"
            )
        if min(*self.weights, self.unseen) < 0 or sum(self.weights) + self.unseen <= 0:
            raise ValueError("difficulty_bins: weights and unseen must not be negative nor all 0")
        if not 0 <= self.memory < 1:
            raise ValueError(f"difficulty_bins.memory must lie in [0, 1), got {self.memory}")
        if self.samples < 1:
            raise ValueError(f"difficulty_bins.samples must be at least 1, got {self.samples}")
        difficulty_bins(torch.zeros(0), self.edges)
        if self.min_samples is not None:
            rollout_budget(0.0, self.samples, self.min_samples)
        self._rates: dict[str, float] = {}

    def next(self, n: int, ctx: Any, inner: Any = None) -> list[Request]:
        problems = train_problems(ctx)
        rates = torch.tensor([self._rates.get(problem.id, math.nan) for problem in problems], dtype=torch.float64)
        bins = torch.where(torch.isnan(rates), len(self.weights), difficulty_bins(rates.nan_to_num(0), self.edges))
        picks = draw_from_bins(bins, [*self.weights, self.unseen], n)
        return [request for i in picks for request in requests_for(problems[i], self._count(problems[i].id), ctx)]

    def _count(self, problem: str) -> int:
        if self.min_samples is None or problem not in self._rates:
            return self.samples
        return rollout_budget(self._rates[problem], self.samples, self.min_samples)

    def observe(self, fresh: Sequence[Trajectory], ctx: Any) -> None:
        solved: dict[str, list[float]] = {}
        for trajectory, value in zip(fresh, signals(fresh, self.signal).tolist(), strict=True):
            if trajectory.problem is not None and not math.isnan(value):
                solved.setdefault(trajectory.problem.id, []).append(float(value >= self.success_at - 1e-6))
        for problem, outcomes in solved.items():
            rate = sum(outcomes) / len(outcomes)
            old = self._rates.get(problem, rate)
            self._rates[problem] = self.memory * old + (1 - self.memory) * rate
        if self._rates:
            bins = difficulty_bins(torch.tensor(list(self._rates.values())), self.edges)
            for index, count in enumerate(torch.bincount(bins, minlength=len(self.weights)).tolist()):
                ctx.log(f"difficulty_bins/{index}", float(count))

    def state_dict(self) -> dict[str, Any]:
        return {"rates": dict(self._rates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rates = {str(key): float(value) for key, value in state["rates"].items()}


def draw_from_bins(bins: Tensor, weights: Sequence[float], n: int) -> list[int]:
    """`n` members: each time a bin by weight among those that are left, then a member at random.

    No member comes twice before every member with a positive weight has come once.
    """
    decks: list[list[int]] = []
    picks: list[int] = []
    shares = torch.tensor(weights, dtype=torch.float64)
    if not bool((shares[bins] > 0).any()):
        raise ValueError("difficulty_bins: every problem lies in a bin of weight 0; give one of them a weight")
    while len(picks) < n:
        open_bins = (
            torch.tensor([float(bool(deck)) for deck in decks], dtype=torch.float64) * shares if decks else shares * 0
        )
        if float(open_bins.sum()) == 0:
            decks = [_shuffled(torch.nonzero(bins == index).flatten()) for index in range(len(weights))]
            continue
        picks.append(decks[int(torch.multinomial(open_bins, 1))].pop())
    return picks


def _shuffled(members: Tensor) -> list[int]:
    return members[torch.randperm(len(members))].tolist()
