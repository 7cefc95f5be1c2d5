"""Running moments: any cut of a stream gives the same figures; state survives a checkpoint."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gainstage.ops.moments import RunningMoments

STREAM = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20)


@given(STREAM, st.integers(1, 19))
def test_a_stream_may_be_cut_anywhere(values: list[float], cut: int):
    cut = min(cut, len(values) - 1)
    moments = RunningMoments()
    moments.update(torch.tensor(values[:cut], dtype=torch.float64))
    moments.update(torch.tensor(values[cut:], dtype=torch.float64))
    whole = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(moments.mean, whole.mean())
    torch.testing.assert_close(moments.std, whole.std(unbiased=False), rtol=1e-7, atol=1e-6)


def test_large_offsets_do_not_cancel():
    moments = RunningMoments()
    for value in (1e9, 1e9 + 1, 1e9 + 2):
        moments.update(torch.tensor([value], dtype=torch.float64))
    assert moments.std.item() == pytest.approx(math.sqrt(2 / 3))


def test_masked_values_and_frozen_moments_do_not_count():
    moments = RunningMoments((2,))
    x = torch.tensor([[1.0, 10.0], [3.0, 30.0], [math.nan, math.nan]])
    moments.update(x, torch.tensor([True, True, False]))
    assert moments.mean.tolist() == [2.0, 20.0] and moments.std.tolist() == [1.0, 10.0]
    moments.frozen = True
    moments.update(torch.full((5, 2), 99.0))
    assert moments.mean.tolist() == [2.0, 20.0]


def test_before_the_first_value_nothing_is_scaled():
    moments = RunningMoments()
    moments.update(torch.zeros(0))
    assert moments.mean.item() == 0.0 and moments.std.item() == 1.0


def test_ema_starts_at_the_first_batch_and_mixes_the_next():
    moments = RunningMoments(kind="ema", decay=0.75)
    moments.update(torch.tensor([1.0, 3.0]))
    assert (moments.mean.item(), moments.std.item()) == (2.0, 1.0)
    moments.update(torch.tensor([6.0, 6.0]))
    assert moments.mean.item() == pytest.approx(3.0)
    # weights 3/8, 3/8, 1/8, 1/8 on 1, 3, 6, 6: mean 3, second moment 12.75
    assert moments.std.item() == pytest.approx(math.sqrt(12.75 - 9))


def test_a_window_forgets_what_lies_before_it():
    moments = RunningMoments(kind="window", window=2)
    for batch in ([100.0], [1.0, 2.0], [3.0]):
        moments.update(torch.tensor(batch))
    assert moments.mean.item() == pytest.approx(2.0)
    assert moments.std.item() == pytest.approx(math.sqrt(2 / 3))


@pytest.mark.parametrize("kind", ["cumulative", "ema", "window"])
def test_state_goes_on_where_it_was(kind: str):
    first, second = RunningMoments(kind=kind, window=2), RunningMoments(kind=kind, window=2)
    for value in (1.0, 5.0, 2.0):
        first.update(torch.tensor([value, value + 1]))
    second.load_state_dict(first.state_dict())
    for moments in (first, second):
        moments.update(torch.tensor([9.0]))
    assert (first.mean, first.std) == (second.mean, second.std)


def test_a_value_that_is_not_finite_is_refused_and_changes_nothing():
    moments = RunningMoments()
    moments.update(torch.tensor([1.0]))
    with pytest.raises(ValueError, match="NaN or infinite"):
        moments.update(torch.tensor([math.nan]))
    assert moments.mean.item() == 1.0 and moments.count.item() == 1


@pytest.mark.parametrize("settings", [{"kind": "mean"}, {"kind": "ema", "decay": 1.0}, {"kind": "window", "window": 0}])
def test_wrong_settings_are_named(settings: dict):
    with pytest.raises(ValueError, match="moments"):
        RunningMoments(**settings)
