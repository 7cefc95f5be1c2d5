"""What selection looks at: one number a trajectory, by name."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gainstage.types import Trajectory

DEFAULTS = ("task_verdict", "success", "reward")


def signal(trajectory: Trajectory, name: str = "") -> float:
    """The named reward part or row column of a trajectory, NaN where it does not apply.

    Without a name: the task's verdict, else the column `success`, else the total reward. So a length
    penalty or another shaping term does not decide what counts as solved.

    Raises:
        ValueError: the trajectory has nothing of that name; the message lists what it has.
    """
    for key in (name,) if name else DEFAULTS:
        if key in trajectory.parts:
            value = trajectory.parts[key]
            return math.nan if value is None else float(value)
        if key in trajectory.columns and trajectory.columns[key].numel() == 1:
            return float(trajectory.columns[key])
    known = [*trajectory.parts, *(key for key, value in trajectory.columns.items() if value.numel() == 1)]
    raise ValueError(
        f"no signal {name or DEFAULTS!r}: set signal to one of {', '.join(sorted(known)) or '(no reward yet)'}"
    )


def signals(trajectories: Sequence[Trajectory], name: str = "") -> Tensor:
    """The signal of each trajectory, `Float "N"`; NaN for greedy baseline rows, which are no samples of the policy."""
    values = [math.nan if is_greedy(t) else signal(t, name) for t in trajectories]
    return torch.tensor(values, dtype=torch.float64)


def is_greedy(trajectory: Trajectory) -> bool:
    """Whether the trajectory was decoded greedily as a baseline."""
    return "greedy" in trajectory.columns and bool(trajectory.columns["greedy"])


def group_ids(trajectories: Sequence[Trajectory]) -> Tensor:
    """The group of each trajectory, `Int "N"`."""
    return torch.tensor([t.group for t in trajectories], dtype=torch.long)
