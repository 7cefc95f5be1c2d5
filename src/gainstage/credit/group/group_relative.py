"""The group baseline: a reward relative to the other answers to the same problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gainstage.credit import ROW_REWARDS
from gainstage.ops.groups import Groups, finite_or_absent, group_rows
from gainstage.registry import component
from gainstage.types import Batch

Center = Literal["mean", "leave_one_out", "greedy", "none"]
Scale = Literal["none", "sample", "population"]


def group_relative(
    r: Tensor,
    keys: Tensor,
    center: Center = "mean",
    scale: Scale = "sample",
    floor: float = 0.0,
    eps: float = 1e-6,
    greedy: Tensor | None = None,
) -> Tensor:
    """`(r - baseline) / (max(std, floor) + eps)` inside each group, `Float "N"`.

    GRPO (Shao et al., arXiv 2402.03300, 4.1.2) is `mean` with `sample`; Dr. GRPO (arXiv 2503.20783) `mean`
    with `none`; RLOO (arXiv 2402.14740, eq. 8) `leave_one_out` with `none`; ReMax (arXiv 2310.10505)
    `greedy` with `none`.

    A group whose rewards are equal within 1e-6, or with one member, has advantage exactly 0 wherever the
    group's own mean or std is used. Rows without a reward (NaN) and greedy rows take no part and get 0, as
    do the rows of a group that has lost its greedy row.

    Args:
        r: rewards, `Float "N"`.
        keys: group of each row, `Int "N"` or `"N k"`.
        center: what is subtracted; `greedy` is the reward of the group's greedy row.
        scale: divisor; std with ddof 1 (`sample`), ddof 0 (`population`) or 1 (`none`).
        floor: least std, in units of the reward.
        eps: added to the std, outside the root.
        greedy: Bool "N", the rows that were decoded greedily.

    Raises:
        ValueError: an infinite reward, an unknown setting, or `greedy` as center without greedy rows.
    """
    if scale not in ("none", "sample", "population"):
        raise ValueError(f"group_relative.scale must be none, sample or population, got {scale!r}")
    greedy = torch.zeros_like(r, dtype=torch.bool) if greedy is None else greedy.bool()
    member = finite_or_absent(r, "group_relative") & ~greedy
    groups = group_rows(keys, member)
    index = groups.index
    constant = groups.constant(r)[index]
    centred = r.double() - _baseline(r, groups, center, greedy)
    if center in ("mean", "leave_one_out") or scale != "none":
        centred = torch.where(constant, torch.zeros_like(centred), centred)
    if scale != "none":
        centred = centred / (groups.std(r, 1 if scale == "sample" else 0)[index].clamp(min=floor) + eps)
    return torch.where(member & ~torch.isnan(centred), centred, torch.zeros_like(centred)).to(torch.float32)


def _baseline(r: Tensor, groups: Groups, center: Center, greedy: Tensor) -> Tensor:
    """The subtracted value of each row, Float "N"; NaN where its group has none."""
    if center == "mean":
        return groups.mean(r)[groups.index]
    if center == "leave_one_out":
        others = (groups.size() - 1).clamp(min=1)[groups.index]
        return (groups.sum(r)[groups.index] - r.double()) / others
    if center == "greedy":
        if not bool(greedy.any()):
            raise ValueError(
                "group_relative.center is 'greedy' but no row was decoded greedily: set select.shuffle.greedy=true"
            )
        from_greedy = Groups(groups.index, greedy & ~torch.isnan(r), groups.count)
        mean, size = from_greedy.mean(r), from_greedy.size()
        return torch.where(size > 0, mean, torch.full_like(mean, float("nan")))[groups.index]
    if center == "none":
        return torch.zeros_like(r, dtype=torch.float64)
    raise ValueError(f"group_relative.center must be mean, leave_one_out, greedy or none, got {center!r}")


def key_columns(batch: Batch, keys: list[str]) -> Tensor:
    """The named row columns side by side, `Int "N k"`."""
    return torch.stack([batch[name].long() for name in keys], -1)


def greedy_rows(batch: Batch) -> Tensor | None:
    """Bool "N": rows that were decoded greedily as a baseline, None where there is no such column."""
    return batch["greedy"].bool() if "greedy" in batch else None


def group_counts(r: Tensor, keys: Tensor, greedy: Tensor | None = None) -> dict[str, float]:
    """How many groups carry no signal: `groups/single` (one answer left) and `groups/equal` (equal rewards)."""
    member = ~torch.isnan(r) if greedy is None else ~torch.isnan(r) & ~greedy.bool()
    groups = group_rows(keys, member)
    single = groups.size() == 1
    return {
        "groups/single": float(single.sum()),
        "groups/equal": float((groups.constant(r) & (groups.size() > 1)).sum()),
    }


@component("credit")
@dataclass
class GroupRelative:
    """Reward minus the group's baseline, over the group's std: one advantage a row."""

    center: Center = "mean"
    """What is subtracted. `leave_one_out` is unbiased; `greedy` needs a greedy answer; `none` subtracts 0."""
    scale: Scale = "sample"
    """What it is divided by. `none` keeps the size of reward differences, so near-solved problems weigh less."""
    floor: float = 0.0
    """Least std of a group, in units of the reward; higher damps groups whose rewards hardly differ."""
    eps: float = 1e-6
    """Added to the std."""
    keys: list[str] = field(default_factory=lambda: ["group"])
    """Row columns that make a group together; more keys make smaller groups."""

    writes = ("advantage",)

    def __post_init__(self) -> None:
        if self.floor < 0 or self.eps < 0:
            raise ValueError(f"group_relative: floor and eps must not be negative, got {self.floor} and {self.eps}")
        if not self.keys:
            raise ValueError("group_relative.keys must name at least one row column, for instance [group]")

    @property
    def needs(self) -> tuple[str, ...]:
        return (*ROW_REWARDS, *self.keys, "greedy" if self.center == "greedy" else "greedy?")

    def check_plan(self, samples: int) -> None:
        """Raises ValueError where groups of `samples` answers can never carry an advantage."""
        if samples < 2 and (self.center in ("mean", "leave_one_out") or self.scale != "none"):
            raise ValueError(
                f"group_relative compares answers to one problem, but select asks for samples={samples}: "
                "set samples to 2 or more, or credit.group_relative.center=none and scale=none"
            )

    def assign(self, batch: Batch) -> dict[str, Tensor]:
        keys = key_columns(batch, self.keys)
        r, greedy = batch.rewards_at("row"), greedy_rows(batch)
        return {"advantage": group_relative(r, keys, self.center, self.scale, self.floor, self.eps, greedy)}

    def statistics(self, batch: Batch) -> dict[str, float]:
        r, keys, greedy = batch.rewards_at("row"), key_columns(batch, self.keys), greedy_rows(batch)
        if self.center == "greedy" and greedy is not None:
            groups = group_rows(keys, greedy & ~torch.isnan(r))
            return {"groups/no_baseline": float((groups.size() == 0).sum())}
        return group_counts(r, keys, greedy)


@component("credit")
@dataclass
class PartsRelative:
    """Each reward part normalised inside its group over the rows where it applies, then summed with weights.

    Normalising before the sum keeps a part with a small spread from being drowned by one with a large
    spread (GDPO, arXiv 2601.05242).
    """

    weights: Mapping[str, float]
    """Part name -> weight of its normalised value."""
    center: Literal["mean", "leave_one_out"] = "mean"
    """As in `group_relative`."""
    scale: Scale = "sample"
    """As in `group_relative`."""
    eps: float = 1e-6
    """Added to the std."""

    writes = ("advantage",)

    def __post_init__(self) -> None:
        if not self.weights:
            raise ValueError("parts_relative.weights must name at least one reward part")

    @property
    def needs(self) -> tuple[str, ...]:
        return ("group", "greedy?", *(f"parts/{name}" for name in self.weights))

    def check_plan(self, samples: int) -> None:
        if samples < 2:
            raise ValueError(
                f"parts_relative compares answers to one problem: select's samples must be 2 or more, got {samples}"
            )

    def assign(self, batch: Batch) -> dict[str, Tensor]:
        total = torch.zeros(batch.rows, device=batch.device)
        for name, weight in self.weights.items():
            part = group_relative(
                batch[f"parts/{name}"], batch["group"], self.center, self.scale, eps=self.eps, greedy=greedy_rows(batch)
            )
            total = total + weight * part
        return {"advantage": total}
