"""Sums of reward parts: what does not apply, what fails, gates and replacements; never the order."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gainstage.credit.group.group_relative import group_relative
from gainstage.reward.compose.combine import Part, combine

VALUES = st.lists(st.one_of(st.none(), st.floats(-5, 5)), min_size=3, max_size=3)


def test_parts_are_summed_first_then_normalised():
    totals = combine([Part("a", [1, 0, 1, 0]), Part("b", [2, None, 4, None])])
    assert totals.values == [3, 0, 5, 0] and totals.failed == {}
    advantages = group_relative(torch.tensor(totals.values), torch.zeros(4, dtype=torch.long), eps=0)
    assert advantages.tolist() == pytest.approx([0.4082, -0.8165, 1.2247, -0.8165], abs=1e-4)


def test_a_row_without_any_part_has_no_total():
    assert combine([Part("a", [1, None]), Part("b", [None, None])]).values == [1, None]
    assert combine([Part("a", [1, 0, None, 1])]).values == [1, 0, None, 1]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_value_that_is_not_finite_fails_its_row_by_name(value: float):
    totals = combine([Part("good", [0, 1, 1, 1]), Part("bad", [0, 1, value, 1])])
    assert totals.values == [0, 2, None, 2] and totals.failed == {2: "bad"}
    metric = combine([Part("good", [1.0]), Part("metric", [value], weight=0.0)])
    assert metric.values == [None] and metric.failed == {0: "metric"}


def test_a_metric_makes_no_row_apply_unless_all_are_metrics():
    assert combine([Part("main", [None, 1.0]), Part("metric", [0.5, 0.5], weight=0.0)]).values == [None, 1.0]
    assert combine([Part("fact", [1.0, None], weight=0.0)]).values == [0.0, None]


def test_a_closed_gate_leaves_only_gates():
    form = Part("form", [1, 0, -0.5, None], weight=0.5, how="gate")
    right = Part("right", [1, 1, 1, 1], weight=2.0)
    assert combine([right, form]).values == [2.5, 0.0, -0.25, 2.0]
    pure = Part("form", [1, 0, 1], weight=0.0, how="gate")
    assert combine([Part("right", [1, 1, None]), pure]).values == [1.0, 0.0, None]


def test_a_replacement_stands_alone_where_it_applies():
    bonus = Part("override", [None, 7.0], weight=0.5, how="replace")
    gate = Part("gate", [1, 0], how="gate")
    assert combine([Part("right", [1, 1]), gate, bonus]).values == [2.0, 3.5]


@given(VALUES, VALUES, VALUES, st.floats(-2, 2))
def test_the_order_of_parts_never_matters(a, b, c, weight: float):
    parts = [Part("a", a, weight), Part("b", b, how="gate"), Part("c", c), Part("d", [None, 1, None], how="replace")]
    results = {tuple(combine(list(order)).values) for order in itertools.permutations(parts)}
    assert len(results) == 1


def test_wrong_parts_are_named():
    with pytest.raises(ValueError, match="no part"):
        combine([])
    with pytest.raises(ValueError, match="a 1, b 2"):
        combine([Part("a", [1]), Part("b", [1, 2])])
    with pytest.raises(ValueError, match="'a': combine must be"):
        Part("a", [1], how="max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'a': weight"):
        Part("a", [1], weight=math.nan)
