"""Countdown: reach a number with given operands; a solver that knows every solution, a checker of its own."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from gainstage.registry import component
from gainstage.tasks.text.generated import GeneratedTask
from gainstage.types.records import Problem, Verdict

LONGEST = 200
"""Characters of an expression that are looked at; more are wrong unread."""

Term = tuple[int, str, int]  # value, text, binding strength: 1 sum, 2 product, 3 number


class Malformed(ValueError):
    """A text outside the grammar: numbers, + - * /, parentheses."""


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """Value and numbers (in order) of an expression over `+ - * / ( )` and non-negative integers, read exactly.

    Raises:
        Malformed: anything outside that grammar, an unfinished expression or a division by zero.
    """
    if len(text) > LONGEST:
        raise Malformed(f"longer than {LONGEST} characters")
    tokens = re.findall(r"[0-9]+|\S", text)
    numbers: list[int] = []
    value, at = _sum(tokens, 0, numbers)
    if at != len(tokens):
        raise Malformed(f"unexpected {tokens[at]!r}")
    return value, numbers


def _sum(tokens: list[str], at: int, numbers: list[int]) -> tuple[Fraction, int]:
    value, at = _product(tokens, at, numbers)
    while at < len(tokens) and tokens[at] in "+-":
        right, after = _product(tokens, at + 1, numbers)
        value, at = (value + right if tokens[at] == "+" else value - right), after
    return value, at


def _product(tokens: list[str], at: int, numbers: list[int]) -> tuple[Fraction, int]:
    value, at = _unit(tokens, at, numbers)
    while at < len(tokens) and tokens[at] in "*/":
        right, after = _unit(tokens, at + 1, numbers)
        if tokens[at] == "/" and right == 0:
            raise Malformed("division by zero")
        value, at = (value * right if tokens[at] == "*" else value / right), after
    return value, at


def _unit(tokens: list[str], at: int, numbers: list[int]) -> tuple[Fraction, int]:
    if at >= len(tokens):
        raise Malformed("ends too early")
    if tokens[at] == "(":
        value, at = _sum(tokens, at + 1, numbers)
        if at >= len(tokens) or tokens[at] != ")":
            raise Malformed("unclosed parenthesis")
        return value, at + 1
    if not re.fullmatch(r"0|[1-9][0-9]{0,8}", tokens[at]):
        raise Malformed(f"unexpected {tokens[at][:20]!r}")
    numbers.append(int(tokens[at]))
    return Fraction(numbers[-1]), at + 1


def combine(left: Term, right: Term) -> Iterator[Term]:
    """The results of one operation on two terms that stay positive integers, larger term first."""
    if (left[0], left[1]) < (right[0], right[1]):
        left, right = right, left
    (a, x, p), (b, y, q) = left, right
    yield a + b, f"{x}+{y}", 1
    if a > b:
        yield a - b, f"{x}-{y if q > 1 else f'({y})'}", 1
    x, y2 = (x if p > 1 else f"({x})"), (y if q > 2 else f"({y})")
    yield a * b, f"{x}*{y if q > 1 else f'({y})'}", 2
    if a % b == 0:
        yield a // b, f"{x}/{y2}", 2


@functools.lru_cache(maxsize=1024)
def solve(numbers: tuple[int, ...], target: int) -> tuple[str, ...]:
    """All expressions that use every number once and give the target, as sorted distinct texts.

    Intermediate results stay positive integers; commuted twins are written once. The work grows
    like `n!^2`: 3 numbers take 0.1 ms, 4 some milliseconds, 6 are too many.
    """
    found: set[str] = set()
    seen: set[tuple[Term, ...]] = set()

    def merge(terms: tuple[Term, ...]) -> None:
        if terms in seen:
            return
        seen.add(terms)
        if len(terms) == 1:
            if terms[0][0] == target:
                found.add(terms[0][1])
            return
        for i in range(len(terms)):
            for j in range(i):
                rest = terms[:j] + terms[j + 1 : i] + terms[i + 1 :]
                for term in combine(terms[i], terms[j]):
                    merge(tuple(sorted((*rest, term))))

    merge(tuple(sorted((n, str(n), 3) for n in numbers)))
    return tuple(sorted(found))


def random_term(numbers: tuple[int, ...], rng: random.Random) -> Term:
    """A random expression over all numbers."""
    terms: list[Term] = [(n, str(n), 3) for n in numbers]
    while len(terms) > 1:
        left, right = (terms.pop(rng.randrange(len(terms))) for _ in range(2))
        terms.append(rng.choice(list(combine(left, right))))
    return terms[0]


@component("task")
@dataclass(frozen=True, kw_only=True)
class Countdown(GeneratedTask):
    """Reach a target with given numbers, each used once: `3,5,7>26:` is answered by `7*3+5`.

    The answer is an expression of numbers, `+ - * /` and parentheses; `=` and the target may follow it.

    Args:
        counts: how many numbers, one level each, in equal shares (2 to 5); more are much harder.
        top: numbers lie in 1..top; larger ones are harder.
        highest: targets lie in 1..highest.
    """

    name: ClassVar[str] = "countdown"
    capabilities: ClassVar[frozenset[str]] = frozenset({"check", "demonstrations", "preferences"})

    counts: tuple[int, ...] = (3,)
    top: int = 9
    highest: int = 99

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.counts or min(self.counts) < 2 or max(self.counts) > 5:
            raise ValueError(f"counts must lie in 2..5, got {self.counts}")
        if self.top < 1 or self.highest < 1:
            raise ValueError("top and highest must be >= 1")

    @property
    def max_new(self) -> int:
        count = max(self.counts)
        return count * len(str(self.top)) + count - 1 + 2 * (count - 2) + 1

    def draw(self, rng: random.Random, index: int) -> Problem:
        count = self.counts[index % len(self.counts)]
        target = 0
        while not 1 <= target <= self.highest:
            numbers = tuple(rng.randint(1, self.top) for _ in range(count))
            target = random_term(numbers, rng)[0]
        given = ",".join(map(str, numbers))
        key = f"{sorted(numbers)}>{target}"
        return self.problem(key, f"{given}>{target}:", None, float(count), numbers=numbers, target=target)

    def demonstrate(self, problem: Problem, rng: random.Random, noise: float = 0.0) -> str:
        numbers, target = tuple(sorted(problem.meta["numbers"])), problem.meta["target"]
        if rng.random() < noise:
            return random_term(numbers, rng)[1]
        return rng.choice(solve(numbers, target))

    def extract(self, output: str) -> str | None:
        """The expression, without an `=` and the number that may follow it."""
        expression, mark, tail = output[: LONGEST + 1].strip().partition("=")
        if "=" in tail or (mark and not tail.strip()):
            return None
        return expression.strip() or None

    def check(self, problem: Problem, output: str) -> Verdict:
        """1 where the expression uses every number once and gives the target; `format` is 1 where it can be read."""
        target = problem.meta["target"]
        try:
            text = self.extract(output)
            if text is None:
                raise Malformed("no single expression")
            value, numbers = evaluate(text)
        except Malformed as error:
            return Verdict(0.0, {"format": 0.0}, str(error))
        if sorted(numbers) != sorted(problem.meta["numbers"]):
            return Verdict(0.0, {"format": 1.0}, "does not use every given number exactly once")
        claimed = output.strip().partition("=")[2].strip()
        if claimed and claimed != str(target):
            return Verdict(0.0, {"format": 1.0}, f"claims {claimed[:20]!r}, the target is {target}")
        if value != target:
            return Verdict(0.0, {"format": 1.0}, f"gives {value}, the target is {target}")
        return Verdict(1.0, {"format": 1.0}, "right")
