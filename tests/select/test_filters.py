"""Filters after the rollout: groups by accuracy and spread, answers by success."""

from __future__ import annotations

import math

import pytest
import torch
from tests.select.helpers_select import context, problems_of, trajectory

from gainstage.select.data.group_filter import GroupFilter, group_filter
from gainstage.select.data.signals import signal, signals
from gainstage.select.data.success_filter import SuccessFilter, success_filter

R = torch.tensor([1, 0, 1, 1, 0, 0, 0.5, 0.5], dtype=torch.float64)
KEYS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, {0}),
        ({"spread": False}, {0, 1, 2, 3}),
        ({"spread": False, "lo": 0.0, "hi": 1.0}, {0, 3}),
        ({"spread": False, "hi": 1.0}, {0, 2, 3}),
        ({"spread": False, "lo": 0.5}, {1}),
    ],
)
def test_groups_by_band_and_spread(settings: dict, kept: set[int]):
    keep = group_filter(R, KEYS, **settings)
    assert {int(k) for k in KEYS[keep]} == kept
    assert keep.tolist() == [int(k) in kept for k in KEYS]


def test_rounding_is_no_spread_and_missing_verdicts_take_no_part():
    r = torch.tensor([0.1 + 0.2, 0.3, math.nan, 1.0, 0.0, math.nan], dtype=torch.float64)
    assert group_filter(r, torch.tensor([0, 0, 1, 1, 2, 3]), spread=True).tolist() == [False] * 6
    assert group_filter(r, torch.tensor([0, 0, 1, 1, 1, 3])).tolist() == [False, False, True, True, True, False]


def test_the_filter_looks_at_the_verdict_not_at_the_shaped_reward():
    """Equal verdicts with different length penalties are no mixed group."""
    shaped = [trajectory(0.9 - 0.1 * i, task_verdict=1.0, overlong=-0.1 * i) for i in range(3)]
    ctx = context([])
    assert GroupFilter().keep(shaped, ctx) == []
    assert ctx.logged == {"dropped/groups": 1.0}
    assert GroupFilter(signal="reward").keep(shaped, ctx) == shaped
    assert GroupFilter(signal="overlong").keep(shaped, ctx) == shaped


def test_greedy_rows_go_with_their_group_and_make_no_spread():
    rows = [trajectory(1.0), trajectory(1.0), trajectory(0.0, greedy=True), trajectory(0.0, 1), trajectory(1.0, 1)]
    assert GroupFilter().keep(rows, context([])) == rows[3:]
    mixed = [trajectory(1.0), trajectory(0.0), trajectory(0.0, greedy=True)]
    assert GroupFilter().keep(mixed, context([])) == mixed
    assert GroupFilter().keep([], context([])) == []


def test_signals_by_name_and_by_default():
    row = trajectory(0.5, task_verdict=None, style=0.25)
    assert math.isnan(signal(row)) and signal(row, "style") == 0.25 and signal(row, "reward") == 0.5
    assert signal(trajectory(0.5, style=0.25)) == 0.5
    assert math.isnan(signals([trajectory(1.0, greedy=True)])[0])
    with pytest.raises(ValueError, match=r"no signal 'verdict': set signal to one of .*style"):
        signal(row, "verdict")


S = torch.tensor([0.2, 0.5, 0.75, 0.85, 0.95, 0.7], dtype=torch.float64)
ONE_EACH = torch.arange(6)


@pytest.mark.parametrize(("tau", "kept"), [(0.7, [2, 3, 4]), (0.8, [3, 4]), (0.9, [4])])
def test_thresholds_are_strict(tau: float, kept: list[int]):
    assert torch.nonzero(success_filter(S, ONE_EACH, "above", tau)).flatten().tolist() == kept


def test_quantiles_and_fractions():
    assert torch.nonzero(success_filter(S, ONE_EACH, "quantile", 0.5)).flatten().tolist() == [2, 3, 4]
    assert not success_filter(S, ONE_EACH, "quantile", 0.0)[0]
    assert torch.nonzero(success_filter(S, ONE_EACH, "top_fraction", 0.34)).flatten().tolist() == [3, 4]
    ties = success_filter(torch.ones(4, dtype=torch.float64), torch.arange(4), "top_fraction", 0.5)
    assert ties.tolist() == [True, True, False, False]


def test_success_pass_rate_per_problem_and_duplicates():
    r = torch.tensor([1, 1, 0, 1, 1, math.nan], dtype=torch.float64)
    keys = torch.tensor([0, 0, 0, 1, 1, 1])
    assert success_filter(r, keys).tolist() == [True, True, False, True, True, False]
    assert success_filter(r, keys, max_pass_rate=0.7).tolist() == [True, True] + [False] * 4
    assert success_filter(r, keys, per_problem=1).tolist() == [True, False, False, True, False, False]
    texts = ["a", "a", "a", "a", "b", "c"]
    assert success_filter(r, keys, same=texts).tolist() == [True, False, False, True, True, False]


def test_nothing_to_keep_is_no_error():
    nothing = torch.full((2,), math.nan, dtype=torch.float64)
    for rule in ("success", "above", "quantile", "top_fraction"):
        assert not success_filter(nothing, torch.arange(2), rule, 0.5).any()


def test_the_component_keeps_successes_and_greedy_rows():
    one, two = problems_of(2)
    rows = [
        trajectory(1.0, 0, one, text="x"),
        trajectory(1.0, 0, one, text="x"),
        trajectory(0.0, 0, one, text="y"),
        trajectory(1.0, 1, two, text="x"),
        trajectory(0.0, 1, two, greedy=True),
    ]
    ctx = context([])
    assert SuccessFilter(dedupe=True).keep(rows, ctx) == [rows[0], rows[3], rows[4]]
    assert ctx.logged["select/kept"] == 2.0


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="lo must be below hi"):
        GroupFilter(lo=0.5, hi=0.5)
    with pytest.raises(ValueError, match="value must lie in"):
        SuccessFilter(keep_rule="quantile", value=2.0)
    with pytest.raises(ValueError, match="per_problem"):
        SuccessFilter(per_problem=0)
    with pytest.raises(ValueError, match="keep must be"):
        success_filter(S, ONE_EACH, "best")  # type: ignore[arg-type]
