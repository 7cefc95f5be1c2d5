"""How much two texts agree."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Overlap:
    """Precision, recall and their harmonic mean, each in [0, 1]."""

    precision: float
    recall: float
    f1: float


def longest_common_subsequence(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Length of the longest sequence that both hold in order, not necessarily without gaps."""
    row = [0] * (len(b) + 1)
    for x in a:
        diagonal = 0
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], diagonal + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


def rouge_l(candidate: Sequence[Hashable], reference: Sequence[Hashable]) -> Overlap:
    """ROUGE-L of two sequences of words or tokens; two empty ones agree, an empty one and another do not.

    Source: Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (2004), section 3.1, with beta 1.
    """
    if not candidate or not reference:
        same = float(not candidate and not reference)
        return Overlap(same, same, same)
    common = longest_common_subsequence(candidate, reference)
    precision, recall = common / len(candidate), common / len(reference)
    return Overlap(precision, recall, 2 * common / (len(candidate) + len(reference)))
