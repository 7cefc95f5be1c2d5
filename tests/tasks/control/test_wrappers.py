"""Wrappers of batched environments: stacked observations, held actions."""

from __future__ import annotations

import pytest
import torch

from gainstage.tasks.control.batched_env import TorchEnv
from gainstage.tasks.control.wrappers import ActionRepeat, ObsStack, stacked
from gainstage.types.spaces import Box, Discrete, Piece


class Walk(TorchEnv):
    """A step of the action and of noise; the reward is the place; ends beyond 3."""

    observation_space = Box.of(-100, 100, (2,), pieces={"place": Piece(0, 1, (1,)), "start": Piece(1, 2, (1,))})
    action_space = Box.of(-1, 1, (1,))

    def start(self):
        place = self.draw(1)
        return {"place": place, "from": place}

    def advance(self, state, action):
        place = state["place"] + action + 0.01 * self.draw(1)
        reward = place.squeeze(1)
        return {**state, "place": place}, reward, reward > 3, {"success": (reward > 3).float()}

    def observe(self, state):
        return torch.cat((state["place"], state["from"]), 1)


def walked(env, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [env.step(torch.rand(env.size, 1, generator=generator)) for _ in range(steps)]


def test_a_stack_is_the_last_observations_of_its_own_episode():
    plain, env = Walk(3, max_steps=5), ObsStack(Walk(3, max_steps=5), 3)
    first, seen = plain.reset([1, 2, 3]), env.reset([1, 2, 3])
    assert torch.equal(seen, first.repeat(1, 3))
    history = [[row] * 3 for row in first]
    for a, b in zip(walked(plain, 23), walked(env, 23), strict=True):
        done = a.terminated | a.truncated
        assert torch.equal(b.terminated, a.terminated) and torch.equal(b.reward, a.reward)
        for copy in range(3):
            history[copy] = [*history[copy][1:], a.next_obs[copy]]
            assert torch.equal(b.next_obs[copy], torch.cat(history[copy]))
            if done[copy]:
                history[copy] = [a.obs[copy]] * 3
            assert torch.equal(b.obs[copy], torch.cat(history[copy]))
    assert torch.equal(env.observation(), b.obs)


def test_stacked_spaces():
    space = stacked(Walk.observation_space, 3)
    assert space.shape == (6,) and space.pieces["place"] == Piece(4, 5, (1,))
    picture = stacked(Box.of(0, 255, (4, 4, 3), dtype=torch.uint8), 2)
    assert picture.shape == (4, 4, 6) and picture.dtype == torch.uint8
    for wrong in (Discrete(3), Box.of(0, 1, ())):
        with pytest.raises(ValueError, match="cannot be stacked"):
            stacked(wrong, 2)
    with pytest.raises(ValueError, match="stack must be at least 2"):
        ObsStack(Walk(1), 1)


@pytest.mark.parametrize("wrap", [lambda env: ObsStack(env, 4), lambda env: ActionRepeat(env, 3)])
def test_wrapped_environments_resume_exactly(wrap):
    env = wrap(Walk(4, max_steps=7))
    env.reset(range(4))
    walked(env, 9)
    state = env.state_dict()
    went_on = walked(env, 20, seed=1)
    fresh = wrap(Walk(4, max_steps=7))
    fresh.reset([9] * 4)
    fresh.load_state_dict(state)
    for a, b in zip(went_on, walked(fresh, 20, seed=1), strict=True):
        assert torch.equal(a.obs, b.obs) and torch.equal(a.next_obs, b.next_obs) and torch.equal(a.reward, b.reward)
    fresh.close()


def test_an_action_is_held_copy_by_copy():
    """Every copy of the batch does what it does alone in a loop that stops at its episode's end."""
    env = ActionRepeat(Walk(3, max_steps=5), 3)
    alone = [Walk(1, max_steps=5) for _ in range(3)]
    env.reset([4, 5, 6])
    for copy, one in enumerate(alone):
        one.reset([4 + copy])
    generator = torch.Generator().manual_seed(0)
    ends = 0
    for _ in range(30):
        action = torch.rand(3, 1, generator=generator)
        together = env.step(action)
        for copy, one in enumerate(alone):
            reward, held = 0.0, 0
            for _ in range(3):
                step = one.step(action[copy : copy + 1])
                reward, held = reward + step.reward[0], held + 1
                if step.terminated | step.truncated:
                    ends += held < 3
                    break
            assert together.reward[copy] == reward
            for name in ("obs", "next_obs", "terminated", "truncated"):
                assert torch.equal(getattr(together, name)[copy], getattr(step, name)[0]), name
            assert together.info["success"][copy] == step.info["success"][0]
    assert ends > 5
    with pytest.raises(ValueError, match="repeat must be at least 2"):
        ActionRepeat(Walk(1), 1)
