import pytest

from gainstage.measure.curves.learning import POINTS, learning_curve, points, reach, value_at


def rows(pairs, metric="eval/t/pass@1", axis="generated_tokens"):
    return [{f"budget/{axis}": x, metric: y} for x, y in pairs]


def test_values_between_points_are_linear_and_none_outside():
    curve = rows([(0, 0.0), (10, 0.5), (30, 0.7)])
    assert value_at(curve, "eval/*/pass@1", "generated_tokens", 20) == pytest.approx(0.6)
    assert value_at(curve, "eval/t/pass@1", "generated_tokens", 30) == 0.7
    assert value_at(curve, "eval/t/pass@1", "generated_tokens", 31) is None
    assert value_at(curve, "eval/t/pass@1", "seconds", 5) is None


def test_rows_without_the_metric_or_with_holes_are_left_out():
    curve = [*rows([(0, 0.1)]), {"budget/generated_tokens": 5, "loss": 1.0}, *rows([(9, float("nan")), (10, 0.3)])]
    x, y = points(curve, "eval/*/pass@1", "generated_tokens")
    assert x.tolist() == [0, 10] and y.tolist() == [0.1, 0.3]


def test_the_last_of_equal_spends_counts_and_spend_never_falls():
    x, y = points(rows([(0, 0.1), (5, 0.2), (5, 0.4)]), "eval/*/pass@1", "generated_tokens")
    assert x.tolist() == [0, 5] and y.tolist() == [0.1, 0.4]
    with pytest.raises(ValueError, match="falls"):
        points(rows([(5, 0.1), (4, 0.2)]), "eval/*/pass@1", "generated_tokens")


def test_the_look_before_training_stands_at_nothing_spent():
    curve = [{"eval/t/pass@1": 0.2}, {"budget/generated_tokens": 5, "loss": 1.0}, *rows([(10, 0.6)])]
    x, y = points(curve, "eval/*/pass@1", "generated_tokens")
    assert x.tolist() == [0, 10] and y.tolist() == [0.2, 0.6]
    assert value_at(curve, "eval/*/pass@1", "generated_tokens", 5) == pytest.approx(0.4)
    assert points(curve, "eval/*/pass@1", "seconds")[0].size == 0, "an axis that was never charged has no curve"


def test_training_and_evaluation_metrics_of_one_name_stay_apart():
    curve = [{"budget/seconds": 0, "reward/mean": 9.0, "eval/t/reward/mean": 1.0}]
    assert points(curve, "reward/mean", "seconds")[1].tolist() == [9.0]
    assert points(curve, "eval/*/reward/mean", "seconds")[1].tolist() == [1.0]


def test_reach_is_the_shortest_run():
    a, b = rows([(0, 0), (10, 1)]), rows([(0, 0), (7, 1)])
    assert reach([a, b], "eval/*/pass@1", "generated_tokens") == 7
    assert reach([a, rows([(20, 0), (30, 1)])], "eval/*/pass@1", "generated_tokens") is None
    assert reach([a, []], "eval/*/pass@1", "generated_tokens") is None


def test_the_band_covers_what_all_seeds_share():
    curve = learning_curve({0: rows([(0, 0.0), (10, 0.4)]), 1: rows([(0, 0.2), (8, 0.6)])}, "eval/*/pass@1",
                           "generated_tokens")  # fmt: skip
    assert curve.x == [0, 8] and curve.mean == pytest.approx([0.1, 0.46])
    assert curve.low[0] == 0.0 and curve.high[1] == 1.0
    assert curve.seeds["0"] == [[0, 10], [0.0, 0.4]]


def test_one_seed_has_no_band_and_long_curves_are_thinned():
    long = rows([(i, i / 1000) for i in range(1001)])
    curve = learning_curve({3: long}, "eval/*/pass@1", "generated_tokens")
    assert not curve.low and len(curve.x) == POINTS and len(curve.seeds["3"][0]) <= 160
    assert curve.mean[-1] == pytest.approx(1.0)
    assert learning_curve({0: []}, "eval/*/pass@1", "generated_tokens") is None
