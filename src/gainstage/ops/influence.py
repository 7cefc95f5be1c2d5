"""How much the choice of an action moves the chance of success, estimated from counts.

Source: arXiv 2601.18175 (success conditioning as policy improvement); the bias correction is ours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FEWEST = 10
"""Successes of a state below which its influence is noise."""


def estimated_influence(successes: ArrayLike, visits: ArrayLike) -> NDArray[np.float64]:
    """Influence from counts, "S A" each: plug-in with its bias taken off; NaN for states with fewer than 10 successes.

    An action that was never tried has the state's own value and adds nothing.

    Raises:
        ValueError: shapes that differ, or more successes than visits.
    """
    return influence_and_bias(successes, visits)[0]


def influence_and_bias(successes: ArrayLike, visits: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`estimated_influence`, and what chance alone had added to it, "S"; NaN where successes are too few.

    An influence well below that cannot be told from none.
    """
    won, seen = np.atleast_2d(np.asarray(successes, float)), np.atleast_2d(np.asarray(visits, float))
    if won.shape != seen.shape or (won > seen).any() or (won < 0).any():
        raise ValueError(f"estimated_influence: successes {won.shape} must lie between 0 and visits {seen.shape}")
    total, hits = seen.sum(-1, keepdims=True), won.sum(-1, keepdims=True)
    known = (hits >= FEWEST)[:, 0]
    v = np.where(total > 0, hits / np.maximum(total, 1), 0.0)
    p = np.where(total > 0, seen / np.maximum(total, 1), 0.0)
    q = np.where(seen > 0, won / np.maximum(seen, 1), v)
    safe = np.where(v > 0, v, 1.0)
    plug_in = (p * (q / safe - 1) ** 2).sum(-1)
    bias = (p * (1 - q) * q / (np.maximum(seen, 1) * safe**2)).sum(-1)
    return np.where(known, plug_in - bias, np.nan), np.where(known, bias, np.nan)
