"""Dynamic sampling: groups that cannot teach anything are dropped after the rollout (DAPO, arXiv 2503.14476)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gainstage.ops.groups import group_rows
from gainstage.registry import component
from gainstage.select.data.signals import group_ids, signals
from gainstage.types import Trajectory


def group_filter(
    r: Tensor, keys: Tensor, lo: float | None = None, hi: float | None = None, spread: bool = True
) -> Tensor:
    """Bool "N": true for the rows of groups that are kept.

    Args:
        r: the signal, `Float "N"`; NaN takes no part. A group without any signal is dropped.
        keys: group of each row, `Int "N"`.
        lo, hi: keep only groups whose mean lies strictly between them.
        spread: drop groups whose signal is the same for every member (within 1e-6).
    """
    groups = group_rows(keys, ~torch.isnan(r))
    mean = groups.mean(r)
    keep = groups.size() > 0
    if lo is not None:
        keep &= mean > lo
    if hi is not None:
        keep &= mean < hi
    if spread:
        keep &= ~groups.constant(r)
    return keep[groups.index]


@component("select")
@dataclass
class GroupFilter:
    """Keeps groups by accuracy band and spread; what is dropped stays paid for. Refilling is `plan.refill`'s."""

    lo: float | None = None
    """Keep groups whose mean signal is above this (0 drops the hopeless ones)."""
    hi: float | None = None
    """Keep groups whose mean signal is below this (1 drops the solved ones)."""
    spread: bool = True
    """Drop groups whose answers all have the same signal."""
    signal: str = ""
    """Reward part or row column that is looked at; empty: the task's verdict."""

    def __post_init__(self) -> None:
        if self.lo is not None and self.hi is not None and self.lo >= self.hi:
            raise ValueError(f"group_filter: lo must be below hi, got {self.lo} and {self.hi}")

    def keep(self, trajs: Sequence[Trajectory], ctx: Any) -> list[Trajectory]:
        if not trajs:
            return []
        groups = group_ids(trajs)
        kept = group_filter(signals(trajs, self.signal), groups, self.lo, self.hi, self.spread)
        ctx.log("dropped/groups", float(len(groups[~kept].unique())))
        return [t for t, keep in zip(trajs, kept.tolist(), strict=True) if keep]
