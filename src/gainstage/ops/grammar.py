"""The grammar of mathematical answers: tokens to a tree, by recursive descent."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

Node = list[Any]
DEEPEST = 60


class NotMathematics(ValueError):
    """The text is not of the grammar."""


FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "log", "exp",
}  # fmt: skip
RELATIONS = {
    "=": "=", "<": "<", ">": ">", "\\lt": "<", "\\gt": ">", "\\le": "<=", "\\leq": "<=", "\\ge": ">=", "\\geq": ">=",
    "\\leqslant": "<=", "\\geqslant": ">=", "\\ne": "!=", "\\neq": "!=", "\\in": "in", "<=": "<=", ">=": ">=",
}  # fmt: skip


class Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.place, self.depth = tokens, 0, 0

    def peek(self) -> str | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def take(self, *wanted: str) -> str:
        token = self.peek()
        if token is None or (wanted and token not in wanted):
            raise NotMathematics(f"expected {' or '.join(wanted) or 'more'}, found {token!r}")
        self.place += 1
        return token

    def bare_list(self) -> Node:
        items = self.items()
        return items[0] if len(items) == 1 else ["seq", "", "", items]

    def items(self) -> list[Node]:
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotMathematics("nested too deeply")
        items = [self.relation()]
        while self.peek() in (",", ";", '"and"', '"or"'):
            if self.take() == "," and self.peek() in ('"and"', '"or"'):
                self.take()
            items.append(self.relation())
        self.depth -= 1
        return items

    def relation(self) -> Node:
        sides, signs = [self.union()], []
        while (token := self.peek()) in RELATIONS:
            self.take()
            signs.append(RELATIONS[str(token)])
            sides.append(self.union())
        relations = [["rel", sign, *pair] for sign, *pair in zip(signs, sides, sides[1:], strict=False)]
        if not relations:
            return sides[0]
        return relations[0] if len(relations) == 1 else ["chain", *relations]

    def union(self) -> Node:
        node = self.sum()
        while self.peek() == "\\cup":
            self.take()
            node = ["union", node, self.sum()]
        return node

    def sum(self) -> Node:
        node = self.product()
        while (sign := self.peek()) in ("+", "-", "\\pm", "\\mp"):
            self.take()
            right = self.product()
            node = {"+": ["add", node, right], "-": ["add", node, ["neg", right]]}.get(str(sign), ["pm", node, right])
        return node

    def product(self) -> Node:
        node = self.signed()
        while (token := self.peek()) is not None:
            if token in ("*", "\\cdot", "\\times"):
                self.take()
                node = ["mul", node, self.signed()]
            elif token in ("/", "\\div", ":"):
                self.take()
                node = ["div" if token != ":" else "ratio", node, self.signed()]
            elif self.begins_factor(token):
                node = self.juxtaposed(node)
            else:
                return node
        return node

    def juxtaposed(self, node: Node) -> Node:
        """Something directly behind a factor: a mixed number, a unit, or a product without a sign."""
        token = str(self.peek())
        if token[0].isdigit() or token[0] == ".":
            raise NotMathematics("two numbers side by side")
        if token.startswith('"'):
            return self.unit(node)
        right = self.power()
        if token == "\\frac" and node[0] == "num" and "/" not in node[1] and right[0] == "div":
            top, bottom = right[1], right[2]
            if top[0] == bottom[0] == "num" and Fraction(top[1]) < Fraction(bottom[1]):
                return ["add", node, right]
        return ["mul", node, right]

    def unit(self, node: Node) -> Node:
        name = self.take().strip('"').strip().casefold()
        if self.peek() == "^":
            self.take()
            name += f"^{self.argument()[1]}"
        return ["unit", node, name]

    def begins_factor(self, token: str) -> bool:
        if token.startswith("\\"):
            return token not in RELATIONS and token not in _NO_FACTOR and not token.startswith("\\end")
        return token[0].isalnum() or token[0] == '"' or token in ("(", "[", "{", ".")

    def signed(self) -> Node:
        if self.peek() in ("+", "-"):
            sign = self.take()
            self.depth += 1
            if self.depth > DEEPEST:
                raise NotMathematics("nested too deeply")
            node = self.signed()
            self.depth -= 1
            return ["neg", node] if sign == "-" else node
        if self.peek() == "\\pm":
            self.take()
            return ["pm", ["num", "0"], self.power()]
        return self.power()

    def power(self) -> Node:
        node = self.postfix(self.atom())
        if self.peek() == "^":
            self.take()
            node = self.postfix(["pow", node, self.argument(signed=True)])
        return node

    def postfix(self, node: Node) -> Node:
        while self.peek() in ("!", "%", "\\%"):
            node = ["fn", "factorial", node] if self.take() == "!" else ["percent", node]
        return node

    def argument(self, signed: bool = False) -> Node:
        """A braced group, or one token: one digit of a number after a command, as LaTeX reads it."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotMathematics("nested too deeply")
        try:
            if self.peek() == "{":
                self.take("{")
                node = self.bare_list()
                self.take("}")
                return node
            if signed and self.peek() == "-":
                self.take()
                return ["neg", self.argument(signed=True)]
            token = self.peek() or ""
            if not signed and token[:1].isdigit() and len(token) > 1:
                self.tokens[self.place] = token[1:]
                return ["num", token[0]]
            return self.power() if signed else self.atom()
        finally:
            self.depth -= 1

    def atom(self) -> Node:
        token = self.take()
        if token[0].isdigit() or token[0] == ".":
            return ["num", str(_number(token))] if self.peek() != "_" else self.subscripted(token)
        if token in ("(", "[", "\\{"):
            return self.bracketed(token)
        if token == "{":
            node = self.bare_list()
            self.take("}")
            return node
        if token in ("|", "\\vert", "\\lvert"):
            node = self.sum()
            self.take("|", "\\vert", "\\rvert")
            return ["fn", "abs", node]
        if token.startswith("\\begin"):
            return self.matrix()
        if token.startswith('"'):
            return ["word", token.strip('"').strip().casefold()]
        if token.startswith("\\"):
            return self.command(token[1:])
        if token.isalpha():
            return self.letters(token)
        raise NotMathematics(f"unexpected {token!r}")

    def bracketed(self, opening: str) -> Node:
        closings = ("\\}",) if opening == "\\{" else (")", "]")
        if self.peek() in closings:
            return ["seq", opening, self.take(*closings), []]
        items = self.items()
        closing = self.take(*closings)
        if len(items) == 1 and opening + closing in ("()", "[]"):
            return items[0]
        return ["seq", opening, closing, items]

    def command(self, name: str) -> Node:
        if name == "frac":
            return ["div", self.argument(), self.argument()]
        if name == "sqrt":
            return self.root()
        if name in ("binom", "dbinom", "tbinom"):
            return ["fn", "binomial", self.argument(), self.argument()]
        if name in FUNCTIONS:
            return self.function(name)
        if name in ("lfloor", "lceil"):
            node = self.sum()
            self.take("\\rfloor" if name == "lfloor" else "\\rceil")
            return ["fn", "floor" if name == "lfloor" else "ceiling", node]
        if name in ("infty", "pi", "emptyset", "varnothing"):
            return ["sym", {"varnothing": "emptyset"}.get(name, name)]
        if name in _GREEK:
            return self.subscripted(name)
        raise NotMathematics(f"unknown command \\{name}")

    def root(self) -> Node:
        order: Node = ["num", "2"]
        if self.peek() == "[":
            self.take("[")
            order = self.sum()
            self.take("]")
        return ["pow", self.argument(), ["div", ["num", "1"], order]]

    def function(self, name: str) -> Node:
        base: list[Node] = []
        power: Node | None = None
        while self.peek() in ("_", "^"):
            if self.take() == "_":
                base = [self.argument()]
            else:
                power = self.argument(signed=True)
        if power == ["neg", ["num", "1"]]:
            name, power = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}.get(name, "unknown"), None
        node: Node = ["fn", name, self.function_argument(), *base]
        return node if power is None else ["pow", node, power]

    def function_argument(self) -> Node:
        """A bracket, or all factors up to the next sign, bracket or function: `sin 2x cos x`."""
        if self.peek() in ("(", "{", "-"):
            return self.signed()
        node = self.power()
        while (token := self.peek()) is not None and self.begins_factor(token):
            if token in ("(", "{") or token.lstrip("\\") in FUNCTIONS:
                break
            node = self.juxtaposed(node)
        return node

    def letters(self, token: str) -> Node:
        if token in ("sqrt", "pi", "infinity", "inf", "oo") or token in FUNCTIONS:
            if token == "sqrt":
                return self.root()
            return self.command({"infinity": "infty", "inf": "infty", "oo": "infty"}.get(token, token))
        if token.lower() in ("and", "or"):
            raise NotMathematics("and / or")
        if len(token) >= 3:  # a word, never the product of its letters
            return ["word", token.casefold()]
        if len(token) == 2:
            self.tokens[self.place : self.place] = [token[1]]
        return self.subscripted(token[0])

    def subscripted(self, name: str) -> Node:
        if self.peek() == "_":
            self.take()
            below = self.argument()
            return ["sym", f"{name}_{below[1] if below[0] in ('num', 'sym') else below}"]
        return ["sym", name]

    def matrix(self) -> Node:
        rows: list[list[Node]] = [[]]
        while not str(self.peek() or "").startswith("\\end"):
            if self.peek() == "\\\\":
                self.take()
                rows.append([])
            elif self.peek() == "&":
                self.take()
            else:
                rows[-1].append(self.sum())
        self.take()
        rows = [row for row in rows if row]
        if not rows or len({len(row) for row in rows}) > 1:
            raise NotMathematics("rows of a matrix differ in length")
        return ["matrix", rows]


_NO_FACTOR = {"\\cdot", "\\times", "\\div", "\\pm", "\\mp", "\\cup", "\\cap", "\\%", "\\}", "\\rfloor", "\\rceil",
              "\\rvert", "\\vert", "\\\\", "\\mid"}  # fmt: skip
_GREEK = {"alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu", "nu", "rho", "sigma", "tau", "phi",
          "varphi", "omega", "psi", "xi", "eta", "zeta", "kappa", "chi", "Delta", "Omega", "Sigma", "ell"}  # fmt: skip


def _number(token: str) -> Fraction:
    mantissa, _, exponent = token.lower().partition("e")
    if exponent and abs(int(exponent)) > 400:
        raise NotMathematics("exponent out of range")
    return Fraction(mantissa.rstrip(".") or "0") * Fraction(10) ** int(exponent or 0)
