"""What a comparison takes for granted."""

from __future__ import annotations

import pytest

from gainstage.cli.defaults import ANSWERS, BUDGET, EPISODES, defaults


def test_answers_are_compared_by_pass_at_1() -> None:
    assert defaults("grpo", []) == (ANSWERS, BUDGET)


def test_episodes_are_compared_by_their_return_at_the_steps_of_the_first_arm() -> None:
    assert defaults("ppo,budget.env_steps=5000", []) == (EPISODES, ["env_steps=5000"])
    assert defaults("grpo", ['task="cart_pole"']) == (EPISODES, BUDGET)


@pytest.mark.parametrize("arm", ["ppo", "a2c"])
def test_a_task_for_every_arm_goes_before_the_recipe(arm: str) -> None:
    assert defaults(arm, ['task="acrobot"'])[0] == EPISODES
