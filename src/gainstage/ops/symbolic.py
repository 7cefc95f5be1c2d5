"""Symbolic equality of two parsed answers with SymPy. Runs in a worker process: any of it may hang.

Numbers are compared by evaluation to many digits at several points before anything is simplified, always relative to
their size, so that small values that differ are never called equal.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import sympy

from gainstage.ops import answers, extras
from gainstage.ops.latex import Node

DIGITS = 400
TOLERANCE = sympy.Float(10, DIGITS) ** -350
POINTS = 4
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)
_CONSTANTS = {"pi": sympy.pi, "infty": sympy.oo, "e": sympy.E, "i": sympy.I, "emptyset": sympy.EmptySet}


class Unknown(ValueError):
    """The tree has a node that is no expression."""


def warm_up() -> None:
    """Imports that should not count as checking."""
    if extras.available("math_verify"):
        import math_verify  # noqa: F401


def equal(answer: str, gold: str, trees: list[Node] | None) -> bool:
    """Whether two answers are equal; `trees` are their parses, None where one is outside the grammar."""
    if trees is None:
        return _by_math_verify(answer, gold)
    try:
        return _same(*trees)
    except Unknown:
        return _by_math_verify(answer, gold)


def _same(a: Node, b: Node) -> bool:
    a, b = answers.bare(a, b), answers.bare(b, a)
    try:
        known = answers.same(a, b)
    except answers.TooLarge:
        known = None
    if known is not None:
        return known
    if "pm" in (a[0], b[0]):
        return _any_order(_signs(a), _signs(b))
    kinds = (a[0], b[0])
    if "rel" in kinds or "chain" in kinds:
        return _relations(a, b)
    if kinds == ("seq", "seq"):
        if a[1] in ("", "\\{"):
            return _any_order(a[3], b[3])
        return all(_same(x, y) for x, y in zip(a[3], b[3], strict=True))
    if kinds == ("matrix", "matrix"):
        return all(_same(x, y) for r, s in zip(a[1], b[1], strict=True) for x, y in zip(r, s, strict=True))
    if kinds == ("union", "union"):
        return _any_order(answers.pieces(a), answers.pieces(b))
    if "matrix" in kinds or "seq" in kinds:
        matrix, tuple_ = (a, b) if a[0] == "matrix" else (b, a)
        return all(_same(x, y) for x, y in zip([c for row in matrix[1] for c in row], tuple_[3], strict=True))
    return _equal_values(expression(a), expression(b))


def _any_order(left: list[Node], right: list[Node]) -> bool:
    rest = list(right)
    for item in left:
        match = next((i for i, other in enumerate(rest) if _same(item, other)), None)
        if match is None:
            return False
        rest.pop(match)
    return not rest


def _signs(node: Node) -> list[Node]:
    """Both values of a plus-minus, or the members of a list."""
    if node[0] == "pm":
        return [["add", node[1], node[2]], ["add", node[1], ["neg", node[2]]]]
    return node[3] if node[0] == "seq" and node[1] in ("", "\\{") else [node]


def _relations(a: Node, b: Node) -> bool:
    """Equations that differ by a constant factor, inequalities by a positive one."""
    if a[0] != b[0] or len(a) != len(b):
        return False
    if a[0] == "chain":
        forward = [_turned(r) for r in b[1:]][::-1] if a[1][1] != b[1][1] else b[1:]
        return all(_relations(x, y) for x, y in zip(a[1:], forward, strict=True))
    a, b = _less(a), _less(b)
    if a[1] != b[1]:
        return False
    if a[1] == "in":
        return _same(a[2], b[2]) and _same(a[3], b[3])
    left, right = (expression(node[2]) - expression(node[3]) for node in (a, b))
    if _equal_values(left, right):
        return True
    factor = sympy.simplify(left / right) if not _equal_values(right, sympy.Integer(0)) else sympy.nan
    if not factor.is_number or not factor.is_finite or factor.is_zero:
        return False
    return True if a[1] in ("=", "!=") else bool(factor.is_positive)


def _turned(node: Node) -> Node:
    sign = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(node[1], node[1])
    return ["rel", sign, node[3], node[2]]


def _less(node: Node) -> Node:
    return _turned(node) if node[1] in (">", ">=") else node


def expression(node: Node) -> Any:
    """The tree as a SymPy expression.

    Raises:
        Unknown: a node that is no number-valued expression.
    """
    kind = node[0]
    if kind == "num":
        return sympy.Rational(node[1])
    if kind == "sym":
        return _CONSTANTS.get(node[1]) or sympy.Symbol(node[1])
    if kind == "unit":
        return expression(node[1]) * sympy.Symbol(f"unit {node[2]}", positive=True)
    if kind == "percent":
        return expression(node[1]) / 100
    if kind == "fn":
        return _call(node[1], [expression(part) for part in node[2:]])
    make = _OPERATIONS.get(kind)
    if make is None:
        raise Unknown(kind)
    return make(*(expression(part) for part in node[1:]))


_OPERATIONS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "pow": lambda a, b: a**b,
}


def _call(name: str, values: list[Any]) -> Any:
    if name == "log":
        return sympy.log(values[0], values[1] if len(values) > 1 else 10)
    names = {"ln": "log", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "abs": "Abs"}
    function = getattr(sympy, names.get(name, name), None)
    if function is None:
        raise Unknown(name)
    return function(*values[:1] if name != "binomial" else values)


def _equal_values(a: Any, b: Any) -> bool:
    """Numerically at several points first, then by algebra; where that leaves it open, equal digits decide."""
    if a == b:
        return True
    if a.has(sympy.oo, sympy.zoo, sympy.nan) or b.has(sympy.oo, sympy.zoo, sympy.nan):
        return False
    difference = sympy.expand(a - b)
    if difference.is_Rational:
        return difference == 0
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    seen = 0
    for point in range(POINTS if symbols else 1):
        values = {
            s: sympy.Rational(_PRIMES[(3 * i + point) % 16], _PRIMES[(i + 5 * point + 1) % 16] + 1)
            for i, s in enumerate(symbols)
        }
        verdict = _close(a.subs(values), b.subs(values))
        if verdict is False:
            return False
        seen += verdict is True
    if a.free_symbols != b.free_symbols or not seen:
        return sympy.simplify(difference) == 0
    return True


def _close(a: Any, b: Any) -> bool | None:
    """Whether two numbers agree to 350 digits; None where they cannot be evaluated."""
    x, y = sympy.N(a, DIGITS), sympy.N(b, DIGITS)
    if not (x.is_number and y.is_number and x.is_finite and y.is_finite):
        return None
    size = abs(x) + abs(y)
    return bool(size == 0 or abs(x - y) <= TOLERANCE * size)


def _by_math_verify(answer: str, gold: str) -> bool:
    """What the grammar does not know, by math-verify where it is installed: in both directions, and only where its
    parse kept every letter (it silently drops what it cannot read)."""
    if not extras.available("math_verify"):
        return False
    from math_verify import parse, verify

    parsed = [parse(f"${text.strip().strip('$')}$", parsing_timeout=None) for text in (answer, gold)]
    if not all(_complete(p, text) for p, text in zip(parsed, (answer, gold), strict=True)):
        return False
    left, right = parsed
    return bool(verify(left, right, timeout_seconds=None) and verify(right, left, timeout_seconds=None))


def _complete(parsed: list[Any], text: str) -> bool:
    if not parsed or isinstance(parsed[0], str):
        return False
    shown = reduce(lambda found, part: found + str(part), parsed[:1], "")
    letters = {c for c in text if c.isalpha()} if "\\" not in text else set()
    return letters <= set(shown) or not letters
