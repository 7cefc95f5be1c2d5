"""Our environments as Gymnasium's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from gainstage.chain import build_task
from gainstage.tasks.control.gym_export import to_gymnasium
from gainstage.tasks.control.gym_vector import from_vector_env

gym = pytest.importorskip("gymnasium")

TASKS = [
    "cart_pole",
    "pendulum",
    "bit_flip",
    "reach",
    {"identity": {"space": "multi_discrete", "view": "pieces"}},
    "memory_cue",
    "gym:FrozenLake-v1",
    "gym:MiniGrid-Empty-5x5-v0",
]


def build(spec):
    return build_task(spec).it


@pytest.mark.parametrize("spec", TASKS, ids=str)
def test_gymnasium_finds_nothing_wrong(spec):
    from gymnasium.utils.env_checker import check_env

    env = to_gymnasium(build(spec))
    with warnings.catch_warnings():  # bounds without an end and such are the tasks' own affair
        warnings.filterwarnings("ignore", module="gymnasium.*")
        check_env(env, skip_render_check=True)
    env.close()


def test_a_single_environment_ends_and_wants_a_reset():
    env = to_gymnasium(build({"cart_pole": {"max_steps": 5}}))
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    first, _ = env.reset(seed=3)
    for step in range(5):
        seen, reward, terminated, truncated, _ = env.step(step % 2)
    assert (terminated, truncated, reward) == (False, True, 1.0)
    assert not np.array_equal(seen, first) and env.observation_space.contains(seen)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    assert np.array_equal(env.reset(seed=3)[0], first)
    assert not np.array_equal(env.reset()[0], env.reset()[0])
    with pytest.raises(ValueError, match="lies outside of"):
        env.step(2)


def test_a_goal_environment_is_a_dictionary_with_its_reward():
    env = to_gymnasium(build("reach"))
    seen, _ = env.reset(seed=0)
    assert set(seen) == {"observation", "achieved_goal", "desired_goal"}
    seen, reward, _, _, info = env.step(env.action_space.sample())
    assert env.compute_reward(seen["achieved_goal"], seen["desired_goal"], info) == reward == -1
    goals = np.stack([seen["desired_goal"], seen["achieved_goal"]])
    assert env.compute_reward(np.stack([seen["achieved_goal"]] * 2), goals, {}).tolist() == [-1, 0]


@pytest.mark.parametrize("spec", ["cart_pole", "bit_flip"])
def test_a_vector_environment_hands_the_last_observation_over(spec):
    task = build(spec)
    vec = to_gymnasium(task, 6)
    assert vec.metadata["autoreset_mode"] is gym.vector.AutoresetMode.SAME_STEP
    seen, _ = vec.reset(seed=[4, 5, 6, 7, 8, 9])
    assert vec.observation_space.contains(seen)
    ours = task.make(6)
    ours.reset([4, 5, 6, 7, 8, 9])
    back = from_vector_env(vec, facts=["success"] if spec == "bit_flip" else [])
    back.reset([4, 5, 6, 7, 8, 9])
    generator = torch.Generator().manual_seed(0)
    ends = 0
    for _ in range(60):
        action = torch.randint(task.action_space.n, (6,), generator=generator)
        a, b = ours.step(action), back.step(action)
        for name in ("reward", "terminated", "truncated"):
            assert torch.equal(getattr(a, name), getattr(b, name)), name
        order = slice(None) if spec == "cart_pole" else torch.arange(30).reshape(3, 10)[[1, 2, 0]].reshape(-1)
        assert torch.equal(a.next_obs[:, order], b.next_obs) and torch.equal(a.obs[:, order], b.obs)
        if spec == "bit_flip":
            assert torch.equal(a.info["success"].float(), b.info["success"])
        ends += int((a.terminated | a.truncated).sum())
    assert ends > 5


def test_gymnasiums_own_wrappers_work_around_it():
    vec = gym.wrappers.vector.RecordEpisodeStatistics(to_gymnasium(build({"pendulum": {"max_steps": 4}}), 3))
    vec.reset(seed=1)
    vec.action_space.seed(0)
    for _ in range(4):
        *_, infos = vec.step(vec.action_space.sample())
    assert infos["episode"]["l"].tolist() == [4, 4, 4]
    vec.close()


def test_wrong_arguments():
    task = build("cart_pole")
    assert to_gymnasium(task.make(3)).num_envs == 3
    with pytest.raises(ValueError, match="has 3 of them already, not 2"):
        to_gymnasium(task.make(3), 2)
    with pytest.raises(ValueError, match="got str"):
        to_gymnasium("cart_pole")
    with pytest.raises(ValueError, match="takes no reset_mask"):
        to_gymnasium(task, 2).reset(options={"reset_mask": np.array([True, False])})
