"""Aggregates and intervals against scipy's formulas, published numbers and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gainstage.measure import statistics as s

scores = st.lists(st.floats(-100, 100), min_size=1, max_size=12)


@given(scores)
def test_iqm_is_scipys_quarter_trimmed_mean(values):
    assert s.iqm(values) == pytest.approx(stats.trim_mean(values, 0.25), abs=1e-9)


def test_iqm_by_hand_and_without_values():
    assert s.iqm([100, 1, 2, 3]) == 2.5
    with pytest.raises(ValueError, match="no values"):
        s.iqm([])


def test_mean_interval_is_students():
    values = [0.2, 0.5, 0.3, 0.6]
    got = s.mean_interval(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (got.low, got.high) == pytest.approx((low, high))
    assert s.mean_interval([0.0, 0.9], bounds=(0, 1)).low == 0.0


@pytest.mark.parametrize("values", [[0.4], [0.3, 0.3, 0.3], [0.1 + 0.2, 0.3, 0.3]])
def test_no_interval_from_one_run_or_without_spread(values):
    got = s.mean_interval(values)
    assert got.low is None and got.high is None and not got.excludes_zero


def test_paired_difference_is_scipys_paired_t():
    a, b = [0.61, 0.70, 0.66, 0.72, 0.69], [0.60, 0.64, 0.65, 0.66, 0.68]
    got, want = s.paired_difference(a, b), stats.ttest_rel(a, b)
    assert got.p == pytest.approx(want.pvalue)
    assert (got.low, got.high) == pytest.approx(tuple(want.confidence_interval(0.95)))
    assert got.sd == pytest.approx(np.std(np.subtract(a, b), ddof=1))


def test_pairing_removes_what_seeds_share():
    a, b = [0.1, 0.5, 0.9], [0.05, 0.44, 0.86]
    assert s.paired_difference(a, b).excludes_zero
    assert stats.ttest_ind(a, b).pvalue > 0.5


def test_paired_difference_of_one_pair_has_no_interval():
    got = s.paired_difference([0.9], [0.1])
    assert got.low is None and got.p is None and got.value == pytest.approx(0.8)


def test_equal_differences_get_no_interval_of_width_zero():
    bare = s.paired_difference([1.0, 1.0, 1.0], [0.9, 0.9, 0.9])
    assert bare.low is None and bare.p is None
    measured = s.paired_difference([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], noise=0.01, bounds=(-1, 1))
    half = stats.t.ppf(0.975, 2) * 0.01 / math.sqrt(3)
    assert measured.low == pytest.approx(1 - half) and measured.high == 1.0 and measured.excludes_zero
    same = s.paired_difference([0.5, 0.6], [0.5, 0.6])
    assert same.p == 1.0 and not same.excludes_zero


def test_paired_difference_refuses_what_does_not_pair():
    with pytest.raises(ValueError, match="do not pair"):
        s.paired_difference([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="finite"):
        s.paired_difference([1, math.nan], [1, 2])


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=8), st.floats(-3, 3))
def test_paired_difference_is_antisymmetric_and_shift_invariant(pairs, shift):
    a, b = zip(*pairs, strict=True)
    forth, back = s.paired_difference(a, b), s.paired_difference(b, a)
    assert forth.value == pytest.approx(-back.value)
    if forth.low is not None:
        assert forth.low == pytest.approx(-back.high)
        moved = s.paired_difference([x + shift for x in a], [y + shift for y in b])
        if forth.sd > 1e-6:
            assert moved.low == pytest.approx(forth.low, abs=1e-6)


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(0, 25, 0, 0.133), (0, 50, 0, 0.071), (10, 10, 0.722, 1), (18, 500, 0.0229, 0.0562)],
)
def test_wilson_keeps_width_at_the_ends(right, n, low, high):
    got = s.wilson(right, n)
    assert (got.low, got.high) == pytest.approx((low, high), abs=5e-4)
    assert got.high - got.low > 0.01
    want = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert (got.low, got.high) == pytest.approx((want.low, want.high), abs=1e-12)


def test_standard_errors_of_two_tasks():
    assert s.standard_error_of_task_mean([0.05, 0.01]) == pytest.approx(0.02550, abs=5e-6)
    assert s.standard_error_of_weighted_mean([0.05, 0.01], [100, 900]) == pytest.approx(0.01030, abs=5e-6)
    assert s.standard_error_of_weighted_mean([0.05, 0.01], [7, 7]) == pytest.approx(
        s.standard_error_of_task_mean([0.05, 0.01])
    )


def test_clustered_rate_knows_that_answers_to_one_problem_hang_together():
    alike = [[1] * 16] * 10 + [[0] * 16] * 10
    apart = [[1, 0] * 8] * 20
    wide, narrow = s.clustered_rate(alike), s.clustered_rate(apart)
    assert wide.value == narrow.value == 0.5
    assert wide.low == pytest.approx(s.wilson(10, 20).low, abs=0.01)
    assert narrow.high - narrow.low == pytest.approx(s.wilson(160, 320).high - s.wilson(160, 320).low)
    nothing = s.clustered_rate([[0] * 4] * 25)
    assert nothing.low == 0 and nothing.high == pytest.approx(0.133, abs=5e-4)


def test_sampling_error_against_repeated_draws():
    rng = np.random.default_rng(0)
    rates = rng.uniform(0.1, 0.9, 40)
    draws = rng.binomial(16, rates, (4000, 40)) / 16
    one = [rng.binomial(1, p, 16) for p in rates]
    assert s.sampling_error(one) == pytest.approx(draws.mean(1).std(), rel=0.12)
    assert s.sampling_error([[1, 1], [1, 1]]) > 0


def test_probability_of_improvement_counts_ties_one_half():
    assert s.probability_of_improvement([1, 2, 2], [2, 2, 3]) == pytest.approx(2 / 9)
    assert s.probability_of_improvement([1, 2, 3], [1, 2, 3]) == 0.5


def test_probability_of_improvement_needs_its_axes_named():
    x, y = [[1, 10], [2, 20], [3, 30]], [[2, 0], [2, 0], [2, 0]]
    assert s.probability_of_improvement(x, y, axes="runs tasks") == pytest.approx(0.75)
    assert s.probability_of_improvement(np.transpose(x), np.transpose(y), axes="tasks runs") == pytest.approx(0.75)
    assert s.probability_of_improvement(x, y, axes="tasks runs") == pytest.approx(0.875)
    with pytest.raises(ValueError, match="name the axes"):
        s.probability_of_improvement(x, y)
    with pytest.raises(ValueError, match="same tasks"):
        s.probability_of_improvement(x, [[1, 2, 3]], axes="runs tasks")


def test_probability_of_improvement_with_unequal_run_counts():
    x = {"a": [1, 2, 3], "b": [5]}
    y = {"a": [2, 2], "b": [1, 5, 9, 5]}
    assert s.probability_of_improvement(x, y) == pytest.approx((0.5 + 0.5) / 2)
    mann_whitney = stats.mannwhitneyu([1, 2, 3, 9], [2, 2, 5]).statistic / 12
    assert s.probability_of_improvement([1, 2, 3, 9], [2, 2, 5]) == pytest.approx(mann_whitney)


@given(scores, scores)
def test_probabilities_of_improvement_sum_to_one(x, y):
    assert s.probability_of_improvement(x, y) + s.probability_of_improvement(y, x) == pytest.approx(1)


def test_performance_profile():
    got = s.performance_profile({"a": [0, 1], "b": [1, 1, 2, 3]}, [0, 1, 2.5])
    assert got == pytest.approx([(0.5 + 1) / 2, (0 + 0.5) / 2, (0 + 0.25) / 2])


def test_holm_by_hand():
    assert s.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert s.holm([0.9, 0.8]) == [1.0, 1.0]
    assert s.holm([0.2]) == [0.2]
    assert s.holm([]) == []
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        s.holm([math.nan])


def test_holm_and_power_against_statsmodels():
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    weights = pytest.importorskip("statsmodels.stats.power")
    p = np.random.default_rng(1).uniform(size=9) ** 3
    assert s.holm(p) == pytest.approx(multitest.multipletests(p, method="holm")[1])
    for n, d in ((3, 0.5), (5, 1.0), (12, 0.8)):
        assert s.power(d, 1.0, n) == pytest.approx(weights.TTestPower().power(d, n, 0.05), abs=1e-6)
    for n in (3, 5, 20):
        solved = weights.TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8)
        assert s.minimum_detectable_effect(1.0, n) == pytest.approx(solved, rel=1e-4)
    for effect in (0.4, 1.0, 2.0):
        needed = math.ceil(weights.TTestPower().solve_power(effect_size=effect, alpha=0.05, power=0.8) - 1e-9)
        assert s.runs_needed(effect, 1.0) == needed


def test_intervals_of_rates_and_means_against_statsmodels():
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    weight = pytest.importorskip("statsmodels.stats.weightstats")
    for right, n in ((0, 9), (3, 7), (40, 128), (12, 12)):
        got = s.wilson(right, n, 0.9)
        assert (got.low, got.high) == pytest.approx(
            proportion.proportion_confint(right, n, 0.1, method="wilson"), abs=1e-12
        )
    values = np.random.default_rng(2).normal(3, 2, 7)
    described = weight.DescrStatsW(values)
    got = s.mean_interval(values)
    assert (got.low, got.high) == pytest.approx(described.tconfint_mean())
    pair = s.paired_difference(values, np.full(7, 2.0))
    assert pair.p == pytest.approx(described.ttest_mean(2.0)[1])


def test_power_and_its_inverses():
    assert s.power(1.0, 1.0, 10) == pytest.approx(0.8031, abs=1e-4)
    assert s.power(0.0, 1.0, 7) == pytest.approx(0.05, abs=1e-9)
    assert s.power(0.3, 0.01, 5) == pytest.approx(1.0)
    effect = s.minimum_detectable_effect(0.02, 5)
    assert s.power(effect, 0.02, 5) == pytest.approx(0.8, abs=1e-6)
    assert s.minimum_detectable_effect(0.02, 1) is None
    assert s.runs_needed(1.0, 1.0) == 10
    n = s.runs_needed(0.03, 0.05)
    assert s.power(0.03, 0.05, n) >= 0.8 > s.power(0.03, 0.05, n - 1)
    with pytest.raises(ValueError, match="more than"):
        s.runs_needed(1e-6, 1.0, limit=100)


def test_bootstrap_resamples_within_strata():
    apart = s.stratified_bootstrap([np.array([0.0, 0.1]), np.array([10.0, 10.1])], np.mean, replicates=200)
    assert (apart.low, apart.high) == pytest.approx((5.0, 5.1)), "never two runs of the same stratum more"
    equal = s.stratified_bootstrap([np.ones(4), np.ones(4)], np.mean, replicates=200)
    assert equal.value == 1.0 and equal.low is None and equal.high is None, "no claim of certainty"
    assert s.stratified_bootstrap([np.array([0.3])]) is None
    with pytest.raises(ValueError, match="shape"):
        s.stratified_bootstrap([np.zeros((2, 2, 2))])


def test_bootstrap_matches_scipys_percentile_interval():
    values = np.random.default_rng(3).normal(size=30)
    got = s.stratified_bootstrap([values], np.mean, replicates=8000)
    want = stats.bootstrap((values,), np.mean, method="percentile", rng=1).confidence_interval
    assert (got.low, got.high) == pytest.approx((want.low, want.high), abs=0.02)
    again = s.stratified_bootstrap([values], np.mean, replicates=8000)
    assert again == got


def test_bootstrap_over_problems_is_wider_than_over_runs_alone():
    rng = np.random.default_rng(4)
    difficulty = rng.uniform(size=60)
    answers = (rng.uniform(size=(8, 60)) < difficulty).astype(float)
    nested = s.stratified_bootstrap([answers], np.mean, replicates=500)
    runs = s.stratified_bootstrap([answers.mean(1)], np.mean, replicates=500)
    assert nested.value == pytest.approx(runs.value)
    assert nested.high - nested.low > 1.2 * (runs.high - runs.low)


def test_paired_t_covers_where_the_percentile_bootstrap_does_not():
    rng = np.random.default_rng(5)
    pairs = rng.normal(size=(1500, 3))
    t = [s.paired_difference(row, [0, 0, 0]).excludes_zero for row in pairs]
    plain = [s.stratified_bootstrap([row], np.mean, replicates=99).excludes_zero for row in pairs[:300]]
    assert 0.03 <= np.mean(t) <= 0.07
    assert np.mean(plain) > 0.15
