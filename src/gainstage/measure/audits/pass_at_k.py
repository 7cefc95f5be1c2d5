"""Unbiased pass@k and its curve. Source: Chen et al., arXiv 2107.03374, equation 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of `k` answers, drawn from `n` of which `c` are right, is right.

    `1 - C(n - c, k) / C(n, k)` as a product that does not overflow.

    Raises:
        ValueError: k outside [1, n] or c outside [0, n]: fewer answers than k cannot tell.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs k >= 1 and at least k answers per problem, there are {n}")
    if not 0 <= c <= n:
        raise ValueError(f"pass_at_k: {c} right answers of {n}")
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def saturation_curve(correct: Sequence[Sequence[float]], ks: Sequence[int] | None = None) -> dict[int, float]:
    """Mean pass@k over problems for each k (powers of two up to n where not given), "P K".

    Raises:
        ValueError: problems with different numbers of answers (their means would not be comparable), or k > n.
    """
    sizes = {len(row) for row in correct}
    if len(sizes) != 1:
        raise ValueError(f"saturation_curve: every problem needs the same number of answers, found {sorted(sizes)}")
    n = sizes.pop()
    if ks is None:
        ks = sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})
    counts = [int(np.sum(row)) for row in correct]
    return {k: float(np.mean([pass_at_k(n, c, k) for c in counts])) for k in ks}
