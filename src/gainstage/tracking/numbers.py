"""The numbers of one iteration, and those that everyone looks at first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gainstage.types import Author, Stop, Trajectory


@dataclass
class Log:
    """Numbers of one iteration. Counters (`failures/..`, `dropped/..`) add, everything else is averaged."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def __call__(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + float(value)
        self.counts[name] = self.counts.get(name, 0) + 1

    def drain(self) -> dict[str, float]:
        out = {
            name: total if name.startswith(("failures/", "dropped/")) else total / self.counts[name]
            for name, total in self.sums.items()
        }
        self.sums, self.counts = {}, {}
        return out


def no_room(trajectory: Trajectory) -> bool:
    """Whether the prompt filled the context, so that there is no answer to learn from."""
    author = trajectory.columns.get("author")
    return trajectory.stop is Stop.CONTEXT and author is not None and not bool((author == int(Author.POLICY)).any())


def total_reward(trajectory: Trajectory) -> float:
    """What an answer or episode was paid in all, by rows, turns and steps; `Batch.rewards_at("row")` of one."""
    paid = (trajectory.columns.get(name) for name in ("reward", "turn_rewards", "rewards"))
    return sum(float(column.sum()) for column in paid if column is not None)


def describe(fresh: Sequence[Trajectory], log: Log) -> None:
    """The numbers that everyone looks at first."""
    trained = [t for t in fresh if not bool(t.columns.get("greedy", 0.0))]
    if not trained:
        log("dropped/empty_iterations", 1)
        return
    rewards = torch.tensor([total_reward(t) for t in trained])
    groups: dict[int, list[float]] = {}
    for trajectory, value in zip(trained, rewards.tolist(), strict=True):
        groups.setdefault(trajectory.group, []).append(value)
    log("reward/mean", float(rewards.mean()))
    log("reward/std", float(rewards.std(correction=0)))
    log("groups/zero_variance", sum(max(g) - min(g) < 1e-6 for g in groups.values()) / len(groups))
    log("groups/size", len(trained) / len(groups))
    log("length/mean", sum(int(t.columns["mask"].sum()) for t in trained) / len(trained))
    log("length/truncated", sum(t.stop in (Stop.LENGTH, Stop.CONTEXT, Stop.TURNS) for t in trained) / len(trained))
    for name in dict.fromkeys(name for t in trained for name in t.parts):
        there = [float(v) for t in trained if (v := t.parts.get(name)) is not None and math.isfinite(v)]
        if there:
            log(f"reward/part/{name}/mean", sum(there) / len(there))
