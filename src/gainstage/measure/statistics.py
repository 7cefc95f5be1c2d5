"""Aggregates over runs and tasks: interquartile mean, stratified bootstrap, probability of improvement, Holm.

Formulas: Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gainstage.measure.intervals import (
    Estimate,
    PairedDifference,
    clustered_rate,
    mean_interval,
    minimum_detectable_effect,
    no_spread,
    paired_difference,
    power,
    runs_needed,
    sampling_error,
    standard_error_of_task_mean,
    standard_error_of_weighted_mean,
    wilson,
)

__all__ = [
    "Estimate",
    "PairedDifference",
    "by_task",
    "clustered_rate",
    "holm",
    "iqm",
    "mean_interval",
    "minimum_detectable_effect",
    "paired_difference",
    "performance_profile",
    "power",
    "probability_of_improvement",
    "runs_needed",
    "sampling_error",
    "standard_error_of_task_mean",
    "standard_error_of_weighted_mean",
    "stratified_bootstrap",
    "wilson",
]

Scores = Mapping[str, Sequence[float]]


def iqm(values: Sequence[float] | np.ndarray, axis: int | None = None) -> Any:
    """Interquartile mean: mean of what is left when the lowest and the highest quarter (rounded down) are cut.

    Over all values, or along `axis`.
    """
    x = np.asarray(values, dtype=float)
    x = x.ravel() if axis is None else np.moveaxis(x, axis, -1)
    if x.shape[-1] == 0:
        raise ValueError("iqm: no values")
    cut = x.shape[-1] // 4
    inner = np.sort(x, -1)[..., cut : x.shape[-1] - cut].mean(-1)
    return float(inner) if inner.ndim == 0 else inner


def stratified_bootstrap(
    strata: Sequence[np.ndarray],
    statistic: Callable[..., Any] = iqm,
    *,
    level: float = 0.95,
    replicates: int = 2000,
    seed: int = 0,
) -> Estimate | None:
    """Percentile bootstrap that resamples within each stratum (task), never across.

    A stratum is "R" (one score a run) or "R P" (runs by problems). With problems, each replicate draws runs and,
    nested in it, one set of problems for all runs, since all runs answer the same problems; a run's score is then its
    mean over the drawn problems. To bootstrap a paired difference, give the differences. `statistic` takes the scores
    of all strata and an `axis`, as `np.mean` does.

    Returns:
        the estimate, or None where a stratum has one run only. Without any spread (all runs at 100 %) it has no
        interval: a width of zero would be a claim of certainty. The interval is too narrow below some ten runs and must
        not carry a verdict.

    Raises:
        ValueError: no stratum, an empty one, or more than two axes.
    """
    arrays = [np.asarray(stratum, dtype=float) for stratum in strata]
    if not arrays:
        raise ValueError("stratified_bootstrap: no stratum")
    for array in arrays:
        if array.ndim not in (1, 2) or array.size == 0:
            raise ValueError(f"stratified_bootstrap: a stratum is [runs] or [runs, problems], got shape {array.shape}")
    if any(array.shape[0] < 2 for array in arrays):
        return None
    point = statistic(np.concatenate([a if a.ndim == 1 else a.mean(1) for a in arrays]), axis=-1)
    rng = np.random.default_rng(seed)
    draws = statistic(np.concatenate([_resample(array, replicates, rng) for array in arrays], axis=-1), axis=-1)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    runs, method = min(array.shape[0] for array in arrays), "percentile bootstrap"
    if no_spread(float(np.ptp(draws)), float(np.abs(draws).max())):
        return Estimate(float(point), n=runs, level=level, method=method)
    return Estimate(float(point), float(low), float(high), runs, level, method)


def _resample(array: np.ndarray, replicates: int, rng: np.random.Generator) -> np.ndarray:
    """Scores of redrawn runs, "replicates R"."""
    runs = rng.integers(0, array.shape[0], (replicates, array.shape[0]))
    if array.ndim == 1:
        return array[runs]
    problems = array.shape[1]
    drawn = rng.integers(0, problems, (replicates, problems)) + problems * np.arange(replicates)[:, None]
    times_drawn = np.bincount(drawn.ravel(), minlength=replicates * problems).reshape(replicates, problems)
    scores = times_drawn @ array.T / problems
    return np.take_along_axis(scores, runs, 1)


def by_task(scores: Scores | Sequence[float] | np.ndarray, axes: str | None = None) -> dict[str, np.ndarray]:
    """Scores as task -> runs.

    Args:
        scores: a mapping task -> runs, one list of runs (a single task), or a matrix.
        axes: what the axes of a matrix are, "runs tasks" or "tasks runs". A matrix has to say it: read the wrong way
            round it gives a plausible number that is wrong.

    Raises:
        ValueError: a matrix without `axes`, a task without a run, a score that is not finite.
    """
    if isinstance(scores, Mapping):
        tasks = {str(name): np.asarray(runs, dtype=float).ravel() for name, runs in scores.items()}
    else:
        matrix = np.asarray(scores, dtype=float)
        if matrix.ndim == 1:
            matrix, axes = matrix[:, None], "runs tasks"
        if matrix.ndim != 2 or axes not in ("runs tasks", "tasks runs"):
            raise ValueError(
                f"scores of shape {matrix.shape}: name the axes of a matrix, axes='runs tasks' or axes='tasks runs'"
            )
        matrix = matrix if axes == "tasks runs" else matrix.T
        tasks = {str(index): row for index, row in enumerate(matrix)}
    for name, runs in tasks.items():
        if runs.size == 0 or not np.isfinite(runs).all():
            raise ValueError(f"task {name!r}: scores must be finite and at least one, got {runs.tolist()}")
    return tasks


def probability_of_improvement(
    x: Scores | Sequence[float] | np.ndarray, y: Scores | Sequence[float] | np.ndarray, axes: str | None = None
) -> float:
    """P(X > Y): chance that a run of X scores higher than a run of Y, ties one half, averaged over tasks.

    Numbers of runs may differ between X and Y and between tasks (Mann-Whitney statistic per task).

    Raises:
        ValueError: X and Y have different tasks, or see `by_task`.
    """
    xs, ys = by_task(x, axes), by_task(y, axes)
    if xs.keys() != ys.keys():
        raise ValueError(
            f"probability_of_improvement: X has {len(xs)} tasks and Y has {len(ys)}; both need the same tasks "
            f"(only in one: {sorted(xs.keys() ^ ys.keys())}); check which axis counts the runs"
        )
    shares = []
    for name, runs in xs.items():
        gap = runs[:, None] - ys[name][None, :]
        shares.append(((gap > 0) + 0.5 * (gap == 0)).mean())
    return float(np.mean(shares))


def performance_profile(
    scores: Scores | Sequence[float] | np.ndarray, thresholds: Sequence[float], axes: str | None = None
) -> np.ndarray:
    """Share of runs that score above each threshold, averaged over tasks, "N"."""
    grid = np.asarray(thresholds, dtype=float)
    tasks = by_task(scores, axes)
    return np.mean([(runs[:, None] > grid[None, :]).mean(0) for runs in tasks.values()], axis=0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the given order. Source: Holm, Scand. J. Statistics 6 (1979)."""
    p = np.asarray(p_values, dtype=float)
    if p.size and not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"holm: p values must lie in [0, 1], got {p.tolist()}")
    order = np.argsort(p, kind="stable")
    steps = np.minimum(np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)), 1.0)
    adjusted = np.empty(p.size)
    adjusted[order] = steps
    return [float(v) for v in adjusted]
