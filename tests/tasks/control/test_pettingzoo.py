"""Parallel worlds: agents as copies."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from gainstage.chain import build_task
from gainstage.episodes import play
from gainstage.registry import RecipeError
from gainstage.tasks.control.recording import controller, episodes

gym = pytest.importorskip("gymnasium")
pettingzoo = pytest.importorskip("pettingzoo")


class Race(pettingzoo.ParallelEnv):
    """Two runners; who reaches 3 is out, the world ends when both are. Observation: own place, noise of the world."""

    metadata = {"name": "race"}

    def __init__(self, uneven=False, text=False):
        self.possible_agents = ["left", "right"]
        self.uneven, self.text = uneven, text

    def observation_space(self, agent):
        if self.text:
            return gym.spaces.Text(3)
        return gym.spaces.Box(-10, 10, (3 if self.uneven and agent == "right" else 2,), np.float64)

    def action_space(self, agent):
        return gym.spaces.Discrete(3, start=1)

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.at = dict.fromkeys(self.agents, 0)
        self.noise = self.rng.normal()
        return {agent: self.see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def see(self, agent):
        return np.array([self.at[agent], self.noise])

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.noise = self.rng.normal()
        for agent, action in actions.items():
            if action == 99:
                raise RuntimeError("fell")
            self.at[agent] += action - 1
        seen = {agent: self.see(agent) for agent in self.agents}
        ended = {agent: self.at[agent] >= 3 for agent in self.agents}
        rewards = {agent: float(self.at[agent]) for agent in self.agents}
        cut = dict.fromkeys(self.agents, False)
        infos = {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not ended[agent]]
        return seen, rewards, ended, cut, infos


@pytest.fixture(autouse=True)
def module(monkeypatch):
    race, turns = ModuleType("race_v0"), ModuleType("turns_v0")
    race.parallel_env = Race
    monkeypatch.setitem(sys.modules, "race_v0", race)
    monkeypatch.setitem(sys.modules, "turns_v0", turns)


def build(**settings):
    return build_task({"pettingzoo:race_v0": settings}).it


def test_an_agent_that_is_out_waits_for_its_world():
    task = build()
    env = task.make(4)
    first = env.reset([5, 6, 7, 8])
    assert first.shape == (4, 2) and first[0, 1] == first[1, 1] != first[2, 1]
    action = torch.tensor([2, 1, 0, 0])  # two, one and no fields a step
    one, two, three, four = (env.step(action) for _ in range(4))
    assert one.real is None and one.reward.tolist() == [2, 1, 0, 0]
    assert two.terminated.tolist() == [True, False, False, False]
    assert torch.equal(two.obs, two.next_obs)  # nothing began: the other runner is still on its way
    assert three.real.tolist() == [False, True, True, True] and three.reward.tolist() == [0, 3, 0, 0]
    assert three.terminated.tolist() == [False, True, False, False]
    assert three.next_obs[:2, 0].tolist() == [4, 3] and three.obs[:2, 0].tolist() == [0, 0]
    assert torch.equal(three.obs[2:], three.next_obs[2:])
    assert four.real is None and four.reward.tolist() == [2, 1, 0, 0]


def test_nothing_is_wrong_with_it():
    from gainstage.tasks.control.checking_batched import check_task

    out = check_task(build(max_steps=9), steps=600)
    assert not out.complaints and out.steps == 600 and len(out.lengths) > 60


def test_a_limit_cuts_all_agents_of_a_world():
    task = build(max_steps=2)
    assert task.max_steps == 2
    env = task.make(2)
    env.reset([0, 1])
    still = torch.tensor([0, 1])
    env.step(still)
    step = env.step(still)
    assert step.truncated.tolist() == [True, True] and step.obs[:, 0].tolist() == [0, 0]


def test_resume_is_exact():
    task = build(max_steps=9)
    generator = torch.Generator().manual_seed(0)
    chosen = [torch.randint(3, (6,), generator=generator) for _ in range(60)]
    env, other = task.make(6), task.make(6)
    env.reset(range(6))
    for action in chosen[:31]:
        env.step(action)
    other.load_state_dict(env.state_dict())
    ends = waits = 0
    for action in chosen[31:]:
        a, b = env.step(action), other.step(action)
        for name in ("obs", "next_obs", "reward", "terminated", "truncated"):
            assert torch.equal(getattr(a, name), getattr(b, name))
        assert (a.real is None) == (b.real is None)
        ends += int((a.terminated | a.truncated).sum())
        waits += a.real is not None
    assert ends > 10 and waits > 3


class Runner:
    """Everybody goes ahead."""

    device = torch.device("cpu")

    def act(self, obs, memory, *, explore):
        return SimpleNamespace(action=torch.full((len(obs),), 2), state=None)

    def to_env(self, action):
        return action


@pytest.mark.parametrize("count", [1, 3, 4])
def test_any_number_of_episodes_is_played_and_recorded(count):
    task = build(max_steps=9)
    records = play(task, Runner(), task.problems("test")[:count], 1, explore=False)
    assert [record.answers[0].reward for record in records] == [6.0] * count  # 2 and 4 fields from the start
    recorded = list(episodes(task, controller("random", task), range(count)))
    assert len(recorded) == count and all(0 < len(episode) <= 9 for episode in recorded)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*render method without")
def test_a_world_of_pettingzoo():
    pytest.importorskip("pygame")
    task = build_task({"pettingzoo:butterfly/cooperative_pong_v6": {"kwargs": {"max_cycles": 5}}}).it
    assert len(task.agents) == 2 and task.observation_space.dtype == torch.uint8
    env = task.make(2)
    seen = env.reset([0, 1])
    for _ in range(5):
        step = env.step(torch.zeros(2, dtype=torch.int64))
    assert step.truncated.all() and seen.shape[1:] == task.observation_space.shape


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"pettingzoo:race_v0": {"kwargs": {"uneven": True}}}, "their spaces differ: left has .* right has"),
        ({"pettingzoo:race_v0": {"kwargs": {"text": True}}}, "race_v0: the observation space Text cannot"),
        ({"pettingzoo:race_v0": {"kwargs": {"wind": 1}}}, "race_v0 cannot be made: TypeError"),
        ({"pettingzoo:race_v0": {"max_steps": 0}}, "max_steps must be at least 1"),
        ({"pettingzoo:turns_v0": {}}, "has no parallel_env"),
        ({"pettingzoo:nowhere_at_all": {}}, "there is no module nowhere_at_all"),
        ({"pettingzoo:sisl/nowhere_v1": {}}, "there is no module pettingzoo.sisl.nowhere_v1"),
    ],
)
def test_wrong_settings_are_named(spec, says):
    with pytest.raises(RecipeError, match=says):
        build_task(spec)


def test_wrong_numbers_of_copies_and_failing_worlds():
    task = build()
    with pytest.raises(ValueError, match="has 2 agents: copies must be a multiple of that, got 3"):
        task.make(3)
    env = task.make(2)
    env.reset([0, 1])
    env._tops = 1000
    with pytest.raises(RuntimeError, match="fell") as caught:
        env.step(torch.tensor([98, 0]))
    assert caught.value.__notes__ == ["in pettingzoo:race_v0, world 0, step 1 of its episode"]
