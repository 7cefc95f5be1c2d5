"""Differences to verdicts: Holm over the arms, what is too little to say, what more seeds would not change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gainstage.measure import outcome
from gainstage.measure.metrics import Metric, describe
from gainstage.measure.outcome import Comparison
from gainstage.measure.statistics import holm

FEWEST_SEEDS = 3


@dataclass(frozen=True)
class Plan:
    """How differences become verdicts. Arguments of `compare`; `comparisons` is the number of arms that are judged."""

    metric: str
    better: str
    level: float
    comparisons: int
    sequential: bool
    effect: float | None


def judge(comparisons: Sequence[Comparison], plan: Plan) -> list[Comparison]:
    """Verdicts after Holm over all comparisons that have a p value."""
    tested = {c.arm: c.difference.p for c in comparisons if c.difference is not None and c.difference.p is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    judged = [
        c if c.verdict == outcome.INCOMPARABLE else _verdict(c, adjusted.get(c.arm), plan.better, plan.level)
        for c in comparisons
    ]
    if plan.effect is not None:
        judged = [_within(c, plan.effect, describe(plan.metric)) for c in judged]
    return _decided(judged, plan) if plan.sequential else judged


def _verdict(c: Comparison, p: float | None, better: str, level: float) -> Comparison:
    d = c.difference
    assert d is not None, "a comparable arm has a difference"
    if c.reason:
        return replace(c, verdict=outcome.CONTAMINATED, p_holm=p)
    if d.n == 1:
        return replace(c, reason="one seed gives no interval")
    if d.n < FEWEST_SEEDS:
        return replace(c, p_holm=p, reason=f"{d.n} seeds are too few for a verdict; run at least {FEWEST_SEEDS}")
    if d.sd == 0 and d.low is None:
        return replace(c, p_holm=p, reason="no spread over seeds: no interval")
    if d.low is None or p is None:
        return replace(c, p_holm=p, reason=f"{d.n} seeds are too few to be decided at every look; run more")
    if p <= 1 - level:
        risen = d.low > 0 if d.excludes_zero else d.value > 0
        won = risen == (better == "higher")
        return replace(c, p_holm=p, verdict=outcome.GAIN if won else outcome.LOSS)
    reason = "its interval alone leaves out zero, but not after Holm's correction" if d.excludes_zero else ""
    return replace(c, p_holm=p, reason=reason)


def _within(c: Comparison, effect: float, shown: Metric) -> Comparison:
    """Says where an interval shows that a difference, if there is one, is smaller than what matters."""
    d = c.difference
    if d is None or d.low is None or d.high is None or max(-d.low, d.high) >= effect:
        return c
    size = shown.change(effect).lstrip("+") + (f" {shown.change_unit}" if shown.change_unit else "")
    if c.verdict in (outcome.GAIN, outcome.LOSS):
        return replace(c, reason=f"real, but smaller than the {size} that were said to matter")
    if c.verdict == outcome.NONE:
        return replace(c, reason=f"any difference is smaller than {size}", settled=True)
    return c


def _decided(comparisons: Sequence[Comparison], plan: Plan) -> list[Comparison]:
    """Marks what further seeds would not change, and after how many seeds a gain or a loss stood."""
    looks = {c.arm: c.difference.p_after for c in comparisons if c.difference is not None}
    found: dict[str, int] = {}
    for n, row in enumerate(zip(*looks.values(), strict=False), start=1):
        for arm, p in zip(looks, holm(row), strict=True):
            if p <= 1 - plan.level:
                found.setdefault(arm, n)
    return [
        replace(c, settled=True, decided_after=found.get(c.arm)) if c.verdict != outcome.NONE else c
        for c in comparisons
    ]
