"""Transforms of one entry's values: clip, power, running scale."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from gainstage.registry import build
from gainstage.reward.compose.scaling import ReturnScale, Scale, affine, clip_reward, power
from gainstage.types import Batch


def test_clipping_keeps_what_does_not_apply():
    assert clip_reward([25.0, None, -11.0, 0.5]) == [10.0, None, -10.0, 0.5]
    tensor = clip_reward(torch.tensor([3.0, math.nan]), low=0.0, high=1.0)
    assert tensor[0] == 1.0 and bool(torch.isnan(tensor[1]))
    assert build("then", "clip_reward", {"high": 1.0})([2.0]) == [1.0]
    with pytest.raises(ValueError, match="low must not be above high"):
        clip_reward([1.0], low=2.0, high=1.0)


def test_a_nan_is_passed_on_for_the_sum_to_name():
    assert math.isnan(clip_reward([math.nan])[0])  # type: ignore[arg-type]


def test_affine_turns_failures_into_punishments():
    assert affine([1.0, 0.0, None], scale=2.0, shift=-1.0) == [1.0, -1.0, None]
    assert affine(torch.tensor([0.5]), shift=1.0).tolist() == [1.5]


def test_power_keeps_signs():
    assert power([-2.0, 3.0, None], exponent=2.0) == [-4.0, 9.0, None]
    with pytest.raises(ValueError, match="exponent"):
        power([1.0], exponent=0.0)


def test_scaling_divides_by_the_std_of_all_values_so_far():
    scale = Scale()
    assert scale([1.0, 3.0, None]) == [1.0, 3.0, None]
    assert scale([6.0, 6.0]) == pytest.approx([6 / math.sqrt(4.5)] * 2)
    centred = Scale(center=True, clip=1.2)
    assert centred([0.0, 0.0, 0.0, 4.0]) == pytest.approx([-0.5773503, -0.5773503, -0.5773503, 1.2])


def test_equal_values_are_divided_by_the_floor_not_by_zero():
    assert Scale(center=True)([2.0, 2.0]) == [0.0, 0.0]
    assert Scale(floor=0.5)([2.0, 2.0]) == [4.0, 4.0]


def test_masked_positions_of_a_tensor_take_no_part():
    x, mask = torch.tensor([[1.0, 3.0, 99.0]]), torch.tensor([[True, True, False]])
    assert Scale()(x, mask)[0, :2].tolist() == [1.0, 3.0]


def test_state_survives_a_checkpoint():
    first, second = Scale(kind="ema", decay=0.5), Scale(kind="ema", decay=0.5)
    first([1.0, 5.0])
    second.load_state_dict(first.state_dict())
    assert first([2.0, 9.0]) == second([2.0, 9.0])


def test_wrong_settings_are_named():
    for settings in ({"floor": 0.0}, {"clip": -1.0}):
        with pytest.raises(ValueError, match="scale: floor and clip"):
            Scale(**settings)


def fragment(rewards: list[list[float]], ends: list[list[int]] | None = None) -> Batch:
    r = torch.tensor(rewards)
    done = torch.zeros_like(r, dtype=torch.bool) if ends is None else torch.tensor(ends).bool()
    return Batch({"mask": torch.ones_like(done), "rewards": r, "terminated": done, "cut": torch.zeros_like(done)})


QUIET = SimpleNamespace(log=lambda name, value: None)


def test_rewards_are_divided_by_the_std_of_the_discounted_sum():
    scale = ReturnScale(gamma=0.5, clip=100.0)
    batch = fragment([[1.0, 2.0, 4.0]], [[0, 1, 0]])
    scale.observe(batch, QUIET)
    sums = torch.tensor([1.0, 2.5, 4.0])  # the second episode begins anew
    assert torch.allclose(scale.shape(batch, QUIET), batch["rewards"] / sums.std(unbiased=False), atol=1e-6)
    scale.observe(fragment([[2.0]]), QUIET)  # the same copy's episode goes on: 2 + 4 / 2
    assert float(scale.moments.std) == pytest.approx(float(torch.tensor([1.0, 2.5, 4.0, 4.0]).std(unbiased=False)))


def test_copies_do_not_mix_and_the_cut_of_a_stream_does_not_matter():
    rewards = torch.randn(3, 8, generator=torch.Generator().manual_seed(1)).tolist()
    whole, halves = ReturnScale(gamma=0.9), ReturnScale(gamma=0.9)
    whole.observe(fragment(rewards), QUIET)
    halves.observe(fragment([row[:5] for row in rewards]), QUIET)
    halves.observe(fragment([row[5:] for row in rewards]), QUIET)
    assert torch.allclose(whole.moments.std, halves.moments.std) and torch.equal(whole.running, halves.running)


def test_looking_moves_nothing_and_saved_statistics_go_on_bit_for_bit():
    scale, other = ReturnScale(), ReturnScale()
    scale.observe(fragment([[1.0, 5.0], [0.0, 2.0]]), QUIET)
    before = scale.state_dict()
    first, second = (scale.shape(fragment([[3.0], [4.0]]), QUIET) for _ in range(2))
    assert torch.equal(first, second)
    other.load_state_dict(before)
    for made in (scale, other):
        made.observe(fragment([[2.0], [7.0]]), QUIET)
    assert torch.equal(scale.shape(fragment([[1.0], [1.0]]), QUIET), other.shape(fragment([[1.0], [1.0]]), QUIET))


def test_constant_rewards_of_zero_and_outliers_stay_finite():
    scale = ReturnScale(clip=10.0)
    scale.observe(fragment([[0.0, 0.0]]), QUIET)
    assert scale.shape(fragment([[0.0, 1e6]]), QUIET).tolist() == [[0.0, 10.0]]
    with pytest.raises(ValueError, match="gamma"):
        ReturnScale(gamma=1.5)
