"""Learning curves against any budget axis, read off at equal spend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gainstage.measure.intervals import mean_interval
from gainstage.measure.metrics import describe
from gainstage.measure.runs import read

POINTS = 41
LONGEST = 160


@dataclass(frozen=True)
class Curve:
    """Mean over seeds on a common grid with its interval (empty with one seed), and every seed's own points."""

    x: list[float]
    mean: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    seeds: dict[str, list[list[float]]] = field(default_factory=dict)
    """seed -> [x, y]."""


def points(rows: Iterable[Mapping[str, float]], metric: str, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Spend and value of the rows that have the metric, "N" each, spend strictly ascending (the last of equal counts).

    A row before the run's first charge on the axis stands at 0: the look before training is every curve's start.

    Raises:
        ValueError: spending went down along the curve.
    """
    found: list[tuple[float, float]] = []
    spent, charged = 0.0, False
    for row in rows:
        charged |= f"budget/{axis}" in row
        spent = spend = row.get(f"budget/{axis}", spent)
        if (value := read(row, metric)) is None:
            continue
        if found and spend < found[-1][0]:
            raise ValueError(f"curve of {metric}: budget/{axis} falls from {found[-1][0]} to {spend}")
        if found and spend == found[-1][0]:
            found.pop()
        found.append((float(spend), value))
    array = np.array(found if charged else [], dtype=float).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def value_at(rows: Iterable[Mapping[str, float]], metric: str, axis: str, spend: float) -> float | None:
    """The metric at `spend`, linear between measured points; None outside them: nothing is extrapolated."""
    x, y = points(rows, metric, axis)
    if x.size == 0 or not x[0] <= spend <= x[-1]:
        return None
    return float(np.interp(spend, x, y))


def reach(curves: Iterable[Sequence[Mapping[str, float]]], metric: str, axis: str) -> float | None:
    """The largest spend that every curve reaches, None where one of them has no point or starts later."""
    ends, starts = [], []
    for rows in curves:
        x, _ = points(rows, metric, axis)
        if x.size == 0:
            return None
        starts.append(x[0])
        ends.append(x[-1])
    return float(min(ends)) if ends and max(starts) <= min(ends) else None


def learning_curve(
    curves: Mapping[int, Sequence[Mapping[str, float]]], metric: str, axis: str, level: float = 0.95
) -> Curve | None:
    """One arm's curve over the spend that all its seeds share; None where nothing can be drawn.

    Args:
        curves: seed -> rows.
    """
    series = {seed: points(rows, metric, axis) for seed, rows in curves.items()}
    series = {seed: (x, y) for seed, (x, y) in series.items() if x.size}
    if not series:
        return None
    start, end = max(x[0] for x, _ in series.values()), min(x[-1] for x, _ in series.values())
    own = {str(seed): _thinned(x, y) for seed, (x, y) in sorted(series.items())}
    if end <= start:
        return Curve([], [], seeds=own)
    measured = np.unique(np.concatenate([x for x, _ in series.values()]))
    measured = measured[(measured >= start) & (measured <= end)]
    grid = measured if measured.size <= POINTS else np.linspace(start, end, POINTS)
    values = np.array([np.interp(grid, x, y) for x, y in series.values()])
    mean = values.mean(0).tolist()
    if len(series) < 2:
        return Curve(grid.tolist(), mean, seeds=own)
    bounds = describe(metric).bounds
    band = [mean_interval(column, level, bounds) for column in values.T]
    low = [e.value if e.low is None else e.low for e in band]
    high = [e.value if e.high is None else e.high for e in band]
    return Curve(grid.tolist(), mean, low, high, own)


def _thinned(x: np.ndarray, y: np.ndarray) -> list[list[float]]:
    if x.size <= LONGEST:
        return [x.tolist(), y.tolist()]
    grid = np.linspace(x[0], x[-1], LONGEST)
    return [grid.tolist(), np.interp(grid, x, y).tolist()]
