"""A task of numbered problems, a context, and judged trajectories."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import torch

from gainstage.types import Problem, Stop, Trajectory


def problems_of(count: int, start: int = 0) -> list[Problem]:
    return [Problem(f"p{i}", f"question {i}") for i in range(start, start + count)]


def context(problems: list[Problem], seed: int = 0) -> Any:
    """What a selector sees: `ctx.logged` keeps what it logs."""
    numbers, logged = itertools.count(), {}
    task = SimpleNamespace(name="numbers", problems=lambda split: problems if split == "train" else [])
    return SimpleNamespace(
        task=task,
        seed=seed,
        new_group=lambda: next(numbers),
        log=lambda name, value: logged.__setitem__(name, logged.get(name, 0.0) + value),
        logged=logged,
    )


def trajectory(
    reward: float | None,
    group: int = 0,
    problem: Problem | None = None,
    sample: int = 0,
    text: str = "",
    greedy: bool = False,
    **parts: float | None,
) -> Trajectory:
    columns = {"mask": torch.ones(2, dtype=torch.bool), "greedy": torch.tensor(float(greedy))}
    if reward is not None:
        columns["reward"] = torch.tensor(reward)
    found = parts or {"task_verdict": reward}
    return Trajectory(problem, group, sample, group, "policy", 0, Stop.EOS, columns, dict(found), {"completion": text})
