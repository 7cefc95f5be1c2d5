"""Answers that are numbers, compared exactly as fractions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from gainstage.ops.answers import several_numbers
from gainstage.registry import component
from gainstage.types import Trajectory

_PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER = re.compile(rf"[-+−]?(?:{_PLAIN})(?:[eE][-+]?[0-9]+)?(?:\s?/\s?(?:{_PLAIN}))?\s?%?")
_LONGEST, _LARGEST_EXPONENT = 400, 400


def parse_number(text: str) -> Fraction | None:
    """The exact value of a text that is one number, else None.

    Reads signs, decimals, thousands separators in groups of three, exponents, fractions (`3/4`), per cent, and
    a currency sign or full stop around it. A number of more than 400 digits or with an exponent beyond 400 is
    None, so that no text costs more than a moment.
    """
    text = text.strip().strip("$€£").strip().removesuffix(".").strip().replace("−", "-")
    if len(text) > _LONGEST or not _NUMBER.fullmatch(text):
        return None
    percent = text.endswith("%")
    top, _, bottom = text.removesuffix("%").replace(",", "").replace(" ", "").partition("/")
    mantissa, _, exponent = top.lower().partition("e")
    if exponent and abs(int(exponent)) > _LARGEST_EXPONENT:
        return None
    value = Fraction(mantissa) * Fraction(10) ** int(exponent or 0)
    if bottom:
        if Fraction(bottom) == 0:
            return None
        value /= Fraction(bottom)
    return value / 100 if percent else value


def last_number(text: str) -> Fraction | None:
    """The value of the last number that a text contains, None where there is none."""
    found = None
    for found in _NUMBER.finditer(text):  # noqa: B007
        pass
    if found is None:
        return None
    written, before = found.group(), text[: found.start()]
    if written[0] in "+-−" and before and before[-1].isalnum():
        written = written[1:]  # "7-3" ends with 3, not with -3
    return parse_number(written)


def within(
    p: Fraction | float,
    t: Fraction | float,
    tol: float = 0.0,
    relative: float = 0.0,
    steps: Sequence[tuple[float, float]] = (),
) -> float:
    """Credit in [0, 1] for `p` where `t` is right.

    1 within `tol` or within `relative` of |t|; else the credit of the smallest step `(relative error, credit)` that
    holds the error; else 0. Without any tolerance only equal values count. NaN and infinity are never right.

    Raises:
        ValueError: a negative tolerance.
    """
    if tol < 0 or relative < 0:
        raise ValueError(f"within: tolerances must not be negative, got {tol} and {relative}")
    if any(isinstance(x, float) and not math.isfinite(x) for x in (p, t)):
        return 0.0
    p, t = Fraction(p), Fraction(t)
    error, scale = abs(p - t), abs(t)
    if error <= max(_as_written(tol), _as_written(relative) * scale):
        return 1.0
    return next((credit for size, credit in sorted(steps) if scale and error <= _as_written(size) * scale), 0.0)


def _as_written(setting: float) -> Fraction:
    """0.3 as 3/10, not as the binary number below it."""
    return Fraction(str(setting))


@component("reward")
@dataclass
class Numbers:
    """Compares the last number of the answer with the problem's gold number; problems without one do not apply.

    A choice of different numbers at the end ("18 or 19") is no answer.
    """

    tol: float = 0.0
    """Absolute error that counts as right; 0 wants the exact value."""
    relative: float = 0.0
    """Error as a share of the gold value that counts as right."""
    steps: list[tuple[float, float]] = field(default_factory=list)
    """Partial credit: [relative error, credit] pairs."""
    after: str = ""
    """Only what follows the last occurrence of this marker is read; an answer without it is wrong."""

    level = "row"
    verifies = True
    requires = ("answer",)

    def __post_init__(self) -> None:
        within(0, 0, self.tol, self.relative)

    def judge(self, trajs: Sequence[Trajectory], ctx: Any) -> list[float | None]:
        return [self._judge(t) for t in trajs]

    def _judge(self, trajectory: Trajectory) -> float | None:
        if trajectory.problem is None or trajectory.problem.answer is None:
            return None
        gold = parse_number(str(trajectory.problem.answer))
        if gold is None:
            raise ValueError(
                f"reward numbers: the gold answer {trajectory.problem.answer!r} of {trajectory.problem.id} is no number"
            )
        text = trajectory.info["completion"]
        if self.after:
            _, marker, text = text.rpartition(self.after)
            if not marker:
                return 0.0
        answer = None if several_numbers(text) else last_number(text)
        return 0.0 if answer is None else within(answer, gold, self.tol, self.relative, self.steps)
