"""Do two problem sets share problems? Exact after normalisation, and by n-grams of words."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gainstage.types import Problem


@dataclass(frozen=True)
class Overlap:
    """Evaluation problems that are also training problems."""

    count: int
    evaluation: int
    training: int
    examples: tuple[str, ...] = ()
    """Ids (or texts) of the first few shared evaluation problems."""
    training_hash: str = ""
    """Provenance of the training prompts: 16 hex digits of their normalised texts, in any order, repeats once."""

    @property
    def share(self) -> float:
        return self.count / self.evaluation if self.evaluation else 0.0

    @property
    def message(self) -> str:
        """One line for logs and errors; empty where nothing is shared."""
        if not self.count:
            return ""
        if self.count == self.evaluation:
            return f"all {self.count} evaluation problems are training problems too (same data or same seed twice?)"
        return f"{self.count} of {self.evaluation} evaluation problems are training problems too"


def prompt_text(problem: Problem | str) -> str:
    """The text of a problem; messages are joined as `role: content`."""
    prompt = problem if isinstance(problem, str) else problem.prompt
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message.get('role', '')}: {message.get('content', '')}" for message in prompt)


def normalise(text: str) -> str:
    """Canonical Unicode, case folded, runs of white space as one blank, none at the ends.

    Symbols stay: 2+2 is not 2-2.
    """
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def overlap(training: Iterable[Problem | str], evaluation: Iterable[Problem | str], examples: int = 5) -> Overlap:
    """Evaluation problems whose normalised prompt is a training prompt as well."""
    seen: set[str] = set()
    size = 0
    for problem in training:
        size += 1
        seen.add(normalise(prompt_text(problem)))
    asked = list(evaluation)
    shared = [problem for problem in asked if normalise(prompt_text(problem)) in seen]
    names = tuple(p if isinstance(p, str) else p.id for p in shared[:examples])
    return Overlap(len(shared), len(asked), size, names, _hash(sorted(seen)))


def ngram_overlap(
    training: Iterable[Problem | str],
    evaluation: Iterable[Problem | str],
    n: int = 13,
    share: float = 0.5,
    examples: int = 5,
) -> Overlap:
    """Evaluation problems of which at least `share` of the word n-grams occur in training prompts.

    Problems shorter than `n` words are left to `overlap`. Template words make near-duplicates of generated problems
    look shared: a high count is a reason to look, not a proof.
    """
    if n < 1 or not 0 < share <= 1:
        raise ValueError(f"ngram_overlap: n must be >= 1 and share in (0, 1], got n={n}, share={share}")
    seen: set[int] = set()  # hashes: a large data set has more n-grams than memory has room for
    size = 0
    for problem in training:
        size += 1
        seen.update(_ngrams(problem, n))
    asked = list(evaluation)
    shared = []
    for problem in asked:
        grams = _ngrams(problem, n)
        if grams and sum(gram in seen for gram in grams) >= share * len(grams):
            shared.append(problem)
    names = tuple(p if isinstance(p, str) else p.id for p in shared[:examples])
    return Overlap(len(shared), len(asked), size, names)


def _ngrams(problem: Problem | str, n: int) -> list[int]:
    """64-bit hashes of the word n-grams, of this process only."""
    words = normalise(prompt_text(problem)).split()
    return [hash(tuple(words[i : i + n])) for i in range(len(words) - n + 1)]


def hash_problems(problems: Sequence[Problem]) -> str:
    """Hash of a problem set: prompts and gold answers, in any order, 16 hex digits."""
    rows = ([prompt_text(problem), _plain(problem.answer)] for problem in problems)
    lines = sorted(json.dumps(row, sort_keys=True, default=str, ensure_ascii=False) for row in rows)
    return _hash(lines)


def _hash(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _plain(answer: object) -> object:
    return dict(answer) if isinstance(answer, Mapping) else answer
