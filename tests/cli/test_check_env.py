"""`gainstage check-env` from the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from gainstage.cli.main import app

gym = pytest.importorskip("gymnasium")

BROKEN = """
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Leaky(gym.Env):
    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0.0
        return np.array([self.np_random.random(), 0], np.float32), {}

    def step(self, action):
        self.at += 0.4
        return np.array([0, self.at], np.float32), 1.0, self.at > 3, False, {}


if "Leaky-v0" not in gym.registry:
    gym.register("Leaky-v0", entry_point=Leaky)
"""


def run(*arguments):
    return CliRunner().invoke(app, ["check-env", *map(str, arguments)])


def test_a_right_environment():
    out = run("CartPole-v1", "--steps", 200)
    assert out.exit_code == 0, out.output
    assert "CartPole-v1: cut off after 500 steps" in out.output and "Nothing is wrong." in out.output


def test_json_and_settings():
    out = run("gym:CartPole-v1", "--steps", 100, "--json", "task.max_steps=7")
    found = json.loads(out.output)
    assert out.exit_code == 0 and found["limit"] == 7 and found["length"] == 7.0
    assert (found["steps"], found["errors"], found["complaints"]) == (100, 0, [])


def test_a_wrong_one_is_told_so(tmp_path):
    plugin = tmp_path / "leaky.py"
    plugin.write_text(BROKEN)
    out = run("Leaky-v0", "--plugin", plugin, "--steps", 100)
    assert out.exit_code == 2
    assert "error  observation: lies outside its space: 1.2 at entry 1, allowed are -1 to 1, at step 3" in out.output
    assert "times more)" in out.output and "1 error\n" in out.output
    found = json.loads(run("Leaky-v0", "--plugin", plugin, "--steps", 100, "--json").output)
    assert found["errors"] == 1 and found["complaints"][0]["about"] == "observation"


def test_our_own_tasks():
    out = run("pendulum", "--steps", 200, "task.max_steps=20")
    assert out.exit_code == 0, out.output
    assert "shows Box(3)" in out.output and "cut off after 20 steps" in out.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["CartPol-v1"], "did you mean"),
        (["arithmetic"], "arithmetic is no task that is stepped"),
        (["CartPole-v1", "task.speed=3"], "has no setting 'speed'"),
        (["pendulum", "max_steps"], "key=value"),
    ],
)
def test_wrong_arguments(arguments, says):
    out = run(*arguments)
    assert out.exit_code == 2 and says in out.output, out.output
