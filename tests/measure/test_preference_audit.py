"""The three corners, against worked numbers."""

import numpy as np
import pytest

from gainstage.measure.audits.preference_audit import (
    TradeOff,
    coverage,
    majority_amplification,
    representativeness,
    required_samples,
    robustness,
    sample_audit,
    sycophancy,
    trade_offs,
)

WEIGHTS = [0.7, 0.2, 0.1]


@pytest.mark.parametrize(
    ("args", "want"),
    [((0.01, 0.001, 1), (38005, 38005)), ((0.01, 0.001, 1000), (72544, 72_544_000)), ((0.05, 0.05, 1), (738, 738)),
     ((0.05, 0.05, 1000), (2120, 2_120_000))],
)  # fmt: skip
def test_required_samples(args, want):
    assert required_samples(*args) == want


def test_so_many_samples_keep_the_promise():
    """The bound is not tight, but it holds: 2,000 estimates of a coin miss eps far less often than delta."""
    each, _ = required_samples(0.05, 0.05)
    hits = np.random.default_rng(0).binomial(each, 0.5, 2000) / each
    assert (abs(hits - 0.5) > 0.05).mean() < 0.05


@pytest.mark.parametrize("args", [(0, 0.1, 1), (0.1, 1, 1), (0.1, 0.1, 0)])
def test_impossible_wishes_are_refused(args):
    with pytest.raises(ValueError, match="required_samples"):
        required_samples(*args)


def test_sample_audit_names_what_is_short():
    found = sample_audit({"a": 5000, "b": 100, "c": 0})
    assert found["a"] == "covered" and found["b"].startswith("short by factor 9.") and found["c"] == "no data"


def test_a_model_of_the_pool_collapses_onto_the_majority():
    groups = np.tile([[0.9], [0.6], [0.3]], (1, 40))
    found = representativeness([0.78] * 40, groups, WEIGHTS)
    assert (found.worst.value, found.population.value, found.pooled.value) == pytest.approx((0.48, 0.168, 0.0))
    assert found.groups == pytest.approx((0.12, 0.18, 0.48)) and found.collapsed
    assert found.worst.low == pytest.approx(0.48), "no pair differs from another"


def test_errors_are_taken_before_the_mean_over_groups():
    """Opposite errors of two groups cancel in the pool and nowhere else."""
    found = representativeness([0.5] * 30, [[0.9] * 30, [0.1] * 30], [0.5, 0.5])
    assert found.pooled.value == 0 and found.population.value == found.worst.value == pytest.approx(0.4)


def test_intervals_cover_the_truth_and_small_groups_have_none():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=(1, 400))
    found = representativeness(p[0] + rng.choice([-0.1, 0.1, 0.3], 400), p, [1.0])
    assert found.worst.low < 1 / 6 < found.worst.high and not found.collapsed
    few = representativeness([0.5] * 29, [[0.6] * 29], [1.0])
    assert few.worst.low is None and few.worst.value == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("q", "p", "w"),
    [([0.5], [[0.5]], [0.9]), ([0.5], [[0.5]], [0.5, 0.5]), ([], [[]], [1.0]), ([0.5], [[0.5], [0.5]], [1.2, -0.2])],
)
def test_wrong_shapes_and_weights_are_refused(q, p, w):
    with pytest.raises(ValueError, match="representativeness"):
        representativeness(q, p, w)


def test_robustness_takes_the_worst_of_each_pair_and_no_gains():
    found = robustness([0.8, 0.6], {"flips": [0.6, 0.6], "order": [0.8, 0.1], "better": [1.0, 1.0]})
    assert found.by == pytest.approx({"flips": 0.1, "order": 0.25, "better": 0.0})
    assert found.mean == pytest.approx((0.2 + 0.5) / 6) and found.worst == pytest.approx((0.2 + 0.5) / 2)
    assert robustness([0.5], {"none": [0.5]}).worst == 0
    with pytest.raises(ValueError, match="at least one"):
        robustness([0.5], {})


def test_coverage_of_a_rule_table():
    assert coverage([(0, 1), (0, 1), (1, 1)], 2) == (4, 2)
    assert coverage([], 6) == (64, 0)
    with pytest.raises(ValueError, match="2 entries"):
        coverage([(0, 2)], 2)


def test_dominated_arms_are_marked():
    rows = [TradeOff("pooled", 0.5, 0.1, 1), TradeOff("per group", 0.2, 0.2, 3), TradeOff("waste", 0.5, 0.2, 3),
            TradeOff("twin", 0.5, 0.1, 1)]  # fmt: skip
    assert {row.arm: row.dominated for row in trade_offs(rows)} == {
        "pooled": False, "per group": False, "waste": True, "twin": False,
    }  # fmt: skip


def test_pathologies():
    assert sycophancy([True, True, False, True], [True, False, False, True]) == pytest.approx(0.25)
    assert majority_amplification([False] * 10, 0.3) == pytest.approx(-0.3)
    assert majority_amplification([True] * 3 + [False] * 7, 0.3) == pytest.approx(0.0)
    with pytest.raises(ValueError, match="minority_weight"):
        majority_amplification([True], 1.5)
