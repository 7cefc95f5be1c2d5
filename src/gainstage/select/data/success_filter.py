"""Which sampled answers become training data: the filter of RAFT, ReST and filtered cloning."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.ops.groups import group_rows
from gainstage.registry import component
from gainstage.select.data.signals import is_greedy, signals
from gainstage.types import Trajectory

Keep = Literal["success", "above", "quantile", "top_fraction"]


def success_filter(
    r: Tensor,
    keys: Tensor,
    keep: Keep = "success",
    value: float = 1.0,
    max_pass_rate: float = 1.0,
    success_at: float = 1.0,
    per_problem: int | None = None,
    same: Sequence[Hashable] | None = None,
) -> Tensor:
    """Bool "N": true for the rows that are kept.

    Args:
        r: the signal, `Float "N"`; NaN is never kept.
        keys: problem of each row, `Int "N"`.
        keep: `success` from `success_at` on; `above` strictly above `value` (ReST, arXiv 2308.08998);
            `quantile` strictly above the `value` quantile of all rows (linear interpolation);
            `top_fraction` the best `value` of the rows, ties to the earlier row.
        value: threshold, quantile or fraction.
        max_pass_rate: problems solved more often than this give no rows.
        success_at: signal that counts as solved.
        per_problem: at most so many rows a problem, the best ones, ties to the earlier row.
        same: rows with equal entries and one problem are duplicates; the first is kept.

    Raises:
        ValueError: unknown rule, or a quantile or fraction outside [0, 1].
    """
    present = ~torch.isnan(r)
    kept = _rule(r, present, keep, value, success_at)
    if max_pass_rate < 1:
        groups = group_rows(keys, present)
        rate = groups.mean((r >= success_at - 1e-6).double())[groups.index]
        kept &= rate <= max_pass_rate + 1e-9
    if same is not None:
        seen: set[tuple[int, Hashable]] = set()
        for row in torch.nonzero(kept).flatten().tolist():
            label = (int(keys[row]), same[row])
            kept[row] = label not in seen
            seen.add(label)
    return kept if per_problem is None else _best(r, keys, kept, per_problem)


def _rule(r: Tensor, present: Tensor, keep: Keep, value: float, success_at: float) -> Tensor:
    if keep == "success":
        return present & (r >= success_at - 1e-6)
    if keep == "above":
        return present & (r > value)
    if keep not in ("quantile", "top_fraction"):
        raise ValueError(f"success_filter.keep must be success, above, quantile or top_fraction, got {keep!r}")
    if not 0 <= value <= 1:
        raise ValueError(f"success_filter.value must lie in [0, 1] for {keep}, got {value}")
    if not bool(present.any()):
        return present
    if keep == "quantile":
        return present & (r > torch.quantile(r[present], value))
    rows = torch.nonzero(present).flatten()
    best = rows[torch.argsort(r[rows], descending=True, stable=True)][: int(value * len(rows) + 1e-9)]
    return torch.zeros_like(present).index_fill(0, best, True)


def _best(r: Tensor, keys: Tensor, kept: Tensor, limit: int) -> Tensor:
    chosen = torch.zeros_like(kept)
    for key in keys[kept].unique():
        rows = torch.nonzero(kept & (keys == key)).flatten()
        chosen[rows[torch.argsort(r[rows], descending=True, stable=True)][:limit]] = True
    return chosen


@component("select")
@dataclass
class SuccessFilter:
    """Keeps the answers that are good enough to learn from; greedy baseline rows pass."""

    keep_rule: Keep = "success"
    """`success`: solved ones; `above`: signal above `value`; `quantile`, `top_fraction`: the best of the batch."""
    value: float = 1.0
    """Threshold, quantile or fraction; higher keeps fewer."""
    success_at: float = 1.0
    """Signal that counts as solved."""
    max_pass_rate: float = 1.0
    """Problems solved more often than this are left out; lower concentrates on hard ones."""
    per_problem: int | None = None
    """At most so many answers a problem, so that easy problems do not fill the batch."""
    dedupe: bool = False
    """Equal texts to one problem count once."""
    signal: str = ""
    """Reward part or row column that is looked at; empty: the task's verdict."""

    def __post_init__(self) -> None:
        if self.per_problem is not None and self.per_problem < 1:
            raise ValueError(f"success_filter.per_problem must be at least 1, got {self.per_problem}")
        if self.keep_rule in ("quantile", "top_fraction") and not 0 <= self.value <= 1:
            raise ValueError(f"success_filter.value must lie in [0, 1] for {self.keep_rule}, got {self.value}")

    def keep(self, trajs: Sequence[Trajectory], ctx: Any) -> list[Trajectory]:
        if not trajs:
            return []
        problems = {name: index for index, name in enumerate(dict.fromkeys(_problem(t) for t in trajs))}
        keys = torch.tensor([problems[_problem(t)] for t in trajs])
        texts = [t.info.get("completion", "") for t in trajs] if self.dedupe else None
        kept = success_filter(
            signals(trajs, self.signal), keys, self.keep_rule, self.value, self.max_pass_rate,
            self.success_at, self.per_problem, texts,
        )  # fmt: skip
        ctx.log("select/kept", float(kept.sum()))
        return [t for t, keep in zip(trajs, kept.tolist(), strict=True) if keep or is_greedy(t)]


def _problem(trajectory: Trajectory) -> str:
    return trajectory.problem.id if trajectory.problem is not None else f"group {trajectory.group}"
