"""A walk that tries shortcuts: when it tries, when it takes back, what it learns from, and that it helps."""

from __future__ import annotations

import pytest
import torch

from gainstage.tasks.control.augmented_logger import AugmentedLogger, Augmentor
from gainstage.tasks.control.controller import Controller
from gainstage.tasks.control.positioning import Positioning
from gainstage.tasks.control.positioning_controllers import CoordinateWalk
from gainstage.tasks.control.recording import controller, episodes, mixed, start_seeds

TASK = Positioning(dims=2)


class Script(Controller):
    """Always moves along the first axis, and remembers who was resynchronised."""

    def __init__(self):
        self.moved = []

    def act(self, obs):
        return torch.tensor([[1.0, 0.0]]).expand(len(obs), 2)

    def resync(self, moved):
        self.moved.append(moved.tolist())


class Away(Augmentor):
    """Tries what does harm."""

    def move(self, obs):
        return obs / obs.norm(dim=1, keepdim=True)


def logger(augmentor=None, **settings):
    made = AugmentedLogger(TASK, Script(), **({"chance": 1.0} | settings))
    made.augmentor = augmentor
    return made


def test_without_an_augmentor_it_is_the_script():
    made = logger()
    assert made.act(torch.ones(3, 2)).tolist() == [[1.0, 0.0]] * 3 and made.logger.moved == []
    walk, plain = (
        list(episodes(TASK, c, start_seeds(TASK, 4, 0)))
        for c in (AugmentedLogger(TASK, CoordinateWalk(TASK)), CoordinateWalk(TASK))
    )
    assert all(torch.equal(a.actions, b.actions) for a, b in zip(walk, plain, strict=True))


def test_harm_is_undone_and_the_script_left_alone_for_three_steps():
    made = logger(Away(2, 2, 1.0))
    env = TASK.make(1)
    obs, kinds = env.reset([3]), []
    made.reset(torch.ones(1, dtype=torch.bool))
    for _ in range(7):
        before = obs
        stepped = env.step(made.act(obs))
        kinds.append("probe" if bool(made.probing[0]) else "back" if made.logger.moved[-1:] else "script")
        made.rewarded(stepped.reward)
        obs = stepped.obs
        if len(kinds) == 3:
            undone, tried = obs - before, stepped
    # the first try has nothing to compare with; the second is paid less and is undone
    assert [bool(k == "probe") for k in kinds] == [True, True, False, False, False, False, True]
    assert made.undone == 2 and made.probes == 3
    assert undone.norm() == pytest.approx(1.0, abs=1e-5) and float(tried.reward[0]) > -float(obs.norm()) - 10
    assert [m for m in made.logger.moved if any(m)] == [[True]] * 4  # three tries and one way back


def test_the_way_back_ends_where_the_try_began():
    made = logger(Away(2, 2, 1.0))
    env = TASK.make(1)
    obs = env.reset([5])
    made.reset(torch.ones(1, dtype=torch.bool))
    places = [obs]
    for _ in range(3):
        stepped = env.step(made.act(obs))
        made.rewarded(stepped.reward)
        obs = stepped.obs
        places.append(obs)
    torch.testing.assert_close(places[3], places[1], rtol=0, atol=1e-5)


def test_a_new_episode_forgets_the_last_one():
    made = logger(Away(2, 2, 1.0))
    for reward in (-1.0, -9.0):
        made.act(torch.ones(2, 2))
        made.rewarded(torch.tensor([reward, reward]))
    assert made.back.tolist() == [True, True]
    made.reset(torch.tensor([True, False]))
    assert made.back.tolist() == [False, True] and made.cool.tolist() == [0, 4] and float(made.before[0]) == -torch.inf


def test_it_learns_after_the_first_episodes_and_gets_there_sooner():
    made = {}

    def make(name, seed):
        made[name] = controller(name, TASK, seed)
        return made[name]

    log = list(mixed(TASK, make, {"augmented": 1.0}, start_seeds(TASK, 40, 0), 0))
    found = made["augmented"]
    assert found.fits == 4 and found.episodes == 40 and found.probes > 0
    plain = list(mixed(TASK, make, {"walk": 1.0}, start_seeds(TASK, 40, 0), 0))
    assert all(torch.equal(a.actions, b.actions) for a, b in zip(log[:10], plain[:10], strict=True))
    steps, walked = (sum(map(len, part[20:])) / 20 for part in (log, plain))
    assert steps < 0.8 * walked
    length = torch.cat([episode.actions for episode in log]).norm(dim=1).max()
    assert float(length) <= 1 + 1e-5


def test_it_goes_on_from_what_was_kept():
    log = list(episodes(TASK, CoordinateWalk(TASK), start_seeds(TASK, 10, 0)))
    first = AugmentedLogger(TASK, CoordinateWalk(TASK), seed=1)
    first.learn(log)
    obs = torch.tensor([[3.0, 1.0], [-2.0, 2.0]])
    first.act(obs)
    second = AugmentedLogger(TASK, CoordinateWalk(TASK), seed=2)
    second.load_state_dict(first.state_dict())
    for _ in range(5):
        assert torch.equal(first.act(obs), second.act(obs))
    first.learn(log[:3])
    second.seed = 1
    second.learn(log[:3])
    assert torch.equal(first.augmentor.move(obs), second.augmentor.move(obs))


@pytest.mark.parametrize("wrong", [{"chance": 1.5}, {"first": 0}, {"every": 0}, {"rest": -1}, {"tolerance": -0.1}])
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(ValueError):
        logger(**wrong)
