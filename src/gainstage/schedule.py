"""Which phase runs, how far it has come and when it ends: rounds of phases over iterations, epochs or budgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from gainstage.measure.budget import Budget, Meter
from gainstage.recipe import Recipe
from gainstage.registry import RecipeError

IDLE = 20
"""Iterations in a row without a charge on any limited axis, after which a run that only a budget ends is stopped."""


class NeverEnds(RuntimeError):
    """Nothing that a run spends brings it nearer to its end; the message names what it does spend."""


class Schedule:
    """The phases of a recipe in order, `rounds` times over. It sees the recipe and what was spent, never a tensor.

    Args:
        meter: of the run; budgets are read off it.
        epoch: iterations that one pass over the problems of the named phase takes.

    Raises:
        RecipeError: a phase, or the recipe, that would never end.
    """

    def __init__(self, recipe: Recipe, meter: Meter, epoch: Callable[[str], float]) -> None:
        self.recipe, self.meter, self.epoch = recipe, meter, epoch
        self.phases = {str(phase["name"]): phase for phase in recipe.phases} or {"main": {}}
        self.order = [(number, name) for number in range(recipe.rounds) for name in self.phases]
        self.budget = Budget(**recipe.budget)
        self.place, self.in_phase, self.idle = 0, 0, 0
        self.spent_before: dict[str, float] = {}
        self.spent_last: dict[str, float] = {}
        for place, (_, name) in enumerate(self.order):
            if self._length(place) is None and not self._limits(place) and not self.budget:
                where = f"phases.{name}" if recipe.phases else "the recipe"
                raise RecipeError(f"{where} never ends: set iterations, or a budget such as seconds=300")

    @property
    def name(self) -> str:
        """Phase that runs; after the end, the last one."""
        return self.order[min(self.place, len(self.order) - 1)][1]

    @property
    def over(self) -> bool:
        """All phases have run."""
        return self.place >= len(self.order)

    @property
    def finished(self) -> bool:
        """All phases have run, or the run's budget is spent."""
        return self.over or self.budget.exhausted(self.meter)

    @property
    def unreached(self) -> list[str]:
        """Phases that never ran because the run's budget was spent before them."""
        ran = {name for _, name in self.order[: self.place + 1]}
        return [name for name in self.phases if name not in ran] if self.finished else []

    @property
    def progress(self) -> float:
        """Share of the run that is done, in [0, 1]: by iterations or by the budget, whichever is further."""
        if self.over:
            return 1.0
        lengths = [self._length(place) for place in range(len(self.order))]
        known = [float(length) for length in lengths if length is not None]
        if len(known) == len(lengths) and not self._limits(self.place):
            share = (sum(known[: self.place]) + self.in_phase) / sum(known)
        else:
            share = (self.place + self._share()) / len(self.order)
        return min(max(share, self.budget.spent(self.meter)), 1.0)

    def advance(self) -> str | None:
        """Count an iteration; where it ends its phase, go to the next. Returns `round` or `phase` where one begins.

        Raises:
            NeverEnds: only a budget can end the phase, and `IDLE` iterations in a row spent nothing of it.
        """
        self.in_phase += 1
        self._watch()
        if self._share() < 1:
            return None
        before = self.order[self.place][0]
        self.place, self.in_phase, self.spent_before = self.place + 1, 0, self.meter.snapshot()
        if self.over:
            return None
        return "round" if self.order[self.place][0] != before else "phase"

    def _watch(self) -> None:
        """Count the iterations in a row that brought a phase without a last iteration no nearer to its end."""
        limits = [*self.budget.limits, *self._limits(self.place)]
        spent = {axis: self.meter.total(axis) for axis in limits}
        moved = self._length(self.place) is not None or spent != self.spent_last
        self.idle, self.spent_last = 0 if moved else self.idle + 1, spent
        if self.idle >= IDLE:
            charged = ", ".join(axis for axis, amount in self.meter.snapshot().items() if amount)
            raise NeverEnds(
                f"{self.idle} iterations in a row spent nothing of the budget ({', '.join(dict.fromkeys(limits))}), so "
                f"the run would never end; it spends {charged}: set a budget on one of these, or set iterations"
            )

    def _share(self) -> float:
        """Share of the present phase that is done, by its iterations or its budget, whichever is further."""
        length = self._length(self.place)
        shares = [self.in_phase / length] if length else []
        for axis, limit in self._limits(self.place).items():
            shares.append((self.meter.total(axis) - self.spent_before.get(axis, 0.0)) / limit)
        return min(max(shares, default=0.0), 1.0)

    def _limits(self, place: int) -> dict[str, float]:
        """The budget of a scheduled phase, counted from its start."""
        return Budget(**self.phases[self.order[place][1]].get("budget", {})).limits

    def _length(self, place: int) -> int | None:
        """Iterations of a scheduled phase; None where only a budget ends it."""
        number, name = self.order[place]
        spec = self.phases[name]
        for key in ("iterations", "epochs"):
            value = spec.get(key)
            if value is not None:
                value = value[min(number, len(value) - 1)] if isinstance(value, list) else value
                return int(value) if key == "iterations" else math.ceil(value * self.epoch(name))
        return None if spec.get("budget") else self.recipe.iterations

    def state_dict(self) -> dict[str, Any]:
        return {
            "place": self.place, "in_phase": self.in_phase, "spent_before": dict(self.spent_before),
            "idle": self.idle, "spent_last": dict(self.spent_last),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.place, self.in_phase = int(state["place"]), int(state["in_phase"])
        self.spent_before = {key: float(value) for key, value in state["spent_before"].items()}
        self.idle = int(state.get("idle", 0))
        self.spent_last = {key: float(value) for key, value in state.get("spent_last", {}).items()}
