"""Bonuses from counting: how often a state was seen, in its episode or ever."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx, column

column("visit_counts", "step")  # how often what an action led to had been seen by then, this time included

Scope = Literal["episode", "life"]
ALONE = 100
"""Episodes in which no state was met twice, after which the cells are said to be too small."""


def count_bonus(n: Tensor) -> Tensor:
    """`1 / sqrt(n)` (Strehl and Littman 2008; Bellemare et al., arXiv 1606.01868).

    Raises:
        ValueError: a count below 1: the visit that is paid for was not counted.
    """
    if bool((n < 1).any()):
        raise ValueError("count bonus: a count is 0; the visit has to be counted before it is paid for")
    return n.float().rsqrt()


def impact(phi: Tensor, after: Tensor, n: Tensor) -> Tensor:
    """`||phi(o') - phi(o)||_2 / sqrt(n)`, `"... D"` and `"..."` (RIDE, arXiv 2002.12292, equation 3).

    Args:
        phi, after: embeddings before and after the action, the true last one where the episode ended.
        n: how often the state after it was seen in its episode, this time included.

    Raises:
        ValueError: a count below 1.
        FloatingPointError: an embedding is not finite.
    """
    change = torch.linalg.vector_norm(after - phi, dim=-1)
    if not bool(torch.isfinite(change).all()):
        raise FloatingPointError("impact: an embedding is not finite; lower the lr of its nets")
    return change * count_bonus(n)


def keys_of(x: Tensor, cell: Tensor | None = None) -> Tensor:
    """States `"N *"` as one number each, `Int64 "N"`: the same for equal ones, and for those in one cell.

    Args:
        cell: size of a cell in each dimension; None = exactly equal states alone.
    """
    flat = x.reshape(len(x), -1)
    if cell is not None:
        parts = (flat.double() / cell.to(flat.device, torch.float64)).floor().long()
    elif flat.dtype.is_floating_point:
        parts = (flat.float() + 0.0).view(torch.int32).long()  # + 0.0: no negative zero
    else:
        parts = flat.long()
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (parts.shape[1],), generator=generator).to(parts.device) * 2 + 1
    return ((parts + 1) * factors).sum(1)


class Counter:
    """Counts by key, one table a copy, or one for all.

    Args:
        copies: environments.
        shared: all copies count into one table, which no episode empties.
    """

    def __init__(self, copies: int, shared: bool = False) -> None:
        self.copies, self.shared = copies, shared
        self.tables: list[dict[int, int]] = [{} for _ in range(1 if shared else copies)]

    def reset(self, which: Tensor | Sequence[bool]) -> None:
        """Empty the tables of the copies named, `Bool "B"`."""
        if not self.shared:
            for copy in torch.as_tensor(which).nonzero().flatten().tolist():
                self.tables[copy] = {}

    def update(self, keys: Tensor, which: Tensor | None = None) -> Tensor:
        """Count one visit of each copy (or of those named); its number so far, this one included, `Int64 "B"`."""
        taken = [True] * self.copies if which is None else which.tolist()
        out = []
        for copy, (key, counted) in enumerate(zip(keys.tolist(), taken, strict=True)):
            table = self.tables[0 if self.shared else copy]
            if counted:
                table[key] = table.get(key, 0) + 1
            out.append(table.get(key, 0))
        return torch.tensor(out)

    @property
    def distinct(self) -> int:
        return sum(len(table) for table in self.tables)

    def state_dict(self) -> dict[str, Any]:
        rows = [(t, key, n) for t, table in enumerate(self.tables) for key, n in table.items()]
        return {"rows": torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tables = [{} for _ in self.tables]
        for table, key, n in state["rows"].tolist():
            self.tables[table][key] = n


@dataclass
class Counting:
    """Counts what actions led to and writes it beside them, when experience comes in.

    Args:
        scope: `episode`, or `life` for all episodes of all copies together.
        key: column that tells states apart: `next_obs`, or a fact of the world as `info/place`.
        cell: size of a cell, one number or one a dimension; `exact`; `auto` = exact for whole numbers, else a quarter
            of the std of the first rollout.
    """

    scope: Scope = "episode"
    key: str = "next_obs"
    cell: float | list[float] | Literal["exact", "auto"] = "auto"

    level = "step"
    requires = ("simulator",)

    def __post_init__(self) -> None:
        for size in self.cell if isinstance(self.cell, list) else [self.cell]:
            if isinstance(size, float | int) and not size > 0:
                raise ValueError(f"cell must be positive, got {self.cell}")
        self.counter: Counter | None = None
        self.size: Tensor | None = None
        self.alone = 0

    @property
    def needs(self) -> tuple[str, ...]:
        return ("obs", "next_obs", "mask", "start")

    def observe(self, fresh: Batch, ctx: Ctx) -> None:
        """Write `visit_counts "B T"` into the fragment that was just collected, a row a copy.

        Raises:
            RecipeError: the world does not tell the column that is counted by.
        """
        if self.key not in fresh:
            raise RecipeError(
                f"counting by {self.key!r}: this task does not tell it; columns are {sorted(fresh.columns)}"
            )
        after, real, start = fresh[self.key], fresh["mask"].bool().cpu(), fresh["start"].bool().cpu()
        if self.counter is None:
            self.counter = Counter(fresh.rows, self.scope == "life")
            self.size = self._cells(after[fresh["mask"].bool()])
        keys = keys_of(after.flatten(0, 1), self.size).unflatten(0, after.shape[:2])
        first = keys_of(fresh["obs"][:, :-1].flatten(0, 1), self.size).unflatten(0, keys.shape) if self._sees else keys
        counts = torch.ones_like(keys, device="cpu")
        for t in range(keys.shape[1]):
            self.counter.reset(start[:, t])
            if self._sees and self.scope == "episode":
                self.counter.update(first[:, t], start[:, t])
            counts[:, t] = self.counter.update(keys[:, t], real[:, t]).clamp(min=1)
        fresh["visit_counts"] = counts.to(after.device)
        self._look(counts, start, ctx)

    @property
    def _sees(self) -> bool:
        """Whether an episode's first observation can be counted as well: facts are told after a step alone."""
        return self.key == "next_obs"

    def _cells(self, seen: Tensor) -> Tensor | None:
        flat = seen.reshape(len(seen), -1)
        if self.cell == "exact":
            return None
        if self.cell == "auto":
            whole = not flat.dtype.is_floating_point or bool((flat == flat.round()).all())
            if whole:
                return None
            std = flat.double().std(0, unbiased=False)
            return torch.where(std > 0, std / 4, 1.0)
        size = torch.tensor(self.cell, dtype=torch.float64).reshape(-1)
        if len(size) not in (1, flat.shape[1]):
            raise RecipeError(f"cell has {len(size)} sizes for {flat.shape[1]} dimensions of {self.key}")
        return size.expand(flat.shape[1]).clone()

    def _look(self, counts: Tensor, start: Tensor, ctx: Ctx) -> None:
        assert self.counter is not None
        ctx.log("bonus/count", float(counts.float().mean()))
        if self.scope == "life":
            ctx.log("bonus/distinct", float(self.counter.distinct))
            return
        self.alone = self.alone + int(start.sum()) if self.alone >= 0 and int(counts.max()) == 1 else -1
        if self.alone >= ALONE:
            self.alone = -1
            warnings.warn(
                f"episodic counts never exceed 1 in {ALONE} episodes, so they change nothing; give larger cells (cell) "
                "or another key", stacklevel=2,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        if self.counter is None:
            return {"copies": 0}
        return {"copies": self.counter.copies, "size": self.size, "alone": self.alone, **self.counter.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["copies"]:
            self.counter = Counter(int(state["copies"]), self.scope == "life")
            self.counter.load_state_dict(state)
            self.size, self.alone = state["size"], int(state["alone"])


@component("reward", "count_bonus")
@dataclass
class CountBonus(Counting):
    """Adds `1 / sqrt(n)` for what an action led to, n its visits so far; its `weight` says how much of it.

    Args:
        scope: `episode`, or `life` for all episodes of all copies together.
        key: column that tells states apart: `next_obs`, or a fact of the world as `info/place`.
        cell: size of a cell, one number or one a dimension; `exact`; `auto` = exact for whole numbers, else a quarter
            of the std of the first rollout.
        into: `rewards`, or `bonus` for a stream of its own.
    """

    scope: Scope = "life"
    into: Literal["rewards", "bonus"] = "rewards"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.column = self.into
        self.writes = ("visit_counts", self.into)

    def shape(self, batch: Batch, ctx: Ctx) -> Tensor:
        """`Float "B T"`."""
        bonus = torch.where(batch["mask"].bool(), count_bonus(batch["visit_counts"]), 0.0)
        ctx.log("bonus/mean", float(bonus.mean()))
        return bonus
