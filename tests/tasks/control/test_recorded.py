"""Recording by scripts: who acts, from where, in which proportion, and what is kept."""

from __future__ import annotations

import pytest
import torch

from gainstage import registry
from gainstage.tasks.control.recording import (
    MIXES,
    Random,
    assign,
    controller,
    episodes,
    mean_return,
    mixed,
    parse_mix,
    start_seeds,
)
from gainstage.types.spaces import Box, Discrete, MultiBinary, MultiDiscrete, contains


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GAINSTAGE_CACHE", str(tmp_path))
    return tmp_path


def task(name="pendulum", **settings):
    return registry.build("task", name, settings)


def recorded(**settings):
    return task("recorded", **({"task": {"pendulum": {"max_steps": 20}}, "episodes": 12} | settings))


def test_episodes_are_whole_and_true():
    """Replaying the recorded actions from the same seed gives the same observations and rewards."""
    world = task("cart_pole", max_steps=30)
    seeds = start_seeds(world, 5, 0)
    for episode in episodes(world, Random(world.action_space, 3), seeds, copies=2):
        env = world.make(1)
        obs = env.reset([episode.seed])
        for t in range(len(episode)):
            torch.testing.assert_close(obs[0], episode.obs[t])
            stepped = env.step(episode.actions[t : t + 1])
            assert float(stepped.reward[0]) == float(episode.rewards[t])
            torch.testing.assert_close(stepped.next_obs[0], episode.obs[t + 1])
            assert bool(stepped.terminated[0]) == bool(episode.terminated[t])
            obs = stepped.obs
        assert bool(episode.terminated[-1] | episode.truncated[-1])
        assert not bool(episode.terminated[:-1].any() | episode.truncated[:-1].any())


def test_an_episode_without_an_end_is_cut_off():
    world = task("pendulum", max_steps=None)
    (episode,) = episodes(world, Random(world.action_space), [1], limit=7)
    assert len(episode) == 7 and bool(episode.truncated[-1]) and not bool(episode.terminated.any())


@pytest.mark.parametrize("space", [Discrete(3), Box.of(-2, 3, (2,)), MultiDiscrete((2, 5)), MultiBinary(4)])
def test_random_actions_fill_the_space(space):
    actions = Random(space, 1).act(torch.zeros(500, 1))
    assert contains(space, actions)
    assert len(actions.unique(dim=0)) > 2


def test_experts_are_better_than_medium_than_random():
    world = task("pendulum")
    low, mid, high = (mean_return(world, controller(n, world), 10) for n in ("random", "medium", "expert"))
    assert low < mid < high
    assert low < -900 and high > -250


def test_shares():
    assert parse_mix("expert=1,random=3") == {"expert": 0.25, "random": 0.75}
    assert parse_mix("runs/a=0.5,random=0.5") == {"runs/a": 0.5, "random": 0.5}
    assert parse_mix("random") == {"random": 1.0} and parse_mix("medium-expert") == MIXES["medium-expert"]
    for wrong in ("expert=0,random=1", "expert=x", "expert=-1,random=2", "=1", "expert=nan"):
        with pytest.raises(ValueError, match="mix"):
            parse_mix(wrong)
    names = assign({"a": 0.34, "b": 0.66}, 10, 0)
    assert names.count("a") == 3 and names.count("b") == 7
    assert names != assign({"a": 0.34, "b": 0.66}, 10, 1) and names == assign({"a": 0.34, "b": 0.66}, 10, 0)


def test_mixtures_keep_the_order_of_starts():
    world = task("pendulum", max_steps=5)
    seeds = start_seeds(world, 10, 0)
    found = list(mixed(world, lambda n, s: controller(n, world, s), {"random": 0.5, "expert": 0.5}, seeds, 0, chunk=4))
    assert [episode.seed for episode in found] == seeds
    assert sum(float(episode.info["source"][0]) for episode in found) == 5


def test_recorded_once_and_the_same_everywhere(cache):
    first, second = recorded(), recorded(data_seed=1)
    a = first.transitions()
    assert len(a) == 12 and int(a.lengths.sum()) == 240
    assert first.path.is_file()
    before = first.path.stat().st_mtime_ns
    b = recorded().transitions()
    assert first.path.stat().st_mtime_ns == before
    assert torch.equal(a.obs, b.obs) and torch.equal(a.actions, b.actions)
    first.path.unlink()
    c = recorded().transitions()
    assert torch.equal(a.obs, c.obs) and torch.equal(a.actions, c.actions)
    assert not torch.equal(a.obs, second.transitions().obs)
    assert first.path != second.path != recorded(mix="random").path


def test_a_damaged_cache_is_recorded_again():
    one = recorded()
    wanted = one.transitions()
    one.path.write_bytes(one.path.read_bytes()[:200])
    assert torch.equal(recorded().transitions().obs, wanted.obs)


def test_what_is_stepped_is_the_environment():
    found = recorded()
    assert {"simulator", "transitions"} <= found.capabilities and found.name == "pendulum-medium-expert"
    assert found.max_steps == 20
    assert found.make(3).reset([1, 2, 3]).shape == (3, 3)
    low, high = found.reference
    assert low < high


def test_rewards_of_other_goals_are_the_environments():
    found = recorded(task="bit_flip", mix="random", episodes=2)
    bits = torch.eye(10)[:2]
    assert "goal" in found.capabilities
    assert found.compute_reward(bits, bits[[0, 0]]).tolist() == [0, -1]
    assert found.compute_terminated(bits, bits[[0, 0]]).tolist() == [True, False]
    with pytest.raises(AttributeError):
        recorded().compute_reward(bits, bits)


@pytest.mark.parametrize(("settings", "says"), [
    ({"task": "arithmetic"}, "stepped"), ({"mix": "expret"}, "no policy"), ({"mix": "expert=2,walk=1"}, "positioning"),
    ({"task": {"multi_room": {}}}, "expert|no task"), ({"episodes": 0}, "episodes"),
])  # fmt: skip
def test_what_cannot_be_recorded(settings, says):
    with pytest.raises(ValueError, match=says):
        recorded(**settings)
