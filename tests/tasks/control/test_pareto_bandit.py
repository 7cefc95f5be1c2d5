"""Payoffs with heavy tails."""

from __future__ import annotations

import math

import pytest
import torch

from gainstage.tasks.control.pareto_bandit import ParetoBandit


def test_payoffs_have_the_tails_and_means_that_they_say():
    task = ParetoBandit(scales=(1.0, 0.5, 2.0), tails=(4.0, 8.0, math.inf))
    assert task.means == pytest.approx([4 / 3, 4 / 7, 2.0])
    env = task.make(60_000)
    env.reset(list(range(60_000)))
    arm = torch.arange(60_000) % 3
    stepped = env.step(arm)
    assert bool(stepped.terminated.all())
    for number, (scale, tail) in enumerate(((1.0, 4.0), (0.5, 8.0))):
        paid = stepped.reward[arm == number]
        assert float(paid.min()) >= scale - 1e-6
        for c in (1.2 * scale, 1.5 * scale):
            assert float((paid > c).float().mean()) == pytest.approx((scale / c) ** tail, abs=0.01)
        assert float(paid.mean()) == pytest.approx(task.means[number], rel=0.02)
    assert stepped.reward[arm == 2].tolist() == [2.0] * 20_000
    assert torch.equal(stepped.info["success"], arm == 2)


def test_the_heaviest_tail_has_the_lowest_mean_by_default():
    means = ParetoBandit().means
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize("wrong", [{"tails": (2.0, 3.0)}, {"scales": (0.0, 1.0, 1.0)}, {"tails": (1.0, 2.0, 3.0)}])
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match="scales"):
        ParetoBandit(**wrong)
