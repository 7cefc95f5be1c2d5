"""Final answers of texts, and whether two answers are equal: exact arithmetic first, no floats, no `eval`.

`extract` finds the answer, `compare` decides what rational arithmetic and structure can decide, `math_equal` hands the
rest to a symbolic comparison in a worker process that can be killed, from any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from gainstage.ops import latex
from gainstage.ops.latex import Node, NotMathematics
from gainstage.ops.rationals import TooLarge, exact_value, fraction
from gainstage.ops.workers import Failure, shared_pool

Same = bool | None
_NUMBER = re.compile(
    r"(?<![\w.])[-+−]?\$?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:\s*/\s*[0-9]+(?![0-9.]))?%?"
)
_CHOICE = re.compile(r"\s*(?:(?:,|;|\||\bor\b|\band\b|\\text\s*\{\s*(?:or|and)\s*\}|\\(?:lor|vee|quad|;|,))\s*)+")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*")
_WORD = re.compile(r"[\w.+-]+")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_PHRASE = re.compile(r"answer(?:\s+is)?\s*[:=]?\s*(?P<answer>[^\n]+)", re.IGNORECASE)


def extract_boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}`; None where there is none or it is cut off."""
    ends = _closing_braces(text) if "boxed" in text or "fbox" in text else {}
    for found in reversed(list(_BOXED.finditer(text))):
        start = found.end()
        if content := text[start + 1 : ends.get(start, start)]:
            return content.strip() or None
        if not text.startswith("{", start) and (word := _WORD.match(text, start)):
            return word.group()
    return None


def _closing_braces(text: str) -> dict[int, int]:
    """Place of every opened and closed brace -> place of its end, in one pass; escaped braces are text."""
    opened: list[int] = []
    ends: dict[int, int] = {}
    for mark in _BRACES.finditer(text):
        if mark.group() == "{":
            opened.append(mark.start())
        elif mark.group() == "}" and opened:
            ends[opened.pop()] = mark.start()
    return ends


def extract_hash(text: str) -> str | None:
    """What follows the last `####` on its line, as GSM8K (arXiv:2110.14168) writes answers."""
    found = re.findall(r"####[ \t]*([^\n]*)", text)
    return found[-1].strip().rstrip(".").strip() or None if found else None


def extract_phrase(text: str) -> str | None:
    """What follows the last "the answer is" on its line, with the sentence's full stop dropped."""
    found = _PHRASE.findall(text)
    if not found:
        return None
    answer = re.split(r"\.(?:\s|$)", found[-1].strip())[0].strip().strip("*").strip()
    return answer or None


def several_numbers(text: str) -> bool:
    """Whether a text ends its numbers with a choice of different ones ("18 or 19"), which is no single answer."""
    found = list(_NUMBER.finditer(text))[-2:]
    if len(found) < 2 or not _CHOICE.fullmatch(text, found[0].end(), found[1].start()):
        return False
    return exact_value(found[0].group()) != exact_value(found[1].group())


def single_number(text: str) -> str | None:
    """The last number of a text; None where there is none, or a choice of several."""
    return None if several_numbers(text) else last_number(text)


def last_number(text: str) -> str | None:
    """The last number of a text (thousands, decimals, fractions, a sign), None where there is none."""
    found = _NUMBER.findall(text)
    return found[-1].replace("−", "-").replace("$", "") if found else None


EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "boxed": extract_boxed,
    "hash": extract_hash,
    "phrase": extract_phrase,
    "number": single_number,
    "whole": lambda text: text.strip() or None,
}


def extract(text: str, order: Sequence[str] = ("boxed", "hash", "phrase", "number")) -> str | None:
    """The answer by the first extractor that finds one; None where none does."""
    for name in order:
        if (answer := EXTRACTORS[name](text)) is not None:
            return answer
    return None


def compare(answer: str, gold: str) -> Same:
    """Whether two answers are equal, None where that needs symbolic algebra. Symmetric in its arguments."""
    same, _ = _decide(answer, gold)
    return same


def math_equal(answer: str, gold: str, *, seconds: float = 5.0) -> bool | Failure:
    """Whether two mathematical answers are equal; callable from any thread.

    Rational numbers and structure are compared exactly here, anything else by symbolic algebra in a worker process
    with a limit on time and memory. Swapping the arguments never changes the verdict.

    Returns:
        True or False, or the `Failure` of a worker that ran out of time or memory or died: no verdict.
    """
    same, trees = _decide(answer, gold)
    if same is not None:
        return same
    result = shared_pool("gainstage.ops.symbolic:equal").call(answer, gold, trees, seconds=seconds)
    return result if isinstance(result, Failure) else bool(result)


def _decide(answer: str, gold: str) -> tuple[Same, list[Node] | None]:
    if _words(answer) == _words(gold) and _words(gold):
        return True, None
    if latex.has_ellipsis(answer) or latex.has_ellipsis(gold) or max(len(answer), len(gold)) > latex.LONGEST:
        return False, None
    try:
        trees = [latex.parse(answer), latex.parse(gold)]
    except NotMathematics:
        return None if _could_be_mathematics(answer) and _could_be_mathematics(gold) else False, None
    try:
        return same(*trees), trees
    except TooLarge:
        return None, trees


def _words(text: str) -> str:
    """Spelling without blanks, styles and delimiters; words of two letters and more without case."""
    plain = re.sub(r"\\(?:text|textbf|textit|mathrm|mbox)\s*\{([^{}]*)\}", r"\1", latex.clean(text))
    plain = re.sub(r"\s+", "", plain)
    if re.fullmatch(r"\([A-Za-z]\)", plain):  # an option letter
        return plain[1]
    return plain.casefold() if plain.isalpha() and len(plain) > 1 else plain


def _could_be_mathematics(text: str) -> bool:
    return bool(re.search(r"[0-9]|\\[a-zA-Z]|[=<>]", text)) and not re.search(r"[a-zA-Z]{4,}.*\s[a-zA-Z]{4,}", text)


def same(a: Node, b: Node) -> Same:
    """Equality of two trees as far as structure and exact arithmetic decide it.

    Raises:
        TooLarge: a number in them is not worth computing.
    """
    a, b = bare(a, b), bare(b, a)
    if a == b:
        return True
    kinds = {a[0], b[0]}
    if kinds == {"seq"}:
        return _same_sequence(a, b)
    if kinds == {"matrix"}:
        return _same_matrix(a, b)
    if kinds == {"union"}:
        return _any_order(pieces(a), pieces(b))
    if kinds & {"rel", "chain", "pm"}:
        return None
    if kinds & {"seq", "matrix", "union"}:
        return _vector(a, b) if "matrix" in kinds and "seq" in kinds else False
    if "word" in kinds:
        return False
    if "percent" in kinds:
        return _same_percent(a, b)
    left, right = fraction(a), fraction(b)
    return left == right if left is not None and right is not None else None


def bare(node: Node, other: Node) -> Node:
    """Without what only names the value: `x =` in front, a unit behind, where the other side has none."""
    if node[0] == "rel" and node[1] in ("=", "in") and node[2][0] in ("sym", "word") and other[0] != "rel":
        node = node[3]
    if node[0] == "unit" and node[1][0] != "word" and (other[0] != "unit" or node[2] == other[2]):
        node = node[1]
    return node


def _same_percent(a: Node, b: Node) -> Same:
    """A percent sign may be left out, or written as hundredths."""
    both = a[0] == b[0] == "percent"
    left, right = (fraction(n[1] if n[0] == "percent" else n) for n in (a, b))
    if left is None or right is None:
        return None
    return left == right or (not both and (left == 100 * right or right == 100 * left) and _hundredth(a, b))


def _hundredth(a: Node, b: Node) -> bool:
    sign, plain = (a, b) if a[0] == "percent" else (b, a)
    return fraction(sign[1]) == 100 * (fraction(plain) or 0)


def _same_sequence(a: Node, b: Node) -> Same:
    bare = {"", "\\{"}
    if (a[1] in bare) != (b[1] in bare):
        return False
    if a[1] in bare:
        return _any_order(a[3], b[3])
    if len(a[3]) != len(b[3]) or (a[1:3] != b[1:3] and len(a[3]) <= 2):
        return False
    return _all(same(x, y) for x, y in zip(a[3], b[3], strict=True))


def _same_matrix(a: Node, b: Node) -> Same:
    if [len(row) for row in a[1]] != [len(row) for row in b[1]]:
        return False
    return _all(same(x, y) for left, right in zip(a[1], b[1], strict=True) for x, y in zip(left, right, strict=True))


def _vector(a: Node, b: Node) -> Same:
    """A column or row of a matrix against a tuple."""
    matrix, tuple_ = (a, b) if a[0] == "matrix" else (b, a)
    if tuple_[1] in ("", "\\{") or min(len(matrix[1]), len(matrix[1][0])) != 1:
        return False
    cells = [cell for row in matrix[1] for cell in row]
    return _all(same(x, y) for x, y in zip(cells, tuple_[3], strict=True)) if len(cells) == len(tuple_[3]) else False


def pieces(node: Node) -> list[Node]:
    return pieces(node[1]) + pieces(node[2]) if node[0] == "union" else [node]


def _any_order(left: Sequence[Node], right: Sequence[Node]) -> Same:
    """Whether some order makes all members equal; None where algebra has to tell."""
    if len(left) != len(right):
        return False
    rest, open_ = list(right), False
    for item in left:
        verdicts = [same(item, other) for other in rest]
        if True in verdicts:
            rest.pop(verdicts.index(True))
        elif None in verdicts:
            open_ = True
        else:
            return False
    return None if open_ else True


def _all(verdicts: Any) -> Same:
    seen = list(verdicts)
    return False if False in seen else None if None in seen else True
