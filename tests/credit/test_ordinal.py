"""GOPO: the ladder, ties, scale, invariance under any increasing map."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.helpers_credit import batch_of

from gainstage.credit.group.ordinal import Ordinal, ordinal


def ladder(r: list[float], keys: list[int] | None = None, **settings) -> list[float]:
    return ordinal(torch.tensor(r), torch.tensor(keys or [0] * len(r)), **settings).tolist()


@pytest.mark.parametrize(
    ("r", "want"),
    [
        ([0.1, 0.9, 0.5, 0.3], [-2, 2, 0.666667, -0.666667]),
        ([3, 3, 1, 7.0], [0, 0, -2, 2]),
        ([0, 5.0], [-2, 2]),
        ([1, 1, 1, 1.0], [0, 0, 0, 0]),
        ([10, 0.1, 0.2, 0.3], [2, -2, -0.666667, 0.666667]),
        ([1, 0, 0, 0.0], [2, -0.666667, -0.666667, -0.666667]),
        ([1, 1, 1, 0.0], [0.666667, 0.666667, 0.666667, -2]),
    ],
)
def test_worked_numbers(r: list[float], want: list[float]):
    assert ladder(r) == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize(("size", "rms"), [(2, 2.0), (4, 1.490712), (8, 1.309307), (200, 1.1605)])
def test_the_spread_of_the_ladder_and_the_unit_scale(size: int, rms: float):
    r = torch.arange(float(size)).tolist()
    steps = torch.tensor(ladder(r))
    assert steps.square().mean().sqrt().item() == pytest.approx(rms, abs=1e-4)
    assert torch.tensor(ladder(r, scale="unit")).square().mean().sqrt().item() == pytest.approx(1.0, abs=1e-5)


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=8))
def test_any_increasing_map_changes_nothing_and_the_sum_is_zero(values: list[int]):
    r = [v / 4 for v in values]
    base = ladder(r)
    assert ladder([math.exp(x) for x in r]) == pytest.approx(base, abs=1e-6)
    assert ladder([x**3 + 2 * x for x in r]) == pytest.approx(base, abs=1e-6)
    assert sum(base) == pytest.approx(0.0, abs=1e-5)


def test_rounding_is_a_tie():
    assert ladder([0.1 + 0.2, 0.3, 0.9]) == pytest.approx([-1, -1, 2], abs=1e-6)
    assert ladder([0.1 + 0.2, 0.3]) == [0.0, 0.0]


def test_nan_is_lowest_and_a_group_of_nan_or_of_one_is_zero():
    nan = math.nan
    assert ladder([nan, 0.5, 0.2]) == pytest.approx([-2, 2, 0], abs=1e-6)
    assert ladder([nan, nan, 3.0], [0, 0, 1]) == [0.0, 0.0, 0.0]


def test_groups_have_their_own_ladder_and_greedy_rows_none():
    greedy = torch.tensor([False, False, True, False, False])
    assert ladder([0, 1, 9, 5, 4.0], [0, 0, 0, 1, 1], greedy=greedy) == [-2.0, 2.0, 0.0, 2.0, -2.0]


def test_ties_by_order_need_more_than_two_values():
    assert ladder([3, 3, 1, 7.0], ties="order") == pytest.approx([0.666667, -0.666667, -2, 2], abs=1e-6)
    with pytest.raises(ValueError, match="ties='average'"):
        ladder([1, 0, 1, 0.0], ties="order")


def test_the_component_and_its_counts():
    batch = batch_of([1] * 4, [0.1, 0.9, 0.5, 0.3])
    assert Ordinal().assign(batch)["advantage"].tolist() == pytest.approx([-2, 2, 0.666667, -0.666667], abs=1e-6)
    tight = batch_of([1] * 4, [0.5, 0.501, 0.5, 0.9], [0, 0, 1, 1])
    assert Ordinal().statistics(tight)["groups/small_spread"] == 0.5
    with pytest.raises(ValueError, match="samples must be 2 or more"):
        Ordinal().check_plan(1)
    with pytest.raises(ValueError, match="low must be below high"):
        Ordinal(low=2.0, high=2.0)
