"""Masked sums, means, variances and quantiles: padding changes nothing, whatever it holds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gainstage.ops.masked import masked_mean, masked_quantile, masked_spread, masked_sum, masked_var

NUMBERS = st.floats(-1e3, 1e3, width=32)


@pytest.mark.parametrize("filler", [1.0, math.nan, math.inf, -12.5])
@pytest.mark.parametrize("width", [2, 5, 10])
def test_a_row_has_the_same_entropy_whatever_its_padding(filler: float, width: int):
    logprobs = torch.full((1, width), filler)
    logprobs[0, :2] = torch.tensor([-0.5, -1.5])
    mask = torch.arange(width).unsqueeze(0) < 2
    assert masked_sum(-logprobs, mask).item() == pytest.approx(2.0)
    assert masked_mean(-logprobs, mask).item() == pytest.approx(1.0)
    assert masked_var(-logprobs, mask).item() == pytest.approx(0.25)
    assert masked_var(-logprobs, mask, ddof=1).item() == pytest.approx(0.5)
    assert masked_spread(logprobs, mask).item() == pytest.approx(1.0)


def test_a_longer_row_in_the_batch_leaves_the_means_of_the_others_alone():
    x = torch.tensor([[1.0, 3.0, math.nan, math.nan], [1.0, 2.0, 3.0, 6.0]])
    mask = torch.tensor([[True, True, False, False], [True] * 4])
    assert masked_mean(x, mask, dim=1).tolist() == [2.0, 3.0]
    assert masked_var(x, mask, ddof=1, dim=1).tolist() == pytest.approx([2.0, 14 / 3])


def test_an_empty_mask_gives_zero_and_no_nan():
    x, mask = torch.full((2, 3), math.nan), torch.zeros(2, 3, dtype=torch.bool)
    for value in (masked_sum(x, mask), masked_mean(x, mask), masked_var(x, mask), masked_spread(x, mask)):
        assert value.item() == 0.0
    assert masked_mean(x, mask, dim=1).tolist() == [0.0, 0.0]
    assert masked_var(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool), ddof=1).item() == 0.0


def test_gradients_reach_real_positions_only_and_are_finite():
    x = torch.tensor([[0.5, 2.0, math.inf]], requires_grad=True)
    masked_mean(x, torch.tensor([[True, True, False]])).backward()
    assert x.grad is not None and x.grad.tolist() == [[0.5, 0.5, 0.0]]


def test_weights_make_a_weighted_mean_and_all_zero_weights_give_zero():
    x, mask = torch.tensor([1.0, 4.0, math.nan]), torch.tensor([True, True, False])
    assert masked_mean(x, mask, torch.tensor([3.0, 1.0, 9.0])).item() == pytest.approx(1.75)
    assert masked_mean(x, mask, torch.zeros(3)).item() == 0.0


@given(st.lists(NUMBERS, min_size=2, max_size=8), st.integers(1, 6))
def test_agrees_with_the_unmasked_figures(values: list[float], padding: int):
    x = torch.tensor(values + [math.nan] * padding, dtype=torch.float64)
    mask = torch.arange(len(x)) < len(values)
    real = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(masked_mean(x, mask), real.mean())
    torch.testing.assert_close(masked_var(x, mask, ddof=1), real.var())
    torch.testing.assert_close(masked_quantile(x, mask, 0.3), torch.quantile(real, 0.3))


def test_the_top_fifth_is_taken_from_real_tokens_although_padding_is_larger():
    entropy = torch.tensor([[0.1, 0.9, 0.2, 0.3, 0.4, 99.0, 99.0]])
    mask = torch.tensor([[True] * 5 + [False] * 2])
    chosen = (entropy >= masked_quantile(entropy, mask, 0.8)) & mask
    assert chosen.tolist() == [[False, True, False, False, False, False, False]]


def test_a_quantile_of_nothing_or_beyond_one_is_an_error():
    with pytest.raises(ValueError, match="mask is empty"):
        masked_quantile(torch.ones(2), torch.zeros(2, dtype=torch.bool), 0.5)
    with pytest.raises(ValueError, match=r"q must lie in \[0, 1\]"):
        masked_quantile(torch.ones(2), torch.ones(2, dtype=torch.bool), 1.5)
