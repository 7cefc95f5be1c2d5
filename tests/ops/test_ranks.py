"""Mid-ranks ascend and share ties."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from gainstage.ops.ranks import midrank, normal_scores


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_agrees_with_scipy(values: list[int]):
    assert midrank(torch.tensor(values, dtype=torch.float64)).tolist() == scipy.stats.rankdata(values).tolist()


def test_ranks_are_taken_inside_the_last_axis_and_nan_is_lowest():
    x = torch.tensor([[3.0, 1.0, 2.0], [5.0, 5.0, math.nan]])
    assert midrank(x).tolist() == [[3.0, 1.0, 2.0], [2.5, 2.5, 1.0]]


def test_normal_scores_are_the_quantiles_of_the_rank_middles():
    scores = normal_scores(torch.tensor([1.0, 2.0, 3.0, 4.0]), 4)
    assert scores.tolist() == pytest.approx(scipy.stats.norm.ppf([0.125, 0.375, 0.625, 0.875]).tolist(), rel=1e-5)
    assert scores.sum().item() == pytest.approx(0.0, abs=1e-6)
