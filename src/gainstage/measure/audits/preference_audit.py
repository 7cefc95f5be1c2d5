"""Whom does a preference model speak for, at what cost, how robustly: three corners that no method has all of.

The three corners and their thresholds: arXiv 2511.19504 (a position; its lower bound is a theorem under its
assumptions, not a law that is measured here). The estimators are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gainstage.measure.intervals import Estimate

COLLAPSE = 0.2
"""Error towards a group from which a model that fits the pool is said to have collapsed onto it."""
FEWEST = 30
"""Pairs of a group below which nothing is estimated."""


def required_samples(eps: float, delta: float, groups: int = 1) -> tuple[int, int]:
    """Samples that give a probability within `eps` at confidence `1 - delta` for all groups at once: per group, in all.

    `ceil(ln(2 groups / delta) / (2 eps^2))`. Source: Hoeffding (1963), theorem 1, with a union bound over the groups.

    Raises:
        ValueError: eps or delta outside (0, 1), or groups < 1.
    """
    if not 0 < eps < 1 or not 0 < delta < 1 or groups < 1:
        raise ValueError(
            f"required_samples: eps and delta must lie in (0, 1) and groups be >= 1, got {eps}, {delta}, {groups}"
        )
    each = math.ceil(math.log(2 * groups / delta) / (2 * eps**2))
    return each, each * groups


def sample_audit(available: Mapping[str, int], eps: float = 0.05, delta: float = 0.05) -> dict[str, str]:
    """Group -> `covered`, or `short by factor k`."""
    each, _ = required_samples(eps, delta, len(available))
    return {
        group: "covered" if count >= each else f"short by factor {each / count:.3g}" if count else "no data"
        for group, count in available.items()
    }


@dataclass(frozen=True)
class Representativeness:
    """How far a model is from the groups of a pool, each with its bootstrap interval over pairs."""

    worst: Estimate
    """Largest mean error towards a group."""
    population: Estimate
    """Mean error towards the groups, by their shares."""
    pooled: Estimate
    """Error towards the pool's own average: 0 with a large `worst` is preference collapse."""
    groups: tuple[float, ...]
    """Mean error towards each group."""

    @property
    def collapsed(self) -> bool:
        return self.worst.value > COLLAPSE and self.pooled.value < COLLAPSE / 4


def representativeness(
    q: Sequence[float], p: Sequence[Sequence[float]], weights: Sequence[float], resamples: int = 1000, seed: int = 0,
    level: float = 0.95,
) -> Representativeness:  # fmt: skip
    """Distance of a model's preferences from those of the groups; fewer than 30 pairs give no interval.

    Absolute values are taken before any mean over groups, or opposite errors would cancel.

    Args:
        q: the model's probability that the first answer is preferred, "X" pairs.
        p: the same of each group, "G X".
        weights: share of each group in the population, "G", sum 1.
        resamples, seed, level: percentile bootstrap over pairs.

    Raises:
        ValueError: shapes that do not fit, or weights that do not sum to 1.
    """
    model, groups, shares = np.asarray(q, float), np.atleast_2d(np.asarray(p, float)), np.asarray(weights, float)
    if groups.shape != (len(shares), len(model)) or not len(model):
        raise ValueError(f"representativeness: p is {groups.shape} for {len(shares)} weights and {len(model)} pairs")
    if abs(shares.sum() - 1) > 1e-6 or (shares < 0).any():
        raise ValueError(f"representativeness: weights must be >= 0 and sum to 1, got {shares.tolist()}")
    errors = np.abs(model - groups)
    pooled = np.abs(model - shares @ groups)

    def figures(pick: np.ndarray) -> tuple[float, float, float]:
        each = errors[:, pick].mean(1)
        return float(each.max()), float(shares @ each), float(pooled[pick].mean())

    every = np.arange(len(model))
    values = figures(every)
    bounds: list[tuple[float | None, float | None]] = [(None, None)] * 3
    if len(model) >= FEWEST and resamples:
        rng = np.random.default_rng(seed)
        draws = np.array([figures(rng.choice(every, len(every))) for _ in range(resamples)])
        tail = 100 * (1 - level) / 2
        low, high = np.percentile(draws, (tail, 100 - tail), axis=0)
        bounds = [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
    worst, population, average = (
        Estimate(value, *bound, n=len(model), level=level) for value, bound in zip(values, bounds, strict=True)
    )
    return Representativeness(worst, population, average, tuple(float(e) for e in errors.mean(1)))


@dataclass(frozen=True)
class Robustness:
    """Utility that perturbations take away."""

    mean: float
    """Over pairs and perturbations."""
    worst: float
    """Mean over pairs of the worst perturbation of each."""
    by: dict[str, float]
    """Mean loss of each perturbation."""


def robustness(clean: Sequence[float], perturbed: Mapping[str, Sequence[float]]) -> Robustness:
    """Loss of utility `[U(x) - U_pi(x)]_+` under named perturbations.

    Args:
        clean: probability that the model gives to the gold answer of each pair, "X".
        perturbed: perturbation -> the same where the pair, or the model's training data, were perturbed.

    Raises:
        ValueError: no perturbation, or another number of pairs.
    """
    u = np.asarray(clean, float)
    if not perturbed or any(len(row) != len(u) for row in perturbed.values()):
        raise ValueError("robustness: give at least one perturbation, each with as many pairs as the clean model")
    losses = {name: np.maximum(u - np.asarray(row, float), 0.0) for name, row in perturbed.items()}
    stacked = np.stack(list(losses.values()))
    each = {name: float(loss.mean()) for name, loss in losses.items()}
    return Robustness(float(stacked.mean()), float(stacked.max(0).mean()), each)


def coverage(contexts: Sequence[Sequence[int]], bits: int) -> tuple[int, int]:
    """Cells of a rule table over `bits` binary features, and how many of them hold a sample.

    Raises:
        ValueError: a context of another length, or with entries other than 0 and 1.
    """
    cells = {tuple(context) for context in contexts}
    if any(len(cell) != bits or set(cell) - {0, 1} for cell in cells):
        raise ValueError(f"coverage: every context needs {bits} entries of 0 or 1")
    return 2**bits, len(cells)


@dataclass(frozen=True)
class TradeOff:
    """One arm with its three corners; lower is better in each. `dominated`: another arm is better in all of them."""

    arm: str
    representativeness: float
    robustness: float
    cost: float
    dominated: bool = False


def trade_offs(rows: Sequence[TradeOff]) -> list[TradeOff]:
    """The rows with those marked that another one beats in a corner and loses to in none."""

    def corners(row: TradeOff) -> tuple[float, float, float]:
        return row.representativeness, row.robustness, row.cost

    def beaten(row: TradeOff) -> bool:
        own = corners(row)
        return any(all(a <= b for a, b in zip(corners(r), own, strict=True)) and corners(r) != own for r in rows)

    return [TradeOff(row.arm, *corners(row), beaten(row)) for row in rows]


def sycophancy(agree: Sequence[bool], base: Sequence[bool]) -> float:
    """How much more often a model agrees when the user states an opinion than without it."""
    return float(np.mean(agree) - np.mean(base))


def majority_amplification(chose_minority: Sequence[bool], minority_weight: float) -> float:
    """Share of choices that the minority prefers, minus its weight, on pairs where the groups disagree.

    Negative: the majority counts for more than its share.
    """
    if not 0 <= minority_weight <= 1:
        raise ValueError(f"majority_amplification: minority_weight must lie in [0, 1], got {minority_weight}")
    return float(np.mean(chose_minority)) - minority_weight
