"""How much the choice of an action matters, and what imitating successes can gain: one number, three ways.

Source: arXiv 2601.18175 (success conditioning as policy improvement); the estimators' bias correction is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gainstage.ops.influence import FEWEST, estimated_influence

__all__ = [
    "FEWEST",
    "ActionInfluence",
    "action_gaps",
    "action_influence",
    "alignment",
    "estimated_influence",
    "log_gaps",
    "predicted_gain",
    "success_condition",
    "trust_region",
]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ActionInfluence:
    """Influence of each state and how well the identity behind it holds."""

    influence: Array
    """`Var_pi(Q) / V^2`, "S": squared size of the change and relative one-step improvement at once."""
    identity_error: float
    """Largest distance between the two: above rounding, the policy is not the one that gave the values."""

    @property
    def mean(self) -> float:
        return float(self.influence.mean())


def success_condition(pi: ArrayLike, q: ArrayLike) -> Array:
    """`pi+(a|s) = pi(a|s) Q(s,a) / V(s)`, "S A"; states that never succeed keep their policy.

    Raises:
        ValueError: shapes that differ, rows of pi that are no distributions, or Q outside [0, 1].
    """
    p, value = _checked(pi, q)
    v = (p * value).sum(-1, keepdims=True)
    return np.where(v > 0, p * value / np.where(v > 0, v, 1.0), p)


def action_influence(pi: ArrayLike, q: ArrayLike) -> ActionInfluence:
    """Influence from exact success probabilities, "S A" each. States that never succeed have none."""
    p, value = _checked(pi, q)
    v = (p * value).sum(-1)
    safe = np.where(v > 0, v, 1.0)
    plus = success_condition(p, value)
    change = np.divide((plus - p) ** 2, p, out=np.zeros_like(p), where=p > 0).sum(-1)
    gain = np.where(v > 0, (plus * value).sum(-1) / safe - 1, 0.0)
    variance = np.where(v > 0, (p * (value - v[:, None]) ** 2).sum(-1) / safe**2, 0.0)
    return ActionInfluence(variance, float(max(np.abs(change - gain).max(), np.abs(variance - gain).max())))


def trust_region(pi: ArrayLike, q: ArrayLike, size: float) -> Array:
    """The best policy within a chi-square distance of `size`: `pi (1 + (Q - V) sqrt(size) / std(Q))`, "S A".

    Raises:
        ValueError: a size that would make a probability negative somewhere.
    """
    p, value = _checked(pi, q)
    v = (p * value).sum(-1, keepdims=True)
    std = np.sqrt((p * (value - v) ** 2).sum(-1, keepdims=True))
    out = p * (1 + np.where(std > 0, (value - v) / np.where(std > 0, std, 1.0), 0.0) * np.sqrt(size))
    if (out < -1e-12).any():
        raise ValueError(f"trust_region: size {size} leaves the simplex; the closed form holds for smaller ones")
    return np.maximum(out, 0.0)


def predicted_gain(paths: Sequence[Sequence[int]], influence: ArrayLike) -> float:
    """Relative gain of the success rate that success conditioning is to bring: mean over successful episodes of the sum
    of influences along them. States without an estimate (NaN) are left out.

    Raises:
        ValueError: no successful episode: there is nothing to imitate.
    """
    if not len(paths):
        raise ValueError("predicted_gain: no successful episode; with N episodes the success rate is below about 3 / N")
    table = np.asarray(influence, float)
    return float(np.mean([np.nansum(table[np.asarray(path, int)]) for path in paths]))


def alignment(pi: ArrayLike, reached: ArrayLike, returns: ArrayLike) -> Array:
    """Correlation over actions of "return above the threshold" with the return itself, "S"; 0 without spread.

    Negative: conditioning on the threshold moves the policy away from what it was meant for.

    Args:
        reached: `P(R >= c | s, a)`.
        returns: `E[R | s, a]`.
    """
    p, a = _checked(pi, reached)
    b = np.atleast_2d(np.asarray(returns, float))
    a, b = a - (p * a).sum(-1, keepdims=True), b - (p * b).sum(-1, keepdims=True)
    both = np.sqrt((p * a**2).sum(-1) * (p * b**2).sum(-1))
    return np.where(both > 1e-15, (p * a * b).sum(-1) / np.where(both > 1e-15, both, 1.0), 0.0)


def action_gaps(q: ArrayLike) -> Array:
    """Best minus second best value of every state, "S".

    Raises:
        ValueError: fewer than two actions.
    """
    values = np.atleast_2d(np.asarray(q, float))
    if values.shape[-1] < 2:
        raise ValueError("action_gaps: a state needs two actions and more")
    top = np.partition(values, -2, axis=-1)
    return top[..., -1] - top[..., -2]


def log_gaps(q: ArrayLike) -> Array:
    """Log of the best over the second best value of every state, "S": what is left to be told in log space.

    Raises:
        ValueError: fewer than two actions, or values that are not positive.
    """
    values = np.atleast_2d(np.asarray(q, float))
    if (values <= 0).any():
        raise ValueError("log_gaps: every value must be positive")
    return action_gaps(np.log(values))


def _checked(pi: ArrayLike, q: ArrayLike) -> tuple[Array, Array]:
    p, value = np.atleast_2d(np.asarray(pi, float)), np.atleast_2d(np.asarray(q, float))
    if p.shape != value.shape:
        raise ValueError(f"pi is {p.shape} and Q {value.shape}; both must be states by actions")
    if (p < 0).any() or not np.allclose(p.sum(-1), 1):
        raise ValueError("pi: every row must be a distribution over actions")
    if (value < 0).any() or (value > 1 + 1e-12).any():
        raise ValueError("Q must hold success probabilities in [0, 1]")
    return p, value
