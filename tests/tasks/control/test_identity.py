"""Identity worlds: the answer is paid in full, chance is paid by chance, and every view tells the answer."""

import pytest
import torch
from tests.tasks.control import worlds

from gainstage.registry import RecipeError, build
from gainstage.types.spaces import contains, describe_space

KINDS = ("discrete", "box", "multi_discrete", "multi_binary")
VIEWS = ("plain", "pieces", "picture")
CHANCE = {"discrete": 1 / 3, "box": -2 / 3, "multi_discrete": 1 / 3, "multi_binary": 1 / 2}
"""Mean reward of uniformly random answers; of two independent numbers in [-1, 1] the mean squared distance is 2/3."""


def decode(task, obs):
    """The answer, read off what is shown."""
    if task.view == "plain" and task.space in ("discrete", "box"):
        return obs
    rows, across = task.cells
    if task.view == "picture":
        side = obs.shape[1]
        table = obs[:, :: side // rows, :: side // across, 0].float() / 255
        table = table * 2 - 1 if task.space == "box" else table
    elif task.view == "pieces":
        part = task.observation_space.pieces["cue"]
        table = obs[:, part.start : part.stop].reshape(-1, *part.shape)
    else:
        table = obs.reshape(-1, rows, across)
    if task.space == "discrete":
        return table[:, 0].argmax(1)
    if task.space == "multi_discrete":
        return table.argmax(2)
    return table[:, 0].long() if task.space == "multi_binary" else table[:, 0]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("space", KINDS)
def test_the_view_tells_the_answer(space, view):
    task = build("task", "identity", {"space": space, "view": view})
    env = task.make(400)
    obs = env.reset(range(400))
    for step in range(1, 12):
        assert contains(task.observation_space, obs), describe_space(task.observation_space)
        answer = decode(task, obs)
        assert contains(task.action_space, answer)
        got = env.step(answer)
        expected = 0.0 if space == "box" else 1.0
        assert got.reward.tolist() == pytest.approx([expected] * 400, abs=2e-5)  # a picture has 256 shades
        assert got.info["success"].all() and not got.terminated.any() and bool(got.truncated.all()) == (step == 10)
        obs = got.obs
    chance = torch.cat([env.step(action).reward for action in worlds.actions(task, 400, 20)])
    assert float(chance.mean()) == pytest.approx(CHANCE[space], abs=4 * float(chance.std()) / len(chance) ** 0.5)


def test_what_is_shown_depends_on_nothing():
    task = build("task", "identity")
    env = task.make(3000)
    first = env.reset(range(3000))
    second = env.step(torch.zeros_like(first)).obs
    joint = torch.bincount(first * 3 + second, minlength=9) / 3000
    assert (joint - 1 / 9).abs().max() < 0.025


def test_a_cue_has_to_be_kept():
    task = build("task", "memory_cue", {"choices": 3, "delay": 4})
    env = task.make(300)
    obs = env.reset(range(300))
    cue = obs[:, :3].argmax(1)
    assert torch.equal(obs.sum(1), torch.ones(300)) and torch.bincount(cue, minlength=3).min() > 60
    for _ in range(3):
        got = env.step(cue)
        assert got.obs.abs().sum() == 0 and got.reward.sum() == 0 and not got.terminated.any()
    got = env.step(cue)
    assert torch.equal(got.obs[:, 3], torch.ones(300)) and got.obs[:, :3].sum() == 0 and not got.terminated.any()
    answer = torch.where(torch.arange(300) < 150, cue, (cue + 1) % 3)
    got = env.step(answer)
    assert got.terminated.all() and got.reward.tolist() == [1.0] * 150 + [0.0] * 150
    assert torch.equal(got.obs.sum(1), torch.ones(300)) and got.obs[:, 3].sum() == 0  # the next cue


def test_settings_are_checked():
    for settings in ({"choices": 1}, {"count": 0}, {"count": 40, "space": "box"}):
        with pytest.raises(RecipeError, match=r"choices|count"):
            build("task", "identity", settings)
    with pytest.raises(RecipeError, match="space"):
        build("task", "identity", {"space": "continuous"})
    with pytest.raises(RecipeError, match="delay"):
        build("task", "memory_cue", {"delay": 0})
