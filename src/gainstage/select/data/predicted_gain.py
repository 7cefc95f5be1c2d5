"""What imitating the successes of this iteration is going to bring, told before it is done."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gainstage.ops.influence import influence_and_bias
from gainstage.ops.pieces import Pieces
from gainstage.registry import RecipeError, component
from gainstage.select.data.signals import is_greedy, signals
from gainstage.types import Author, Batch, Trajectory

Path = Sequence[tuple[Hashable, int]]
"""States that an episode went through and the action taken in each."""


@dataclass(frozen=True)
class Forecast:
    """Relative gains of the success rate that imitating the successes is to bring."""

    rate: float
    """Share of successes."""
    gain: float
    """Mean over successes of the sum of influences along them: exact up to the shift of visited states."""
    compounded: float
    """The same with influences multiplied up, as they are where each choice builds on the ones before it."""
    influence: float
    """Mean influence over the decisions of all episodes."""
    known: float
    """Share of those decisions whose state has successes enough."""
    noise: float
    """What chance would add to `influence`, were it not taken off: a smaller influence cannot be told from none."""


def forecast(paths: Sequence[Path], success: Sequence[bool]) -> Forecast:
    """Influence of every state that was seen often enough, and what it foretells (arXiv 2601.18175).

    Answers to one prompt share the states of their common prefix, so that a group of them gives every prefix its
    influence. States with fewer than 10 successes are left out.

    Args:
        paths: of each episode.
        success: of each episode.

    Raises:
        ValueError: no success, so that nothing can be foretold.
    """
    if not any(success):
        raise ValueError(f"no success in {len(paths)} episodes: the rate is below about {3 / max(1, len(paths)):.2g}")
    counts: dict[Hashable, dict[int, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for path, good in zip(paths, success, strict=True):
        for state, action in path:
            cell = counts[state][action]
            cell[0] += good
            cell[1] += 1
    table, chance = {}, {}
    for state, row in counts.items():
        won, seen = zip(*row.values(), strict=True)
        table[state], chance[state] = (float(found[0]) for found in influence_and_bias([won], [seen]))
    sums: list[float] = []
    products: list[float] = []
    every: list[float] = []
    noise: list[float] = []
    for path, good in zip(paths, success, strict=True):
        along = np.array([table[state] for state, _ in path])
        every.extend(along)
        noise.extend(chance[state] for state, _ in path)
        if good:
            sums.append(float(np.nansum(along)))
            products.append(float(np.prod(1 + np.nan_to_num(along))) - 1)
    told = np.array(every)
    return Forecast(
        rate=float(np.mean(success)), gain=float(np.mean(sums)), compounded=float(np.mean(products)),
        influence=float(np.nan_to_num(told).mean()), known=float(np.isfinite(told).mean()),
        noise=float(np.nan_to_num(noise).mean()),
    )  # fmt: skip


@component("select")
@dataclass
class PredictedGain:
    """Logs what imitating this iteration's successes will bring; the next iteration's rate says what it brought.

    `success/rate`, `success/predicted_gain` (relative, see `success/compounded_gain` where choices build on one
    another), `success/influence` and `success/known`. For answers to prompts that are asked many times, and for worlds
    of numbered states and choices. Changes nothing.

    Args:
        success_at: signal that counts as success.
        signal: reward part or row column that is looked at; empty: the task's verdict.
        tol: mean influence below which success conditioning has nothing to say, which is said once.
    """

    success_at: float = 1.0
    signal: str = ""
    tol: float = 1e-3

    def __post_init__(self) -> None:
        if self.tol < 0:
            raise ValueError(f"tol must be at least 0, got {self.tol}")
        self.warned = False

    def observe(self, fresh: Sequence[Trajectory] | Batch, ctx: Any) -> None:
        """Raises RecipeError: observations that are no numbers of states, or actions that are no choices."""
        if isinstance(fresh, Batch):
            paths, success = stepped(fresh)
        else:
            rows = [t for t in fresh if not is_greedy(t)]
            values = signals(rows, self.signal).tolist() if rows else []
            success = [value >= self.success_at - 1e-6 for value in values]
            paths = [list(prefixes(t)) for t in rows]
        if not paths:
            return
        ctx.log("success/rate", float(np.mean(success)))
        if not any(success):
            return
        told = forecast(paths, success)
        ctx.log("success/predicted_gain", told.gain)
        ctx.log("success/compounded_gain", told.compounded)
        ctx.log("success/influence", told.influence)
        ctx.log("success/noise", told.noise)
        ctx.log("success/known", told.known)
        if max(told.influence, told.noise) < self.tol and told.known > 0.5 and not self.warned:
            self.warned = True
            warnings.warn(
                f"select.predicted_gain: the mean influence is {told.influence:.2g}: which action is taken hardly "
                "moves the success rate, so success conditioning has nothing to say",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        return {"warned": self.warned}

    def load_state_dict(self, state: Any) -> None:
        self.warned = bool(state["warned"])


def prefixes(trajectory: Trajectory) -> Iterable[tuple[Hashable, int]]:
    """The policy's tokens of an answer, each with everything before it."""
    tokens = trajectory.columns["tokens"].tolist()
    author = trajectory.columns["author"].tolist()
    for place, (token, who) in enumerate(zip(tokens, author, strict=True)):
        if who == int(Author.POLICY):
            yield tuple(tokens[:place]), token


def stepped(batch: Batch) -> tuple[list[Path], list[bool]]:
    """Whole episodes of a fragment, and which of them succeeded."""
    if "info/success" not in batch or batch["obs"].dtype.is_floating_point or batch["actions"].dtype != torch.int64:
        raise RecipeError(
            "select.predicted_gain counts: it needs numbered states, choices for actions and the fact `success`"
        )
    mask = batch["mask"].bool()
    pieces = Pieces.of(batch["start"].bool(), batch["terminated"].bool() | batch["cut"].bool(), mask)
    good = pieces.total(batch["info/success"].double() * mask) > 0
    states, actions = batch["obs"][:, :-1], batch["actions"]
    paths: dict[int, list[tuple[Hashable, int]]] = defaultdict(list)
    for row, step in torch.nonzero(mask & pieces.whole[pieces.number]).tolist():
        paths[int(pieces.number[row, step])].append(
            (tuple(states[row, step].reshape(-1).tolist()), int(actions[row, step]))
        )
    return [*paths.values()], [bool(good[number]) for number in paths]
