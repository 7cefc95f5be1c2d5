"""The base of the batched worlds, and what every one of them must hold."""

import pytest
import torch
from tests.tasks.control import worlds

from gainstage.ops import noise
from gainstage.ops.noise import mix, uniform32
from gainstage.registry import build
from gainstage.types.spaces import Box

OWN = {
    "cart_pole": {"max_steps": 20},
    "pendulum": {"max_steps": 13},
    "mountain_car": {"max_steps": 17},
    "mountain_car_continuous": {"max_steps": 17},
    "acrobot": {"max_steps": 11},
    "bit_flip": {"bits": 4},
    "reach": {"max_steps": 9},
    "identity": {"space": "box", "view": "pieces"},
    "memory_cue": {},
    "grid_world": {"map": "pellets", "slip": 0.3, "max_steps": 20},
    "point_maze": {"maze": "open", "noise": 0.1, "tolerance": 1.0, "max_steps": 12},
    "positioning": {"dims": 5, "distortion": "rotation", "view": "signal", "max_steps": 12},
    "random_mdp": {"horizon": 5},
    "chain": {"length": 8, "view": "tiles", "width": 2, "max_steps": 30},
    "bandit": {},
    "switch_bandit": {"max_steps": 15, "std": 0.1},
    "multi_room": {"layouts": 30, "max_steps": 14},
    "key_corridor": {"layouts": 30, "rows": 2, "view": "ones", "max_steps": 14},
    "door_key": {"layouts": 30, "max_steps": 14},
    "four_rooms": {"size": 7, "layouts": 20, "max_steps": 14},
}
"""Each world with settings under which 60 random steps see ends of episodes."""


@pytest.mark.parametrize("check", worlds.ALL, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", OWN)
def test_every_world(name, check):
    ended = check(build("task", name, OWN[name]))
    assert ended is None or ended > 0, "no episode ended: the settings of this test are too lenient"


@pytest.mark.parametrize("name", sorted(set(OWN) - {"memory_cue", "random_mdp", "bandit"}))
def test_limit_cuts_episodes(name):
    """With the limit at 3 every third step is cut, where nothing else ended the episode before."""
    task = build("task", name, {**OWN[name], "max_steps": 3})
    env = task.make(6)
    env.reset(range(6))
    alive = torch.zeros(6, dtype=torch.int64)
    for action in worlds.actions(task, 6, 9):
        got = env.step(action)
        alive += 1
        assert torch.equal(got.truncated, alive >= 3)
        alive[got.terminated | got.truncated] = 0


@pytest.mark.parametrize("name", OWN)
def test_set_state_puts_copies_where_they_were(name):
    """A state taken from one world goes on in another just as it did there."""
    task = build("task", name, {**OWN[name], "max_steps": 50} if "max_steps" in OWN[name] else OWN[name])
    one, two = task.make(3), task.make(3)
    one.reset([1, 2, 3]), two.reset([7, 8, 9])
    drawn = worlds.actions(task, 3, 4)
    for action in drawn[:3]:
        one.step(action)
    two.load_state_dict({**one.state_dict(), "state": two.state})  # what is drawn later comes from the same streams
    assert torch.equal(two.set_state(one.state), one.observation())
    got, expected = two.step(drawn[3]), one.step(drawn[3])
    assert torch.equal(got.next_obs, expected.next_obs) and torch.equal(got.reward, expected.reward)


def test_wrong_use_says_what_is_wrong():
    task = build("task", "cart_pole")
    env = task.make(2)
    with pytest.raises(ValueError, match="2 copies need as many seeds, got 3"):
        env.reset([1, 2, 3])
    env.reset([1, 2])
    with pytest.raises(ValueError, match=r"shape \(2, 1\) do not fit 2 copies that take Discrete\(2\)"):
        env.step(torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"outside of Discrete\(2\)"):
        env.step(torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"the state is {'motion': \(2, 4\)}"):
        env.set_state({"speed": torch.zeros(2)})
    with pytest.raises(ValueError, match="copies must be at least 1, got 0"):
        task.make(0)
    with pytest.raises(ValueError, match="max_steps must be at least 1"):
        build("task", "cart_pole", {"max_steps": 0}).make(1)


def test_splits_share_no_start():
    task = build("task", "pendulum")
    seeds = {
        split: {task.problems(split)[i].meta["seed"] for i in range(300)} for split in ("train", "validation", "test")
    }
    assert all(len(own) == 300 for own in seeds.values())
    assert not seeds["train"] & seeds["test"] and not seeds["train"] & seeds["validation"]


# -- the noise it draws from -----------------------------------------------------------------------------------------


KEYS = torch.tensor([mix("copy", seed) for seed in range(20_000)])


def test_draws_are_the_same_on_both_paths():
    counter = torch.arange(len(KEYS)) * 7
    expected = uniform32(KEYS, counter, 3)

    places = counter.unsqueeze(1) + torch.arange(1, 4)
    bits = noise._finalise(KEYS.unsqueeze(1) + places * noise._GOLDEN)
    assert torch.equal(expected, noise._shift(bits, 41).float() * 2.0**-23 + 2.0**-24)
    assert torch.equal(expected[:, 1:], uniform32(KEYS, counter + 1, 2))


def test_draws_are_uniform_and_independent():
    drawn = uniform32(KEYS, torch.zeros_like(KEYS), 8)
    assert drawn.dtype == torch.float32 and float(drawn.min()) > 0 and float(drawn.max()) < 1
    cells = 64
    counts = torch.bincount((drawn.flatten() * cells).long(), minlength=cells).double()
    expected = drawn.numel() / cells
    assert abs(float(((counts - expected) ** 2 / expected).sum()) - (cells - 1)) < 4 * (2 * (cells - 1)) ** 0.5
    between = torch.corrcoef(drawn.T.double())  # along a stream
    assert float((between - torch.eye(8)).abs().max()) < 4 / len(KEYS) ** 0.5
    across = torch.corrcoef(torch.stack((drawn[:-1, 0], drawn[1:, 0])).double())[0, 1]
    assert abs(float(across)) < 4 / len(KEYS) ** 0.5


def test_boxes_know_their_bounds():
    task = build("task", "cart_pole")
    assert isinstance(task.observation_space, Box) and not task.observation_space.bounded
    assert build("task", "pendulum").observation_space.bounded
