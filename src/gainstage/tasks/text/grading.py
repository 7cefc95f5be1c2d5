"""How tasks with a gold answer check an output."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from gainstage.ops import answers
from gainstage.ops.workers import Failure
from gainstage.types import Verdict


@dataclass(frozen=True)
class Grader:
    """Extraction of the answer, and its comparison with the gold one."""

    extract: Callable[[str], str | None]
    same: Callable[[str, str], bool | Failure]

    def check(self, gold: str, output: str) -> Verdict:
        """1 or 0, the part `format` says whether there was an answer at all; no reward where the check failed."""
        answer = self.extract(output)
        if answer is None:
            return Verdict(0.0, {"format": 0.0}, "no answer found")
        verdict = self.same(answer, gold)
        if isinstance(verdict, Failure):
            return Verdict(None, {}, f"no verdict on {answer[:80]!r}: {verdict.kind}: {verdict.message}")
        return Verdict(float(verdict), {"format": 1.0}, "right" if verdict else f"wrong answer {answer[:80]!r}")


def _same_number(answer: str, gold: str) -> bool:
    left, right = _value(answer), _value(gold)
    return left is not None and left == right


def _value(text: str) -> Fraction | None:
    """The number that an answer is, or else the last one in it ("18 dollars")."""
    value = answers.exact_value(text)
    number = answers.single_number(text) if value is None else None
    return answers.exact_value(number) if number is not None else value


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().casefold()


def _math_answer(output: str) -> str | None:
    found = answers.extract(output)
    return found if found is not None or len(output.strip()) > 200 or "\\boxed" in output else _short(output)


def _whole_answer(output: str) -> str | None:
    return answers.extract(output, ("boxed", "hash", "whole"))


def _short(output: str) -> str | None:
    """A whole output that is nothing but an answer, such as a single expression or word."""
    text = output.strip()
    return text if text and "\n" not in text and len(text.split()) <= 3 else None


GRADERS: dict[str, Grader] = {
    "math": Grader(_math_answer, answers.math_equal),
    "number": Grader(answers.extract, _same_number),
    "exact": Grader(_whole_answer, lambda answer, gold: _plain(answer) == _plain(gold)),
    "contains": Grader(lambda text: text.strip() or None, lambda answer, gold: _plain(gold) in _plain(answer)),
}
"""Verifier name -> grader. `math` compares exactly and by algebra, `number` rational numbers only."""
