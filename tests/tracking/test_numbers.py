"""The numbers of an iteration."""

import pytest
import torch

from gainstage.tracking.numbers import describe
from gainstage.types import Stop, Trajectory


def episode(reward: float, turns: list[float], group: int) -> Trajectory:
    columns = {
        "reward": torch.tensor(reward), "turn_rewards": torch.tensor(turns), "mask": torch.ones(2, dtype=torch.bool),
    }  # fmt: skip
    return Trajectory(None, group, 0, 0, "policy", 0, Stop.EOS, columns)


def test_rewards_paid_by_turns_count_in_the_mean_and_in_the_spread_of_a_group():
    seen: dict[str, float] = {}
    paid = [(0.0, [0.0, 1.0], 0), (0.0, [0.0, 0.0], 0), (0.5, [0.25, 0.25], 1), (1.0, [], 1)]
    describe([episode(*row) for row in paid], lambda name, value: seen.__setitem__(name, value))
    assert seen["reward/mean"] == pytest.approx(0.75)
    assert seen["groups/zero_variance"] == 0.5
