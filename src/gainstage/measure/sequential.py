"""Looking after every seed without paying for it: evidence, p values and intervals that hold at any stopping time.

The fixed-sample t interval errs in 5 % of cases when it is read once. Read after every seed from 3 to 20, and stopped
at the first "significant" result, it errs in some 23 %. Here the likelihood of the t statistic is mixed over a normal
prior of the standardised effect. Under normal differences of any standard deviation the mixture is a martingale (in the
filtration of the values over the first one's size), so by Ville's inequality it ever passes 1 / alpha with probability
at most alpha, however often it is looked at and whenever one stops.

Normality matters as for every t interval of few values. Two arms of the same distribution, of whatever shape, have
symmetric differences and are told apart in less than 5 % (some 2 % or less in simulations of skewed, heavy-tailed,
coarse and collapsing runs). Where the arms differ in shape but not in mean, the first seeds may all miss what is rare:
exponential differences are decided wrongly in some 12 %, against 8 % for Student's interval read once at 20 seeds.

Sources: Robbins, Ann. Math. Statist. 41 (1970); Lai, Ann. Statist. 4 (1976); Wang and Ramdas, "Anytime-valid t-tests
and confidence sequences for Gaussian means with unknown variance", arXiv 2310.03722.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gainstage.measure.intervals import PairedDifference, no_spread, paired_difference

EFFECT_VARIANCE = 4.0
"""Variance of the prior of effect / sd. Decides soonest where the effect is 1.5 to 3 sd, which few seeds can show."""
METHOD = "t confidence sequence"


def log_evidence(t: float, n: int) -> float:
    """Log of the mixture likelihood ratio of `n` normal values with t statistic `t` (infinite: no spread).

    `B = (1 + n g)^(-1/2) ((1 + u) / (1 + u / (1 + n g)))^(n/2)` with `u = t^2 / (n - 1)` and `g` the prior's variance.
    One value says nothing: 0.

    Source: Wang and Ramdas, arXiv 2310.03722 (flat mixture of Lai's t process replaced by a Gaussian one).
    """
    if n < 2:
        return 0.0
    widened = 1 + n * EFFECT_VARIANCE
    if math.isinf(t):
        return (n - 1) / 2 * math.log(widened)
    u = t * t / (n - 1)
    return -0.5 * math.log(widened) + n / 2 * (math.log1p(u) - math.log1p(u / widened))


def critical_t(n: int, alpha: float) -> float:
    """Size of the t statistic at which the evidence reaches 1 / alpha; infinite where `n` values can never show it."""
    if n < 2:
        return math.inf
    widened = 1 + n * EFFECT_VARIANCE
    needed = math.exp(2 / n * (0.5 * math.log(widened) - math.log(alpha)))
    if needed >= widened:
        return math.inf
    return math.sqrt((n - 1) * (needed - 1) / (1 - needed / widened))


def earliest_decision(alpha: float) -> int:
    """Fewest pairs after which anything can be decided at error rate `alpha`: 4 at 5 %."""
    n = 2
    while math.isinf(critical_t(n, alpha)):
        n += 1
    return n


def anytime_p(differences: Sequence[float], noise: float = 0.0, scale: float = 1.0) -> np.ndarray:
    """p value after each difference, "R": 1 over the most evidence seen so far, at most 1.

    Holds at every stopping time, also one chosen by looking at other arms, so Holm's correction may be put on top.

    Args:
        differences: paired differences in the order in which the seeds were run.
        noise: standard deviation of one difference that measuring alone causes; stands in where there is no spread.
        scale: size of the scores that were subtracted, to tell no spread from rounding.
    """
    d = np.asarray(differences, dtype=float)
    evidence = [_evidence(d[:n], noise, scale) for n in range(1, d.size + 1)]
    return np.exp(-np.maximum(np.maximum.accumulate(evidence), 0.0))


def _evidence(d: np.ndarray, noise: float, scale: float) -> float:
    if d.size < 2:
        return 0.0
    sd, mean = float(d.std(ddof=1)), float(d.mean())
    if no_spread(sd, scale):
        sd = noise
    if sd <= 0:
        return 0.0
    return log_evidence(mean / (sd / math.sqrt(d.size)), d.size)


def sequential_difference(
    a: Sequence[float],
    b: Sequence[float],
    level: float = 0.95,
    noise: float = 0.0,
    bounds: tuple[float, float] | None = None,
) -> PairedDifference:
    """Mean of `a - b` with an interval and a p value that hold however often one has looked on the way.

    The interval is the intersection of those after 2, 3, ... pairs: all of them hold at once. Where they exclude each
    other (which the error rate allows), it is the last one. Arguments and errors as in `paired_difference`.
    """
    fixed = paired_difference(a, b, level, noise, bounds)
    scale = float(np.abs(np.concatenate((np.asarray(a, dtype=float), np.asarray(b, dtype=float)))).max())
    intervals = [one for n in range(2, fixed.n + 1) if (one := _interval(fixed.differences[:n], level, noise, scale))]
    p_after = tuple(float(p) for p in anytime_p(fixed.differences, noise, scale))
    bare = replace(fixed, low=None, high=None, method=METHOD, p=p_after[-1] if fixed.n > 1 else None, p_after=p_after)
    if not intervals:
        return bare
    low, high = max(one[0] for one in intervals), min(one[1] for one in intervals)
    if low > high:
        low, high = intervals[-1]
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return replace(bare, low=low, high=high)


def _interval(differences: Sequence[float], level: float, noise: float, scale: float) -> tuple[float, float] | None:
    d = np.asarray(differences)
    sd, critical = float(d.std(ddof=1)), critical_t(d.size, 1 - level)
    if no_spread(sd, scale):
        sd = noise
    if sd <= 0 or math.isinf(critical):
        return None
    half = critical * sd / math.sqrt(d.size)
    return float(d.mean()) - half, float(d.mean()) + half
