"""Arithmetic with worked digits: the default task of language-model runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from gainstage.registry import component
from gainstage.tasks.text.generated import GeneratedTask, digest, other
from gainstage.types.records import Problem

DIGITS = "0123456789"
OPERATORS = ("+", "-", "*")


@component("task")
@dataclass(frozen=True, kw_only=True)
class Arithmetic(GeneratedTask):
    """Sums, differences and products of several digits, in mixed levels.

    A worked answer writes the result's digits from the lowest to the highest, `=`, and the result:
    `345+678=` is answered by `3201=1023`. Only what follows `=` is judged.

    Args:
        ops: which of `+`, `-`, `*` occur; a product has a second factor of one digit and is the hardest.
        levels: digits of the operands, one level each, in equal shares; more digits are harder.
        question: wording of the prompt around the expression `{}`, for models that expect a sentence.
        impossible: share of problems whose every answer counts as wrong; they test samplers that look for signal.
        abstain: an answer that declines, for instance `?`: it counts as no attempt. Empty = there is none.
        unanswerable: share of problems that hide a digit of an operand (`3?5+678=`), so that only declining is right.
    """

    name: ClassVar[str] = "arithmetic"

    ops: tuple[str, ...] = ("+", "-")
    levels: tuple[int, ...] = (2, 3, 4)
    question: str = "{}="
    impossible: float = 0.0
    abstain: str = ""
    unanswerable: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ops or set(self.ops) - set(OPERATORS):
            raise ValueError(f"ops must be some of {', '.join(OPERATORS)}, got {self.ops}")
        if not self.levels or min(self.levels) < 1 or max(self.levels) > 30:
            raise ValueError(f"levels must be numbers of digits from 1 to 30, got {self.levels}")
        if "{}" not in self.question:
            raise ValueError(f"question must hold {{}} for the expression, got {self.question!r}")
        if not 0 <= self.impossible <= 1:
            raise ValueError(f"impossible must lie in [0, 1], got {self.impossible}")
        if "=" in self.abstain or any(x in DIGITS for x in self.abstain) or self.abstain != self.abstain.strip():
            raise ValueError(f"abstain must hold neither digits nor `=` nor blanks around it, got {self.abstain!r}")
        if not 0 <= self.unanswerable <= 1:
            raise ValueError(f"unanswerable must lie in [0, 1], got {self.unanswerable}")
        if self.unanswerable and not self.abstain:
            raise ValueError("unanswerable problems need an answer that declines: set abstain, for instance to '?'")

    @property
    def max_new(self) -> int:
        return max(2 * (max(self.levels) + 1), len(self.abstain)) + 2

    def draw(self, rng: random.Random, index: int) -> Problem:
        turn, which = divmod(index, len(self.ops))
        level, op = self.levels[turn % len(self.levels)], self.ops[which]
        low, high = (10 ** (level - 1) if level > 1 else 0), 10**level - 1
        a = rng.randint(low, high)
        b = rng.randint(2, 9) if op == "*" else rng.randint(low, high)
        if op == "-" and a < b:
            a, b = b, a
        result = {"+": a + b, "-": a - b, "*": a * b}[op]
        key = f"{max(a, b)}{op}{min(a, b)}"  # a+b and b+a always share a split
        hidden = _belongs(f"unanswerable {key}", self.unanswerable)
        hopeless = hidden or _belongs(f"impossible {key}", self.impossible)
        left = str(a)
        if hidden:
            at = rng.randrange(len(left))
            left = f"{left[:at]}?{left[at + 1 :]}"
            key = f"{left}{op}{b}"  # what is seen decides the split: different operands may look the same
        return self.problem(
            key,
            self.question.replace("{}", f"{left}{op}{b}"),
            None if hopeless else str(result),
            float(level),
            result=result,
            operands=[a, b],
            op=op,
            **({"answerable": False} if hidden else {}),
        )

    def abstains(self, output: str) -> bool | None:
        """Whether an output declines to answer; None where the task offers no way to."""
        return self.extract(output) == self.abstain if self.abstain else None

    def preferences(self, problem: Problem, rng: random.Random) -> tuple[str, str]:
        """A right worked solution and a wrong one; where there is no answer, declining and an attempt."""
        if problem.meta.get("answerable", True):
            return super().preferences(problem, rng)
        return self.abstain, self._worked(problem, rng, 0.0)

    def demonstrate(self, problem: Problem, rng: random.Random, noise: float = 0.0) -> str:
        """The worked digits. A carry or borrow is forgotten with probability `noise`, a digit misread with an eighth.

        Forgetting is what makes the error systematic: above one half, the likeliest answer is the wrong procedure.
        Where the task offers a way to decline, problems without answer are declined and the others attempted; with
        probability `noise` it is the other way round.
        """
        if self.abstain and problem.meta.get("answerable", True) == (rng.random() < noise):
            return self.abstain
        return self._worked(problem, rng, noise)

    def _worked(self, problem: Problem, rng: random.Random, noise: float) -> str:
        a, b = problem.meta["operands"]
        digits = written_digits(a, b, problem.meta["op"], lambda: rng.random() < noise)
        for i, digit in enumerate(digits):
            if rng.random() < noise / 8:
                top = i == len(digits) - 1 > 0
                digits[i] = int(other(rng, DIGITS[1:] if top else DIGITS, str(digit)))
        text = "".join(map(str, digits))
        return f"{text}={text[::-1]}"


def _belongs(content: str, share: float) -> bool:
    """Whether content is in a share of all problems, decided by its hash."""
    return int(digest(content)[:8], 16) / 2**32 < share


def written_digits(a: int, b: int, op: str, forgets: Callable[[], bool] = lambda: False) -> list[int]:
    """Digits of `a op b`, lowest first, by the written method; `forgets` says of each carry whether it is dropped.

    Args:
        a, b: operands; `a >= b` for a difference, `b < 10` for a product.
        op: `+`, `-` or `*`.
    """
    digits, carry = [], 0
    while a or carry or (b and op != "*"):
        (a, x), (b, y) = divmod(a, 10), (b, b) if op == "*" else divmod(b, 10)
        step = {"+": x + y, "-": x - y, "*": x * y}[op] + carry
        carry, digit = divmod(step, 10)
        digits.append(digit)
        if carry and forgets():
            carry = 0
    while len(digits) > 1 and digits[-1] == 0:
        digits.pop()
    return digits or [0]
