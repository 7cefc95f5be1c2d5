"""Goal worlds: their pieces, and rewards that are a pure function of what was achieved and what was asked for."""

import pytest
import torch
from tests.tasks.control import worlds

from gainstage.registry import RecipeError, build

GOAL_WORLDS = {"bit_flip": {"bits": 6}, "reach": {"tolerance": 0.4}}


def piece(task, obs, name):
    part = task.observation_space.pieces[name]
    return obs[..., part.start : part.stop]


@pytest.mark.parametrize("name", GOAL_WORLDS)
def test_reward_and_end_follow_from_the_pieces(name):
    """What the world pays is what the pure functions say of the pieces of the next observation."""
    task = build("task", name, GOAL_WORLDS[name])
    assert task.capabilities == {"simulator", "goal"}
    env = task.make(64)
    obs = env.reset(range(64))
    rewarded = 0
    for action in worlds.actions(task, 64, 40):
        goal = piece(task, obs, "desired_goal")
        got = env.step(action)
        achieved = piece(task, got.next_obs, "achieved_goal")
        assert torch.equal(piece(task, got.next_obs, "desired_goal"), goal)
        assert torch.equal(got.reward, task.compute_reward(achieved, goal))
        assert torch.equal(got.terminated, task.compute_terminated(achieved, goal))
        assert torch.equal(got.info["success"], got.reward == 0)
        rewarded += int((got.reward == 0).sum())
        obs = got.obs
    assert rewarded > 0


@pytest.mark.parametrize("name", GOAL_WORLDS)
def test_rewards_take_any_batch(name):
    task = build("task", name, GOAL_WORLDS[name])
    goal = piece(task, task.make(3).reset([0, 1, 2]), "desired_goal")
    assert task.compute_reward(goal, goal).tolist() == [0, 0, 0]
    assert task.compute_reward(goal.expand(5, 3, -1), goal).shape == (5, 3)
    assert task.compute_reward(1 - goal - 0.5 * (name == "reach"), goal).tolist() == [-1, -1, -1]


def test_flipping_the_differing_bits_solves_bit_flip():
    task = build("task", "bit_flip", {"bits": 8})
    env = task.make(32)
    obs = env.reset(range(32))
    alive = torch.ones(32, dtype=torch.bool)
    needed = (piece(task, obs, "observation") != piece(task, obs, "desired_goal")).sum(1)
    total = torch.zeros(32)
    for step in range(1, 9):
        differs = piece(task, obs, "observation") != piece(task, obs, "desired_goal")
        got = env.step(differs.long().argmax(1))
        total += got.reward * alive
        assert torch.equal(got.terminated[alive], (needed == step)[alive])
        alive &= ~got.terminated
        obs = got.obs
    assert torch.equal(total[needed > 0], 1.0 - needed[needed > 0])
    assert task.max_steps == 8 and 2 < float(needed.float().mean()) < 6


def test_reach_needs_braking():
    """Full speed towards a wall stops there; the speed is gone."""
    task = build("task", "reach", {"friction": 0.1})
    env = task.make(1)
    env.reset([0])
    for _ in range(20):
        got = env.step(torch.tensor([[1.0, 0.0]]))
    assert env.state["place"][0].tolist() == [1, 0] and env.state["speed"][0].tolist() == [0, 0]
    assert not got.terminated


def test_accidents_are_rare():
    """Random actions seldom come by: that is what makes reach hard without hindsight."""
    task = build("task", "reach")
    env = task.make(500)
    env.reset(range(500))
    ever = torch.zeros(500, dtype=torch.bool)
    for action in worlds.actions(task, 500, 50):
        ever |= env.step(action).info["success"]
    assert 0 < float(ever.float().mean()) < 0.1


def test_settings_are_checked():
    with pytest.raises(RecipeError, match="bits must be at least 1"):
        build("task", "bit_flip", {"bits": 0})
    with pytest.raises(RecipeError, match="friction"):
        build("task", "reach", {"friction": 0})
    with pytest.raises(RecipeError, match="tolerance"):
        build("task", "reach", {"tolerance": 0})
    with pytest.raises(RecipeError, match="dims"):
        build("task", "reach", {"dims": 0})
