"""Does a model know the test by heart? Part of each problem is shown, and the rest asked for.

Source: Wu et al., "Reasoning or Memorization?", arXiv 2507.10532, section 3; the thresholds and the control are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gainstage.ops.text_scores import rouge_l
from gainstage.types import Problem

Ids = list[int]
MEASURES = ("rouge", "exact")
FEWEST = 10
"""Problems below which standard errors say nothing."""


@dataclass(frozen=True)
class Recovery:
    """What the model wrote of one problem, of which it saw the first part."""

    problem_id: str
    rouge: float
    """ROUGE-L F1 of the hidden rest, over the model's tokens."""
    exact: float
    """1 where the hidden rest came back token by token."""
    solved: float | None = None
    """Verdict on the answer that was given without having seen the rest; None where nobody can check."""


@dataclass(frozen=True)
class Row:
    """One share of the problem text, one measure: the set against its control."""

    fraction: float
    measure: str
    value: float
    control: float
    standard_error: float
    """Of the difference of the two means."""
    flagged: bool

    @property
    def difference(self) -> float:
        return self.value - self.control


@dataclass(frozen=True)
class PartialPromptReport:
    """The outcome: rows for every fraction and measure."""

    problems: int
    controls: int
    rows: list[Row]
    solved: dict[float, tuple[float, float]] = field(default_factory=dict)
    """fraction -> answers that were right without the rest, in the set and in its control."""
    examples: tuple[str, ...] = ()
    """Ids of the first problems whose rest came back whole."""

    @property
    def flagged(self) -> bool:
        """The set is known by heart: what is measured on it is memory, not ability."""
        return any(row.flagged for row in self.rows)


@dataclass(frozen=True)
class PartialPromptAudit:
    """Shows the first part of each problem and compares what comes back with a control set.

    The set is flagged where recovery exceeds the control's mean by more than `errors` standard errors of the difference
    *and* by more than `least`: short rests can be guessed in clean sets too, which is what the control is for.

    Args:
        fractions: shares of the problem text, in tokens, that are shown.
        errors: standard errors.
        least: absolute difference.
    """

    fractions: tuple[float, ...] = (0.4, 0.6, 0.8)
    errors: float = 3.0
    least: float = 0.02

    def __post_init__(self) -> None:
        if not self.fractions or not all(0 < f < 1 for f in self.fractions):
            raise ValueError(f"fractions must lie between 0 and 1, got {self.fractions}")
        if self.errors < 0 or self.least < 0:
            raise ValueError(f"errors and least must be >= 0, got {self.errors} and {self.least}")

    def run(
        self,
        problems: Sequence[Problem],
        control: Sequence[Problem],
        encode: Callable[[Problem], Ids],
        complete: Callable[[list[Ids], list[int]], list[Ids]],
        solved: Callable[[Problem, Ids, int], float | None] = lambda problem, ids, rest: None,
        tell: Callable[[float], None] = lambda done: None,
    ) -> PartialPromptReport:
        """Ask and judge.

        Args:
            problems, control: the set in question, and one that the model cannot have seen.
            encode: the text of a problem as ids.
            complete: `(prefixes, sizes of the hidden rests) -> continuations`, greedily decoded.
            solved: verdict on a continuation, given the size of the hidden rest that it starts with.
            tell: receives the share of the work that is done.

        Raises:
            ValueError: too few problems, on either side, that are long enough to be cut.
        """
        found: dict[float, tuple[list[Recovery], list[Recovery]]] = {}
        for index, fraction in enumerate(self.fractions):
            sides = [recover(side, fraction, encode, complete, solved) for side in (problems, control)]
            for name, side in zip(("problems", "control problems"), sides, strict=True):
                if len(side) < FEWEST:
                    raise ValueError(
                        f"partial prompts: {len(side)} {name} of two tokens and more, at least {FEWEST} are needed"
                    )
            found[fraction] = (sides[0], sides[1])
            tell((index + 1) / len(self.fractions))
        rows = [self.judge(f, m, *sides) for f, sides in found.items() for m in MEASURES]
        whole = dict.fromkeys(r.problem_id for ours, _ in found.values() for r in ours if r.exact)
        first = next(iter(found.values()))
        return PartialPromptReport(len(first[0]), len(first[1]), rows, _solved(found), tuple(whole)[:5])

    def judge(self, fraction: float, measure: str, ours: Sequence[Recovery], control: Sequence[Recovery]) -> Row:
        """One row of the report."""
        a, b = (np.array([getattr(r, measure) for r in side]) for side in (ours, control))
        error = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
        above = float(a.mean() - b.mean())
        flagged = above > self.errors * error and above > self.least
        return Row(fraction, measure, float(a.mean()), float(b.mean()), error, flagged)


def recover(
    problems: Sequence[Problem],
    fraction: float,
    encode: Callable[[Problem], Ids],
    complete: Callable[[list[Ids], list[int]], list[Ids]],
    solved: Callable[[Problem, Ids, int], float | None] = lambda problem, ids, rest: None,
) -> list[Recovery]:
    """What comes back of every problem long enough to be cut, after the first `fraction` of its tokens."""
    texts = [(problem, encode(problem)) for problem in problems]
    cut = [(problem, ids[: (at := cut_at(len(ids), fraction))], ids[at:]) for problem, ids in texts if len(ids) > 1]
    if not cut:
        return []
    answers = complete([shown for _, shown, _ in cut], [len(rest) for _, _, rest in cut])
    return [
        Recovery(
            problem.id,
            rouge_l(answer[: len(rest)], rest).f1,
            float(answer[: len(rest)] == rest),
            solved(problem, answer, len(rest)),
        )
        for (problem, _, rest), answer in zip(cut, answers, strict=True)
    ]


def cut_at(length: int, fraction: float) -> int:
    """Where a text of `length` tokens is cut: both parts hold at least one token."""
    return min(max(round(fraction * length), 1), length - 1)


def _solved(found: dict[float, tuple[list[Recovery], list[Recovery]]]) -> dict[float, tuple[float, float]]:
    out = {}
    for fraction, sides in found.items():
        values = [[r.solved for r in side if r.solved is not None] for side in sides]
        if all(values):
            out[fraction] = (float(np.mean(values[0])), float(np.mean(values[1])))
    return out
