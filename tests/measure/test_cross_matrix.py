"""Generalisation matrices and the split of a budget."""

import pytest

from gainstage.measure.curves.cross_matrix import Split, best_split, budget_frontier, cross_matrix, reward_density
from gainstage.measure.intervals import Estimate


def test_the_split_of_a_thousand():
    found = budget_frontier(1000, points=[0, 0.2, 0.6, 1])
    assert [(s.demonstrations, s.episodes) for s in found] == [(0, 1000), (20, 800), (60, 400), (100, 0)]


def test_nothing_is_spent_twice_and_little_is_left():
    for total in (7, 95, 1003.5):
        splits = budget_frontier(total, 10, 1.5, points=11)
        assert [s.share for s in splits] == pytest.approx([i / 10 for i in range(11)])
        for s in splits:
            cost = 10 * s.demonstrations + 1.5 * s.episodes
            assert cost <= total + 1e-9 and total - cost < 1.5 + (10 if s.share == 1 else 0)


@pytest.mark.parametrize("args", [{"total": 0}, {"total": 10, "cost_demo": -1}, {"total": 10, "points": 1},
                                  {"total": 10, "points": [0, 2]}])  # fmt: skip
def test_impossible_budgets_are_refused(args):
    with pytest.raises(ValueError, match="budget_frontier"):
        budget_frontier(**args)


def test_the_best_split_has_the_highest_lower_bound():
    splits = budget_frontier(100, points=3)
    success = [Estimate(0.5, 0.4, 0.6), Estimate(0.9, 0.3, 1.0), Estimate(0.48, 0.45, 0.51)]
    assert best_split(splits, success) == splits[2]
    with pytest.raises(ValueError, match="interval"):
        best_split([Split(0, 0, 1)], [Estimate(0.5)])


def test_a_matrix_with_its_gaps():
    matrix = cross_matrix(
        {("a", "a"): [0.8, 0.9], ("a", "b"): [0.3, 0.5], ("b", "a"): [0.6, 0.6], ("b", "b"): [0.7, 0.7]}
    )
    assert matrix.settings == ("a", "b") and matrix.value("a", "a") == pytest.approx(0.85)
    assert matrix.gap("a", "b") == pytest.approx(0.3) and matrix.gap("a", "a") == 0
    assert matrix.transfer == pytest.approx(0.5) and "| a | 0.850 | 0.400 (+0.300) |" in matrix.markdown()
    with pytest.raises(ValueError, match="missing"):
        cross_matrix({("a", "b"): [1.0]})


def test_reward_density():
    assert reward_density([0, 0.25, 0.25, 0.5]) == 0.75 and reward_density([1.0], turns=4) == 0.25
    with pytest.raises(ValueError, match="no turn"):
        reward_density([])
