"""A small grammar of mathematical answers, LaTeX or plain, to a tree that JSON can carry.

Every character has to fit, so that nothing is compared after half a parse. Nodes are lists: `["num", "3/4"]`,
`["sym", "x"]`, `["add", a, b]`, `["mul", a, b]`, `["div", a, b]`, `["neg", a]`, `["pow", a, b]`, `["pm", a, b]`,
`["fn", name, a, ...]`, `["rel", "=", a, b]`, `["seq", open, close, [items]]` (no brackets: a bare list),
`["matrix", [[...], ...]]`, `["percent", a]`, `["union", a, b]`, `["word", text]`.
"""

from __future__ import annotations

import re

from gainstage.ops.grammar import Node, NotMathematics, Parser

LONGEST = 2000

_SYMBOLS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "√": r"\sqrt ",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ",
    "²": "^2", "³": "^3", "½": r"\frac12 ", "¼": r"\frac14 ", "¾": r"\frac34 ", "°": "", "…": r"\ldots ", "**": "^",
    "θ": r"\theta ", "\u00a0": " ", "\u2009": " ",
}  # fmt: skip
_SPACING = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|[bB]igg?[lrm]?)(?![a-zA-Z])\.?"
    r"|(?<!\\)\\[,;:! ]|\\q?quad(?![a-zA-Z])|~"
)
_STYLED = re.compile(r"\\(?:mathrm|mathbf|mathit|mathsf|mathbb|mathcal|boldsymbol|operatorname\*?)\s*\{([^{}]*)\}")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mbox|hbox|texttt)\s*\{([^{}]*)\}")
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))")
_DELIMITERS = re.compile(r"\\[()\[\]]|(?<!\\)\$")
_TOKEN = re.compile(
    r"\s*(?:(?P<thousands>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9,]))|(?P<number>[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+)"
    r"|(?P<begin>\\begin\{[a-z]*matrix\*?\})|(?P<end>\\end\{[a-z]*matrix\*?\})|(?P<row>\\\\)"
    r"|(?P<command>\\[a-zA-Z]+|\\[{}|%])|(?P<word>[a-zA-Z]+)|(?P<sign>[<>]=|[-+*/^_=<>!%(){}\[\],|&;:'])|(?P<quoted>\"[^\"]*\"))"
)
_ELLIPSIS = re.compile(r"\\[lcdv]?dots[a-z]*(?![a-z])|\.\.\.")
_MIXED = re.compile(r"(?<![0-9.])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.])")


def clean(text: str) -> str:
    """Spelling without a meaning removed: delimiters, spacing, styles, degrees, currency, a final full stop."""
    for old, new in _SYMBOLS.items():
        text = text.replace(old, new)
    text = text.replace("{,}", ",").replace("\\$", "").replace("\\#", "")
    text = _DELIMITERS.sub(" ", text)
    text = _SPACING.sub(lambda m: "" if m.group() in ("\\!", "\\,") else " ", text)
    text = _DEGREE.sub("", text)
    text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", text)
    text = _STYLED.sub(lambda m: f" {m.group(1)} ", text)
    return text.strip().rstrip(".").strip()


def has_ellipsis(text: str) -> bool:
    """Whether the text leaves members out, so that nothing but its spelling can be compared."""
    return bool(_ELLIPSIS.search(text.replace("…", "...")))


def parse(text: str) -> Node:
    """The tree of an answer.

    Raises:
        NotMathematics: anything in it is outside the grammar.
    """
    if len(text) > LONGEST:
        raise NotMathematics(f"longer than {LONGEST} characters")
    if has_ellipsis(text):
        raise NotMathematics("it leaves members out")
    text = _TEXT.sub(lambda m: _plain(m.group(1)), clean(text))
    parser = Parser(_tokens(_MIXED.sub(r"(\1+\2/\3)", text)))
    node = parser.bare_list()
    if parser.peek() is not None:
        raise NotMathematics(f"unexpected {parser.peek()!r}")
    return node


def _plain(text: str) -> str:
    """Text set upright: numbers, single letters and operators count as mathematics, other words stay words."""
    inner = text.strip()
    return f" {inner} " if not re.search(r"[a-zA-Z]{2}", inner) else f' "{inner}" '


def _tokens(text: str) -> list[str]:
    found, place, depth = [], 0, 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise NotMathematics(f"cannot read {text[place : place + 10]!r}")
        kind, token = match.lastgroup, match.group(match.lastgroup or 0)
        place = match.end()
        if kind == "thousands" and depth:  # inside brackets a comma separates
            token = token.split(",")[0]
            place = match.start(kind) + len(token)
        depth += token in ("(", "[", "\\{")
        depth -= token in (")", "]", "\\}")
        found.append(token.replace(",", "") if kind == "thousands" else token)
    return found
