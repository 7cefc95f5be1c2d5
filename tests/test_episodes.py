"""Episodes as evaluation: what is counted, from where they start, and the command that plays a finished run."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from typer.testing import CliRunner

from gainstage.cli.main import app
from gainstage.episodes import play, player
from gainstage.recipe import load
from gainstage.registry import RecipeError
from gainstage.running import Run
from gainstage.tasks.control.batched_env import Simulation, TorchEnv
from gainstage.tracking.folder import RunFolder
from gainstage.types import Act, Box, Discrete, Stop


class CountdownEnv(TorchEnv):
    """Starts at 1 to 4, falls by one a step, pays what is left; success while 2 are left, and at a real end."""

    observation_space = Box.of(0, 10, (1,))
    action_space = Discrete(2)

    def start(self):
        return {"left": 1 + (4 * self.draw(1)).floor()}

    def advance(self, state, action):
        left = state["left"] - 1
        over = left[:, 0] <= 0
        return {"left": left}, left[:, 0], over, {"success": (left[:, 0] == 2) | over}

    def observe(self, state):
        return state["left"]


@dataclass
class Countdown(Simulation):
    name: ClassVar[str] = "countdown_env"
    observation_space = CountdownEnv.observation_space
    action_space = CountdownEnv.action_space
    max_steps: int = 3

    def make(self, copies, device="cpu"):
        return CountdownEnv(copies, device, self.max_steps)


def idle() -> SimpleNamespace:
    """A policy that always takes the first choice."""
    return SimpleNamespace(
        device=torch.device("cpu"),
        act=lambda obs, state, explore: Act(torch.zeros(len(obs), dtype=torch.int64)),
        to_env=lambda action: action,
    )


@pytest.mark.parametrize("copies", [1, 3, 64])
def test_what_an_episode_counts_does_not_depend_on_its_wave(copies: int) -> None:
    task = Countdown()
    problems = task.problems("test")[:10]
    records = play(task, idle(), problems, 2, explore=False, copies=copies)
    starts = set()
    for record in records:
        assert record.n == 2
        for answer in record.answers:
            first = {0: 1, 1: 2, 3: 3, 6: 4}[int(answer.reward)]
            starts.add(first)
            assert answer.length == min(first, 3)
            assert answer.stop is (Stop.TIME_LIMIT if first == 4 else Stop.TERMINATED)
            assert answer.correct is (first != 4), "two left on the way is not what the last step said"
    assert starts == {1, 2, 3, 4}
    assert records == play(task, idle(), problems, 2, explore=False, copies=7)


def test_splits_start_elsewhere() -> None:
    task = Countdown()
    seeds = [{p.meta["seed"] for p in task.problems(split)[:2000]} for split in ("train", "validation", "test")]
    assert not (seeds[0] & seeds[1] or seeds[0] & seeds[2] or seeds[1] & seeds[2])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("runs")
    with RunFolder.create("ppo", parent=where) as folder:
        Run(load("ppo", ["iterations=1", "budget={}", "evaluate.problems=4"]), folder).execute()
    return where / "ppo"


def test_a_finished_run_plays_and_is_filmed(finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("imageio")
    film = tmp_path / "films" / "a.gif"
    made = CliRunner().invoke(app, ["play", str(finished), "-n", "6", "--film", str(film), "--json"])
    assert made.exit_code == 0, made.output
    numbers = json.loads(made.stdout)
    assert numbers["episodes"] == 6 and numbers["low"] < numbers["return"] < numbers["high"]
    assert numbers["return"] == numbers["length"], "cart_pole pays 1 a step"
    assert film.read_bytes()[:4] == b"GIF8"
    made = CliRunner().invoke(app, ["play", str(finished), "-n", "1", "--film", str(film)])
    steps = re.search(r"episodes of (\d+) steps", made.output)
    assert steps is not None and f"({steps[1]} frames)" in made.output, "a picture of every state that is acted on"


def test_the_policy_that_plays_is_the_one_that_was_left(finished: Path) -> None:
    from safetensors.torch import load_file

    task, policy = player(finished)
    left = load_file(finished / "final" / "model.safetensors")
    assert task.name == "cart_pole"
    assert all(torch.equal(value, left[name]) for name, value in policy.module.state_dict().items())


@pytest.mark.parametrize(
    ("task", "says"), [("pendulum", "does not fit this net and task"), ("arithmetic", "is no task that is stepped")]
)
def test_another_task_must_fit(finished: Path, task: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        player(finished, task)


def test_no_run_and_an_unfinished_one_are_told_apart(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="holds no run"):
        player(tmp_path)
    (tmp_path / "recipe.yaml").write_text((finished / "recipe.yaml").read_text())
    with pytest.raises(RecipeError, match=r"is not finished .*--resume"):
        player(tmp_path)
    made = CliRunner().invoke(app, ["play", str(finished), "--film", "a.avi"])
    assert made.exit_code == 2
