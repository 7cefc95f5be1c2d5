"""GOPO: advantages from the order of rewards alone (arXiv 2602.03876)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gainstage.credit import ROW_REWARDS
from gainstage.credit.group.group_relative import greedy_rows, group_counts
from gainstage.ops.groups import TOLERANCE, group_rows
from gainstage.ops.ranks import midrank
from gainstage.registry import component
from gainstage.types import Batch

Ties = Literal["average", "order"]


def ordinal(
    r: Tensor,
    keys: Tensor,
    low: float = -2.0,
    high: float = 2.0,
    ties: Ties = "average",
    scale: Literal["ladder", "unit"] = "ladder",
    greedy: Tensor | None = None,
) -> Tensor:
    """An evenly spaced ladder from `low` (worst of its group) to `high` (best), `Float "N"`.

    With `average`, rewards within 1e-6 share their mean place and a constant group has advantage 0. NaN is the
    lowest place. A group of one, or of NaN only, has advantage 0.

    Args:
        r: rewards, `Float "N"`.
        keys: group of each row.
        ties: `order` lets the earlier row win, which trains on noise where rewards repeat.
        scale: `unit` divides by the std of the ladder without ties, (high - low) / 2 sqrt((G + 1) / (3 (G - 1))).
        greedy: Bool "N", rows that take no part.

    Raises:
        ValueError: `order` with rewards of at most two values in the batch.
    """
    member = torch.ones_like(r, dtype=torch.bool) if greedy is None else ~greedy.bool()
    if ties == "order" and len(torch.unique(r[member & ~torch.isnan(r)])) <= 2:
        raise ValueError(
            "ordinal.ties='order' ranks equal rewards by position; with two reward values use ties='average'"
        )
    groups = group_rows(keys, member)
    out = torch.zeros_like(r, dtype=torch.float32)
    for group in range(groups.count):
        rows = torch.nonzero(member & (groups.index == group)).flatten()
        size = len(rows)
        if size < 2 or bool(torch.isnan(r[rows]).all()):
            continue
        place = (_place(r[rows], ties) - 1) / (size - 1)
        if ties == "average" and bool((place == place[0]).all()):
            continue
        ladder = low + (high - low) * place
        unit = (high - low) / 2 * math.sqrt((size + 1) / (3 * (size - 1)))
        out[rows] = (ladder / unit if scale == "unit" else ladder).to(torch.float32)
    return out


def _place(r: Tensor, ties: Ties) -> Tensor:
    """Ascending places 1..G of one group's rewards."""
    r = torch.nan_to_num(r.double(), nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    if ties == "order":
        best_first = torch.argsort(r, descending=True, stable=True)
        place = torch.empty_like(r)
        place[best_first] = torch.arange(len(r), 0, -1, dtype=r.dtype, device=r.device)
        return place
    value, order = r.sort()
    gap = value[1:] - value[:-1]
    near = torch.nan_to_num(gap, nan=0.0) <= TOLERANCE * torch.nan_to_num(value[1:].abs(), posinf=1.0).clamp(min=1)
    level = torch.cat((torch.zeros(1, device=r.device), (~near).cumsum(0)))
    place = torch.empty_like(r)
    place[order] = midrank(level).to(r.dtype)
    return place


@component("credit")
@dataclass
class Ordinal:
    """Advantages by rank inside the group: outliers and the scale of a reward model do not matter.

    A reward made at every read that is NaN has the lowest rank. An answer that a verifier or a reward function gave
    no finite number never comes here: the loop leaves it out and counts it under `failures/reward/`.
    """

    low: float = -2.0
    """Advantage of the worst answer."""
    high: float = 2.0
    """Advantage of the best answer; a wider ladder makes larger steps."""
    ties: Ties = "average"
    """Equal rewards share their place, or (`order`) the earlier answer wins."""
    scale: Literal["ladder", "unit"] = "ladder"
    """`unit`: divided by the ladder's std, which gives the step size of GRPO."""

    needs = (*ROW_REWARDS, "group", "greedy?")
    writes = ("advantage",)

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"ordinal: low must be below high, got {self.low} and {self.high}")

    def check_plan(self, samples: int) -> None:
        if samples < 2:
            raise ValueError(
                f"ordinal ranks the answers to one problem: select's samples must be 2 or more, got {samples}"
            )

    def assign(self, batch: Batch) -> dict[str, Tensor]:
        r = batch.rewards_at("row")
        return {"advantage": ordinal(r, batch["group"], self.low, self.high, self.ties, self.scale, greedy_rows(batch))}

    def statistics(self, batch: Batch) -> dict[str, float]:
        r = batch.rewards_at("row")
        groups = group_rows(batch["group"], ~torch.isnan(r))
        spread = groups.extreme(r, "amax") - groups.extreme(r, "amin")
        return {
            **group_counts(r, batch["group"], greedy_rows(batch)),
            "groups/small_spread": float(((spread > 0) & (spread < 0.01)).float().mean()),
            "ordinal/nan": float(torch.isnan(r).sum()),
        }
