"""How many seeds does a comparison need? From the spread of finished pairs, or from a spread that is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from gainstage.measure.intervals import minimum_detectable_effect, runs_needed
from gainstage.measure.metrics import describe
from gainstage.measure.outcome import Report

SEEDS = (3, 5, 10, 20)
SAFE = 0.8
LIMIT = 10_000


@dataclass(frozen=True)
class SeedPlan:
    """What one arm's comparison with the baseline can find. Effects and spreads are in the metric's own unit."""

    arm: str
    metric: str
    sd: float | None
    """Standard deviation of one paired difference; None where it is not known, then `reason` says why."""
    pairs: int | None
    """Finished pairs that it comes from; None where it was given."""
    sd_safe: float | None
    """The true standard deviation is below this with a confidence of 80 %: few pairs say little about it."""
    alpha: float
    power: float
    detectable: dict[int, float]
    """Seeds -> smallest true difference that is found with that power."""
    effect: float | None = None
    seeds: int | None = None
    """Seeds that find `effect` with that power; None where no effect was asked for or more than 10,000 are needed."""
    seeds_safe: int | None = None
    """The same at `sd_safe`."""
    reason: str = ""


def plan_seeds(
    sd: float,
    pairs: int | None = None,
    *,
    effect: float | None = None,
    comparisons: int = 1,
    level: float = 0.95,
    power: float = 0.8,
    seeds: Sequence[int] = SEEDS,
    arm: str = "",
    metric: str = "pass@1",
) -> SeedPlan:
    """Power of the two-sided paired t test at the strictest level that Holm may ask of one of the arms.

    Args:
        sd: standard deviation of one paired difference.
        pairs: finished pairs that `sd` was estimated from.
        effect: smallest difference that matters.
        comparisons: arms that are compared with the baseline.

    Raises:
        ValueError: a spread or an effect that is not positive, or an effect of a rate above 1 (0.02 is two points).
    """
    if not (sd > 0 and math.isfinite(sd)):
        raise ValueError(f"sd must be positive, got {sd}: without spread there is nothing to plan")
    check_effect(effect, metric)
    alpha = (1 - level) / comparisons
    safe = None if pairs is None else sd_limit(sd, pairs)
    found = {n: minimum_detectable_effect(sd, n, alpha, power) for n in seeds}
    return SeedPlan(
        arm=arm, metric=metric, sd=sd, pairs=pairs, sd_safe=safe, alpha=alpha, power=power,
        detectable={n: value for n, value in found.items() if value is not None}, effect=effect,
        seeds=_needed(effect, sd, alpha, power), seeds_safe=_needed(effect, safe, alpha, power),
    )  # fmt: skip


def check_effect(effect: float | None, metric: str) -> None:
    """Raises ValueError: the smallest difference that matters is not positive, or no difference of rates."""
    if effect is not None and not (effect > 0 and math.isfinite(effect)):
        raise ValueError(f"effect must be positive, got {effect}")
    if effect is not None and describe(metric).rate and effect > 1:
        raise ValueError(f"effect is a difference of rates, at most 1: 0.02 is two points, got {effect:g}")


def sd_limit(sd: float, pairs: int, confidence: float = SAFE) -> float | None:
    """What the true standard deviation does not exceed, with that confidence, if `pairs` normal values show `sd`.

    Source: Browne, Statistics in Medicine 14 (1995): plan with this limit, not with a pilot's own estimate.
    """
    if pairs < 2:
        return None
    return sd * math.sqrt((pairs - 1) / float(special.chdtri(pairs - 1, confidence)))


def plan_from(report: Report, effect: float | None = None) -> list[SeedPlan]:
    """A plan for every arm of a finished comparison, or of a pilot."""
    out = []
    for c in report.comparisons:
        d = c.difference
        if d is not None and d.sd:
            plan = plan_seeds(
                d.sd, d.n, effect=effect, comparisons=len(report.comparisons), level=report.level, arm=c.arm,
                metric=report.metric,
            )  # fmt: skip
        else:
            why = f"not comparable: {c.reason}" if d is None else "no spread" if d.n > 1 else "one pair shows no spread"
            plan = SeedPlan(c.arm, report.metric, None, d.n if d else 0, None, 1 - report.level, 0.8, {}, reason=why)
        out.append(plan)
    return out


def _needed(effect: float | None, sd: float | None, alpha: float, power: float) -> int | None:
    if effect is None or sd is None:
        return None
    try:
        return runs_needed(effect, sd, alpha, power, LIMIT)
    except ValueError:
        return None
