"""Steps of tabular policies that are set beside success conditioning: policy gradients of the same size.

Source of the operator and of the size that is matched: arXiv 2601.18175. Gradients: Williams (1992),
10.1007/BF00992696; natural gradients of a softmax table: Kakade (2001), "A natural policy gradient".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
HALVINGS = 200


def chi_square(new: ArrayLike, old: ArrayLike) -> Array:
    """`sum_a (new - old)^2 / old` of every state, "S"; infinite where new acts that old never takes."""
    p, q = np.atleast_2d(np.asarray(new, float)), np.atleast_2d(np.asarray(old, float))
    change = (p - q) ** 2
    return np.where(q > 0, change / np.where(q > 0, q, 1.0), np.where(change > 0, np.inf, 0.0)).sum(-1)


def gradient_step(pi: ArrayLike, q: ArrayLike, size: ArrayLike, natural: bool = False) -> Array:
    """A softmax table's step up the policy gradient, as long as makes its chi-square distance `size` in every state.

    Logits move along `pi (Q - V)` (the plain gradient of a state) or `Q - V` (the natural one); a size beyond the
    greedy policy's is cut to it.

    Args:
        pi, q: `"S A"`.
        size: `"S"` or one number.

    Raises:
        ValueError: shapes that differ, or a negative size.
    """
    p, value = np.atleast_2d(np.asarray(pi, float)), np.atleast_2d(np.asarray(q, float))
    if p.shape != value.shape:
        raise ValueError(f"pi is {p.shape} and Q {value.shape}; both must be states by actions")
    wanted = np.broadcast_to(np.asarray(size, float), len(p))
    if (wanted < 0).any():
        raise ValueError("size must be at least 0")
    way = value - (p * value).sum(-1, keepdims=True)
    way = way if natural else p * way
    top = np.abs(way).max(-1, keepdims=True)
    way = np.divide(way, top, out=np.zeros_like(way), where=top > 1e-15)

    def moved(length: Array) -> Array:
        logits = length[:, None] * way
        weight = p * np.exp(logits - np.where(p > 0, logits, -np.inf).max(-1, keepdims=True))
        return weight / weight.sum(-1, keepdims=True)

    low, high = np.zeros(len(p)), np.full(len(p), 1e4)
    for _ in range(HALVINGS):  # the distance grows along the way
        middle = (low + high) / 2
        short = chi_square(moved(middle), p) < wanted
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return moved(low)


def counted_policy(successes: ArrayLike, pi: ArrayLike, kappa: float = 1.0) -> Array:
    """Success conditioning from samples: shares of actions among successes, with `kappa` counts of the old policy.

    Args:
        successes: visits `"S A"` of successful episodes, each counted once whatever the episode's length.
        pi: `"S A"`, which gave them.
        kappa: weight of the old policy; states without success keep it.

    Raises:
        ValueError: shapes that differ, or a kappa that is not positive.
    """
    won, p = np.atleast_2d(np.asarray(successes, float)), np.atleast_2d(np.asarray(pi, float))
    if won.shape != p.shape:
        raise ValueError(f"successes are {won.shape} and pi {p.shape}; both must be states by actions")
    if not kappa > 0:
        raise ValueError(f"kappa must be positive, got {kappa}")
    return (won + kappa * p) / (won.sum(-1, keepdims=True) + kappa)


def threshold_sweep(pi: ArrayLike, outcomes: ArrayLike, quantiles: ArrayLike) -> list[dict[str, float]]:
    """Conditioning one choice on a return above each quantile of its returns: what it does to that chance and to the
    mean return.

    Args:
        pi: `"A"`.
        outcomes: `"A N"`, equally likely returns of each action.
        quantiles: of the returns under pi, in [0, 1).

    Returns:
        For each: `quantile`, `threshold`, `reached` and `reached_after` (chance of the threshold), `return` and
        `return_after`, `influence`, `alignment` (correlation over actions of the chance with the mean).
    """
    p, table = np.asarray(pi, float), np.asarray(outcomes, float)
    weight = np.repeat(p / table.shape[1], table.shape[1])
    order = np.argsort(table.ravel())
    values, mass = table.ravel()[order], np.cumsum(weight[order])
    mean = table.mean(1)
    rows = []
    for quantile in np.atleast_1d(np.asarray(quantiles, float)):
        bar = float(values[min(np.searchsorted(mass, quantile + 1e-12), len(values) - 1)])
        chance = (table >= bar).mean(1)
        v = float(p @ chance)
        plus = p * chance / v
        a, b = chance - v, mean - p @ mean
        spread = float(np.sqrt((p @ a**2) * (p @ b**2)))
        rows.append({
            "quantile": float(quantile), "threshold": bar, "reached": v, "reached_after": float(plus @ chance),
            "return": float(p @ mean), "return_after": float(plus @ mean),
            "influence": float(p @ a**2 / v**2), "alignment": float(p @ (a * b) / spread) if spread > 1e-15 else 0.0,
        })  # fmt: skip
    return rows
