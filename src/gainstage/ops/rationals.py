"""Exact rational arithmetic on trees of mathematics, as far as arithmetic alone decides a value."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from gainstage.ops import latex
from gainstage.ops.latex import Node, NotMathematics

BITS = 200_000
"""Numbers of more bits are not computed exactly."""


class TooLarge(ArithmeticError):
    """A number that is not worth computing."""


def exact_value(text: str) -> Fraction | None:
    """The rational number that a text denotes, None for anything else (or one too large to compute)."""
    try:
        return fraction(latex.parse(text))
    except (NotMathematics, TooLarge):
        return None


def fraction(node: Node) -> Fraction | None:
    """The exact value of a tree, None where it is not rational by arithmetic alone.

    Raises:
        TooLarge: it has more than `BITS` bits.
    """
    kind = node[0]
    if kind == "num":
        return Fraction(node[1])
    if kind == "fn" and node[1] in ("factorial", "binomial", "abs"):
        values = [fraction(part) for part in node[2:]]
        return None if None in values else _function(node[1], [v for v in values if v is not None])
    if kind not in _ARITHMETIC:
        return None
    values = [fraction(part) for part in node[1:]]
    if any(value is None for value in values):
        return None
    return _ARITHMETIC[kind](*values)


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > BITS:
        raise TooLarge
    return value


def _divide(a: Fraction, b: Fraction) -> Fraction | None:
    return _bounded(a / b) if b else None


def _power(a: Fraction, b: Fraction) -> Fraction | None:
    if b.denominator != 1:
        return _root(a, b)
    if abs(a) in (0, 1):
        return None if a == 0 and b <= 0 else a ** int(b % 2 if b else 0) if a == -1 else Fraction(a != 0 or b == 0)
    size = max(a.numerator.bit_length(), a.denominator.bit_length())
    if abs(b) * size > BITS:
        raise TooLarge
    return a ** int(b)


def _root(a: Fraction, b: Fraction) -> Fraction | None:
    """`a ** b` for a perfect power, None for an irrational root."""
    if a <= 0 or b.denominator > 64:
        return None
    parts = [_integer_root(part, b.denominator) for part in (a.numerator, a.denominator)]
    if parts[0] is None or parts[1] is None:
        return None
    return _power(Fraction(parts[0], parts[1]), Fraction(b.numerator))


def _integer_root(value: int, order: int) -> int | None:
    low, high = 1, 1 << (value.bit_length() // order + 1)
    while low < high:
        middle = (low + high) // 2
        if middle**order < value:
            low = middle + 1
        else:
            high = middle
    return low if low**order == value else None


def _function(name: str, values: list[Fraction]) -> Fraction | None:
    import math

    if name == "abs":
        return abs(values[0])
    if any(v.denominator != 1 or v < 0 for v in values):
        return None
    if max(values) > 10_000:
        raise TooLarge
    return Fraction(math.factorial(int(values[0])) if name == "factorial" else math.comb(*map(int, values)))


_ARITHMETIC: dict[str, Callable[..., Fraction | None]] = {
    "add": lambda a, b: _bounded(a + b),
    "mul": lambda a, b: _bounded(a * b),
    "div": _divide,
    "neg": lambda a: -a,
    "pow": _power,
}
