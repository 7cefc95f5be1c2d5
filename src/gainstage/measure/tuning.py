"""The same tuning budget for every arm: a search that can be repeated, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gainstage.ops.extras import require

STARTUP = 8
"""Trials that are drawn at random, and may therefore run side by side; later ones learn from what came before."""
Value = float | int | str | bool | None


@dataclass(frozen=True)
class Dimension:
    """A setting and the values it may take: `choices`, or from `low` to `high`, evenly in the logarithm with `log`."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False
    choices: tuple[Value, ...] = ()

    def __post_init__(self) -> None:
        if not self.choices and not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"tune {self.key}: low must be below high, got {self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"tune {self.key}: a logarithmic range needs a low above 0, got {self.low}")

    def holds(self, value: Any) -> bool:
        """Whether the search could come upon this value."""
        if self.choices:
            return any(value is choice or value == choice for choice in self.choices)
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def distribution(self) -> Any:
        """The same as Optuna spells it."""
        spaces = require("optuna", extra="tune").distributions
        if self.choices:
            return spaces.CategoricalDistribution(self.choices)
        if self.integer:
            return spaces.IntDistribution(int(self.low), int(self.high), log=self.log)
        return spaces.FloatDistribution(self.low, self.high, log=self.log)


class Search:
    """Optuna's TPE sampler with its seed: the same questions after the same answers, so that nothing needs a storage.

    Args:
        dimensions: what is searched.
        seed: of the sampler.
        start: the recipe's own values, the first trial; they count as a trial of the search where it could come
            upon them.

    Raises:
        MissingExtra: Optuna is not installed.

    Source: Bergstra et al., Algorithms for Hyper-Parameter Optimization (2011); Akiba et al., arXiv 1907.10902.
    """

    def __init__(self, dimensions: Sequence[Dimension], seed: int, start: Mapping[str, Any]) -> None:
        if not dimensions:
            raise ValueError("tune: there is nothing to search; name settings by keys=")
        self.optuna = require("optuna", extra="tune")
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        self.space = {dimension.key: dimension.distribution() for dimension in dimensions}
        self.start = dict(start)
        self.known = all(d.key in self.start and d.holds(self.start[d.key]) for d in dimensions)
        sampler = self.optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
        self.study = self.optuna.create_study(direction="maximize", sampler=sampler)
        self.open: dict[int, Any] = {}

    def batches(self, trials: int) -> Iterator[list[int]]:
        """Numbers of the trials in the order in which they may be asked: the random ones at once, then one by one."""
        first = min(trials, STARTUP)
        yield list(range(first))
        for number in range(first, trials):
            yield [number]

    def ask(self, number: int) -> dict[str, Value]:
        """Settings of a trial; those of trial 0 are none: the recipe as it is."""
        if number == 0:
            return {}
        self.open[number] = self.study.ask(self.space)
        return dict(self.open[number].params)

    def tell(self, number: int, score: float | None) -> None:
        """The score of a trial, higher is better; None where the run broke off."""
        bad = score is None or not math.isfinite(score)
        state = self.optuna.trial.TrialState.FAIL if bad else self.optuna.trial.TrialState.COMPLETE
        if number > 0:
            self.study.tell(self.open.pop(number), None if bad else score, state=state)
        elif self.known and not bad:
            params = {key: self.start[key] for key in self.space}
            self.study.add_trial(self.optuna.trial.create_trial(params=params, distributions=self.space, value=score))


@dataclass
class Tuned:
    """How an arm was tuned: every trial with its settings and score, the chosen one, and what all of it spent."""

    arm: str
    trials: list[dict[str, Any]] = field(default_factory=list)
    """`settings`, `score` (None: broke off) of each."""
    spent: dict[str, float] = field(default_factory=dict)
    """axis -> spending of all trials, evaluation left out as in a run's own."""

    @property
    def best(self) -> dict[str, Any]:
        """The trial with the highest score; of equal ones the first.

        Raises:
            ValueError: no trial came to its end.
        """
        done = [trial for trial in self.trials if trial["score"] is not None]
        if not done:
            raise ValueError(f"tune: every trial of {self.arm} broke off; narrow the search space")
        return max(done, key=lambda trial: trial["score"])

    def note(self, axis: str) -> str:
        """One line for the report: the tuning budget, what was chosen, what it cost."""
        from gainstage.measure.metrics import describe, short

        own = self.trials[0]["score"]
        chosen = ", ".join(f"{key}={_short(value)}" for key, value in self.best["settings"].items())
        broken = sum(trial["score"] is None for trial in self.trials)
        return (
            f"tuning of {self.arm}: {len(self.trials)} trials, {short(self.spent.get(axis, 0.0))} "
            f"{describe('budget/' + axis).label} on top of its runs; chosen: {chosen or 'the recipe as it is'} "
            f"({short(self.best['score'])}, as it is {short(own) if own is not None else 'broke off'})"
            + (f"; {broken} broke off" if broken else "")
        )


def _short(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
