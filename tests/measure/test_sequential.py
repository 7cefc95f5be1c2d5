"""Evidence that may be looked at after every seed: the formula by integration, the error rate by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from gainstage.measure import sequential as q
from gainstage.measure.intervals import paired_difference

LOOKS = np.arange(1, 21)


def t_paths(rng, effect, rows, correlation=0.0, arms=1, looks=LOOKS):
    """t statistics after each pair, "rows arms looks"; arms share the baseline's noise."""
    shared = rng.normal(size=(rows, 1, looks.size))
    own = rng.normal(size=(rows, arms, looks.size))
    d = effect + math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own
    mean = d.cumsum(-1) / looks
    with np.errstate(divide="ignore", invalid="ignore"):
        sd = np.sqrt((np.cumsum(d**2, -1) - looks * mean**2) / (looks - 1))
        return mean / (sd / np.sqrt(looks))


def crossed(t, alpha):
    """Whether a path ever reaches the boundary."""
    bars = np.array([q.critical_t(int(n), alpha) for n in LOOKS])
    return (np.abs(np.nan_to_num(t)) >= bars).any(-1)


@pytest.mark.parametrize(("t", "n"), [(0.0, 2), (2.5, 4), (-3.0, 9), (7.0, 20)])
def test_evidence_is_the_t_likelihood_ratio_averaged_over_the_prior(t, n):
    prior = stats.norm(0, math.sqrt(q.EFFECT_VARIANCE))
    mixed, _ = integrate.quad(
        lambda effect: prior.pdf(effect) * stats.nct.pdf(t, n - 1, effect * math.sqrt(n)), -12, 12, limit=400
    )
    assert q.log_evidence(t, n) == pytest.approx(math.log(mixed / stats.t.pdf(t, n - 1)), abs=1e-4)


@given(st.floats(-50, 50), st.integers(2, 60))
def test_evidence_is_symmetric_and_grows_with_t(t, n):
    assert q.log_evidence(t, n) == q.log_evidence(-t, n)
    assert q.log_evidence(abs(t) + 1, n) > q.log_evidence(abs(t), n)
    assert q.log_evidence(math.inf, n) >= q.log_evidence(t, n)


def test_one_value_says_nothing():
    assert q.log_evidence(5.0, 1) == 0.0 and q.critical_t(1, 0.05) == math.inf


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 3, 0.01])
def test_the_boundary_is_where_the_evidence_reaches_one_over_alpha(alpha):
    first = q.earliest_decision(alpha)
    assert q.critical_t(first - 1, alpha) == math.inf
    assert q.log_evidence(math.inf, first - 1) <= -math.log(alpha)
    for n in (first, 7, 20, 100):
        bar = q.critical_t(n, alpha)
        assert q.log_evidence(bar, n) == pytest.approx(-math.log(alpha))
        assert bar > stats.t.ppf(1 - alpha / 2, n - 1), "looking again and again has its price"
    assert q.earliest_decision(0.05) == 4


@pytest.mark.parametrize("n", [3, 6, 20])
def test_the_mean_evidence_is_one_without_an_effect(n):
    mean, _ = integrate.quad(lambda t: 2 * math.exp(q.log_evidence(t, n)) * stats.t.pdf(t, n - 1), 0, math.inf)
    assert mean == pytest.approx(1, abs=1e-6)


def test_false_decisions_under_optional_stopping_stay_below_five_percent():
    t = t_paths(np.random.default_rng(1), 0.0, 20_000)
    naive = (2 * stats.t.sf(np.abs(t[..., 2:]), LOOKS[2:] - 1) <= 0.05).any(-1).mean()
    assert naive > 0.2, "the fixed-sample test, looked at 18 times"
    assert 0.01 < crossed(t, 0.05).mean() <= 0.05


def ever_decided(d):
    """Share of rows "rows looks" that are decided at some look."""
    n = np.arange(1, d.shape[1] + 1)
    mean = d.cumsum(1) / n
    with np.errstate(divide="ignore", invalid="ignore"):
        t = mean / np.sqrt((np.cumsum(d**2, 1) - n * mean**2) / (n - 1) / n)
    return crossed(t, 0.05).mean()


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, size: rng.lognormal(0, 1, size),
        lambda rng, size: rng.beta(8, 1.5, size),
        lambda rng, size: rng.standard_t(3, size),
        lambda rng, size: np.where(rng.uniform(size=size) < 0.2, 0.1, 0.9) + rng.normal(0, 0.01, size),
        lambda rng, size: rng.binomial(50, 0.9, size) / 50 + rng.normal(0, 1e-6, size),
    ],
    ids=["lognormal", "near the ceiling", "heavy tails", "one run in five collapses", "coarse"],
)
def test_equal_arms_of_any_shape_are_decided_in_less_than_five_percent(draw):
    rng = np.random.default_rng(7)
    assert ever_decided(draw(rng, (4000, 20)) - draw(rng, (4000, 20))) <= 0.05


def test_lopsided_differences_are_decided_wrongly_more_often():
    """The stated limit: arms of different shape and equal mean. Student's interval, read once, errs there as well."""
    d = np.random.default_rng(8).exponential(size=(4000, 20)) - 1
    assert 0.08 < ever_decided(d) < 0.16
    once = 2 * stats.t.sf(np.abs(d.mean(1)) / (d.std(1, ddof=1) / math.sqrt(20)), 19) <= 0.05
    assert once.mean() > 0.06


def test_false_decisions_over_three_arms_stay_below_five_percent():
    t = t_paths(np.random.default_rng(2), 0.0, 20_000, correlation=0.5, arms=3)
    assert crossed(t, 0.05 / 3).any(-1).mean() <= 0.05
    assert crossed(t, 0.05).any(-1).mean() > crossed(t, 0.05 / 3).any(-1).mean()


def test_an_effect_is_found_and_a_larger_one_sooner():
    rng = np.random.default_rng(3)
    found = {effect: crossed(t_paths(rng, effect, 2000), 0.05).mean() for effect in (0.5, 1.0, 1.5)}
    assert found[0.5] < found[1.0] < found[1.5] and found[1.0] > 0.8 and found[1.5] > 0.99


def test_the_intervals_cover_at_all_looks_at_once():
    rng = np.random.default_rng(4)
    missed = 0
    for _ in range(400):
        got = q.sequential_difference(rng.normal(0.3, 1, 12), np.zeros(12))
        missed += not got.low <= 0.3 <= got.high
    assert missed / 400 <= 0.05


def test_interval_and_p_value_agree():
    rng = np.random.default_rng(5)
    seen = set()
    for _ in range(300):
        got = q.sequential_difference(rng.normal(0.8, 1, 9), np.zeros(9))
        assert got.excludes_zero == (got.p <= 0.05)
        seen.add(got.excludes_zero)
    assert seen == {True, False}


def test_it_is_wider_than_the_interval_read_once_and_has_the_same_centre():
    a, b = [0.61, 0.70, 0.66, 0.72, 0.69], [0.60, 0.64, 0.65, 0.66, 0.68]
    once, always = paired_difference(a, b), q.sequential_difference(a, b)
    assert always.value == once.value and always.sd == once.sd and always.n == 5
    assert always.low < once.low and always.high > once.high and always.p > once.p
    assert always.method == q.METHOD


def test_p_values_never_rise_and_do_not_depend_on_the_scale():
    d = np.random.default_rng(6).normal(1, 1, 15)
    p = q.anytime_p(d)
    assert p[0] == 1.0 and (np.diff(p) <= 0).all() and p[-1] < 0.05
    assert q.anytime_p(1000 * d, scale=1000) == pytest.approx(p)
    assert q.anytime_p(-d) == pytest.approx(p)


def test_few_or_equal_differences_decide_nothing_by_themselves():
    assert q.sequential_difference([0.9], [0.1]).low is None
    few = q.sequential_difference([0.9, 0.8, 0.7], [0.1, 0.1, 0.1])
    assert few.low is None and few.p > 0.05, "three pairs can never decide"
    flat = q.sequential_difference([0.5] * 6, [0.4] * 6)
    assert flat.low is None and flat.p == 1.0, "no spread is no proof of certainty"
    measured = q.sequential_difference([1.0] * 6, [0.0] * 6, noise=0.01, bounds=(-1, 1))
    assert measured.excludes_zero and measured.high == 1.0 and measured.low > 0.9
    same = q.sequential_difference([1.0] * 6, [1.0] * 6, noise=0.01, bounds=(-1, 1))
    assert same.low < 0 < same.high and same.p == 1.0
