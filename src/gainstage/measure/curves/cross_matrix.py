"""Train on each of k settings and test on all; split a fixed cost between demonstrations and episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gainstage.measure.intervals import Estimate, mean_interval


@dataclass(frozen=True)
class CrossMatrix:
    """Success of a policy trained on the row's setting, tested on the column's, with its interval over seeds."""

    settings: tuple[str, ...]
    cells: dict[tuple[str, str], Estimate]
    """(trained on, tested on) -> mean over seeds."""

    def value(self, trained: str, tested: str) -> float:
        return self.cells[trained, tested].value

    def gap(self, trained: str, tested: str) -> float:
        """What training elsewhere costs: the diagonal of the tested setting minus the cell."""
        return self.value(tested, tested) - self.value(trained, tested)

    @property
    def transfer(self) -> float:
        """Mean over the cells off the diagonal."""
        return float(np.mean([self.value(a, b) for a in self.settings for b in self.settings if a != b]))

    def markdown(self) -> str:
        """The matrix, the gap to the column's diagonal in brackets."""
        head = ["trained on \\ tested on", *self.settings]
        lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * len(self.settings)]
        for a in self.settings:
            cells = [f"{self.value(a, b):.3f}" + (f" ({self.gap(a, b):+.3f})" if a != b else "") for b in self.settings]
            lines.append("| " + " | ".join([a, *cells]) + " |")
        return "\n".join(lines) + "\n"


def cross_matrix(scores: Mapping[tuple[str, str], Sequence[float]], level: float = 0.95) -> CrossMatrix:
    """A matrix out of scores by seed.

    Args:
        scores: (trained on, tested on) -> one score a seed.

    Raises:
        ValueError: fewer than two settings, or a pair that is missing.
    """
    settings = tuple(dict.fromkeys(name for pair in scores for name in pair))
    missing = [(a, b) for a in settings for b in settings if (a, b) not in scores]
    if len(settings) < 2 or missing:
        raise ValueError(f"cross_matrix: every pair of two settings and more is needed, missing are {missing[:3]}")
    return CrossMatrix(settings, {pair: mean_interval(list(row), level) for pair, row in scores.items()})


@dataclass(frozen=True)
class Split:
    """Demonstrations and episodes that a total cost buys."""

    share: float
    """Of the cost that goes into demonstrations."""
    demonstrations: int
    episodes: int


def budget_frontier(
    total: float, cost_demo: float = 10.0, cost_episode: float = 1.0, points: int | Sequence[float] = 5
) -> list[Split]:
    """Splits of a cost between demonstrations and episodes of RL.

    `n_demo = floor(share total / cost_demo)`, `n_episode = floor((total - n_demo cost_demo) / cost_episode)`.
    Source: arXiv 2510.01132, section on the split of a budget; the cost model is ours.

    Args:
        points: how many equal steps of the share from 0 to 1, or the shares themselves.

    Raises:
        ValueError: a cost that is not positive, shares outside [0, 1], or fewer than two points.
    """
    if min(total, cost_demo, cost_episode) <= 0:
        raise ValueError(f"budget_frontier: costs must be positive, got {total}, {cost_demo}, {cost_episode}")
    if isinstance(points, int):
        if points < 2:
            raise ValueError(f"budget_frontier: at least two points are needed, got {points}")
        shares = [i / (points - 1) for i in range(points)]
    else:
        shares = list(points)
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"budget_frontier: shares must lie in [0, 1], got {shares}")
    out = []
    for share in shares:
        demos = math.floor(share * total / cost_demo + 1e-9)
        out.append(Split(share, demos, math.floor((total - demos * cost_demo) / cost_episode + 1e-9)))
    return out


def best_split(splits: Sequence[Split], success: Sequence[Estimate]) -> Split:
    """The split with the highest lower confidence bound; without intervals there is none to choose.

    Raises:
        ValueError: different lengths, or an estimate without interval (one seed).
    """
    if len(splits) != len(success) or not splits:
        raise ValueError(f"best_split: {len(splits)} splits and {len(success)} estimates")
    if any(estimate.low is None for estimate in success):
        raise ValueError("best_split: every split needs an interval, so at least two seeds")
    return max(zip(splits, success, strict=True), key=lambda pair: pair[1].low or 0.0)[0]


def reward_density(rewards: Sequence[float], turns: int | None = None) -> float:
    """Share of turns that carry a reward other than 0."""
    count = len(rewards) if turns is None else turns
    if count < 1:
        raise ValueError("reward_density: there is no turn")
    return sum(bool(reward) for reward in rewards) / count
