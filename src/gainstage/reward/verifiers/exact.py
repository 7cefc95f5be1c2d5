"""Answers that are compared as text."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gainstage.registry import component
from gainstage.types import Trajectory

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, one Unicode form (NFKC), no punctuation, no English articles, single spaces (SQuAD's rule)."""
    text = unicodedata.normalize("NFKC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def golds(gold: Any) -> list[str]:
    """The accepted answers: a gold answer is one, or a list or tuple of them."""
    return [str(g) for g in gold] if isinstance(gold, (list, tuple, set, frozenset)) else [str(gold)]


def exact(text: str, gold: Any, normalised: bool = True) -> bool:
    """Whether the whole text equals a gold answer. One that normalises to nothing equals only itself."""
    if not normalised:
        return text.strip() in [g.strip() for g in golds(gold)]
    return any(normalise(text) == normalise(g) if normalise(g) else text.strip() == g.strip() for g in golds(gold))


def contains_span(text: str, gold: Any) -> bool:
    """Whether a gold answer stands in the text as whole words; an empty gold answer never does."""
    words = f" {normalise(text)} "
    return any(bool(normalise(g)) and f" {normalise(g)} " in words for g in golds(gold))


def token_f1(text: str, gold: Any) -> float:
    """Largest word-overlap F1 with a gold answer, in [0, 1]; two empty texts agree."""
    best = 0.0
    for g in golds(gold):
        a, b = normalise(text).split(), normalise(g).split()
        if not a or not b:
            best = max(best, float(a == b))
            continue
        common = sum((Counter(a) & Counter(b)).values())
        best = max(best, 2 * common / (len(a) + len(b)))
    return best


def choice(text: str, options: Collection[str] = ("A", "B", "C", "D")) -> str | None:
    """The one option letter that the text names, None where it names none or several.

    A letter counts when it stands alone as `(B)`, `B.`, `B)` or `**B**`, at the end of the text, after "answer is"
    or "answer:", or when it is all of the text. "A" as an English article does not count.
    """
    letters = "".join(re.escape(option) for option in options)
    if re.fullmatch(rf"\W*([{letters}])\W*", text):
        return re.sub(r"\W", "", text)
    found = set(re.findall(rf"(?i:answer(?:\s+is)?\s*:?)\s*[(*\[]*([{letters}])\b", text))
    if not found:
        found = set(re.findall(rf"\(([{letters}])\)|\b([{letters}])[.):](?=\s|$)|\*\*([{letters}])\*\*", text))
        found = {letter for groups in found for letter in groups if letter}
    return found.pop() if len(found) == 1 else None


def prefix_match(pred: bytes, truth: bytes, boundaries: Collection[int]) -> bool:
    """Whether `pred` is a non-empty prefix of `truth` that ends at one of the byte `boundaries` (arXiv 2506.08007)."""
    return bool(pred) and pred == truth[: len(pred)] and len(pred) in boundaries


@component("reward")
@dataclass
class Exact:
    """Compares the answer with the problem's gold answer as text; problems without one do not apply."""

    how: Literal["exact", "contains", "f1", "choice"] = "exact"
    """`exact`: the whole text; `contains`: gold words inside; `f1`: word overlap; `choice`: the one option letter."""
    after: str = ""
    """Only what follows the last occurrence of this marker is compared; an answer without it is wrong."""

    level = "row"
    verifies = True
    requires = ("answer",)

    def judge(self, trajs: Sequence[Trajectory], ctx: Any) -> list[float | None]:
        return [self._judge(t) for t in trajs]

    def _judge(self, trajectory: Trajectory) -> float | None:
        if trajectory.problem is None or trajectory.problem.answer is None:
            return None
        text, gold = trajectory.info["completion"], trajectory.problem.answer
        if self.after:
            _, marker, text = text.rpartition(self.after)
            if not marker:
                return 0.0
        return compare(text, gold, self.how)


def compare(text: str, gold: Any, how: str) -> float:
    """The named comparison as a number in [0, 1]."""
    if how == "exact":
        return float(exact(text, gold))
    if how == "contains":
        return float(contains_span(text, gold))
    if how == "f1":
        return token_f1(text, gold)
    if how == "choice":
        return float(choice(text) in [g.strip().upper() for g in golds(gold)])
    raise ValueError(f"exact.how must be exact, contains, f1 or choice, got {how!r}")
