"""Whole offline runs: killed and resumed, on wrong data, on data of others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gainstage.chain import build_task
from gainstage.recipe import load
from gainstage.trainer import Trainer

SMALL = ["plan.updates=3", "plan.minibatch=16", "iterations=6", "evaluate.problems=2"]
METHODS = {
    "bc": ["models.policy.hidden=[8]"],
    "td3_bc": ["models.policy.hidden=[8]", "models.critic.hidden=[8]"],
    "iql": ["models.policy.hidden=[8]", "models.critic.hidden=[8]", "models.value.hidden=[8]"],
    "a2pr": [
        "models.policy.hidden=[8]", "models.critic.hidden=[8]", "models.value.hidden=[8]", "models.vae.hidden=[8]",
        "update.guided_term.warmup_updates=4",
    ],
    "awr": ["models.policy.hidden=[8]", "models.value.hidden=[8]"],
    "trajectory_weighting": ["models.policy.hidden=[8]", "models.critic.hidden=[8]"],
    "decision_transformer": ["models.policy.width=8", "models.policy.layers=1"],
}  # fmt: skip
LOG = "task={recorded: {task: {pendulum: {max_steps: 20}}, mix: medium-expert, episodes: 8}}"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GAINSTAGE_CACHE", str(tmp_path / "cache"))


def weights(trainer):
    return {
        f"{r}.{k}": v for r, handle in trainer.models.handles.items() for k, v in handle.module.state_dict().items()
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore:select.trajectory_weights")
def test_going_on_is_bit_for_bit(method):
    """Three iterations, state saved, three more in a new process's stead: the weights of six in one go."""
    recipe = load(method, [LOG, *SMALL, *METHODS[method]])
    whole = Trainer(recipe)
    whole.run()
    first = Trainer(recipe)
    first.on_row = lambda row: setattr(first, "stop_requested", first.iteration >= 3)
    first.run()
    assert first.iteration == 3
    state = first.state_dict()
    saved = {name: {k: v.clone() for k, v in part.items()} for name, part in first.models.state_dict().items()}
    second = Trainer(recipe)
    second.load_state_dict(state, saved)
    second.run()
    a, b = weights(whole), weights(second)
    assert set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


def command(*words):
    """The command line, in this process: what it printed and its exit code."""
    from typer.testing import CliRunner

    from gainstage.cli.main import app

    return CliRunner().invoke(app, [str(word) for word in words])


def started(*words, **pipes):
    """The command line as a process of its own, to be interrupted."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "gainstage", *map(str, words)], env=environment, **pipes)


def test_killed_and_resumed(tmp_path):
    """SIGKILL in the middle; what --resume ends with are the weights of a run that nobody touched."""
    from safetensors.torch import load_file

    words = ["train", "td3_bc", LOG, "plan.updates=4", "iterations=30", "save.every=0.2", "evaluate.problems=2",
             *METHODS["td3_bc"], "--runs", str(tmp_path)]  # fmt: skip
    assert command(*words, "--name", "whole").exit_code == 0
    run = started(*words, "--name", "cut", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(4000):
        if (tmp_path / "cut" / "checkpoints" / "latest").exists() or run.poll() is not None:
            break
        time.sleep(0.05)
    run.send_signal(signal.SIGKILL)
    run.wait()
    again = command("train", "--resume", tmp_path / "cut")
    assert again.exit_code == 0, again.output
    a, b = (load_file(tmp_path / name / "final" / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def run_on(data, method="bc", *more):
    Trainer(load(method, [f"task=minari:{data}", "iterations=1", *SMALL[:2], *METHODS[method], *more])).run()


@pytest.fixture
def data(tmp_path):
    pytest.importorskip("gymnasium")
    pytest.importorskip("h5py")
    out = tmp_path / "pendulum-v0"
    done = command("collect", out, "--task", "pendulum", "task.max_steps=20", "--episodes", 4)
    assert done.exit_code == 0, done.output
    return out


def test_recorded_here_trains_there(data):
    run_on(data)
    run_on(data, "td3_bc")


def test_a_cut_file_is_said(data):
    file = data / "data" / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ValueError, match="cut, damaged"):
        run_on(data)


def test_missing_columns_are_said(data):
    import h5py

    with h5py.File(data / "data" / "main_data.hdf5", "r+") as file:
        del file["episode_1"]["rewards"]
    with pytest.raises(ValueError, match="episode 1 has no rewards"):
        run_on(data)


def test_other_spaces_than_the_environment_are_said(data):
    with pytest.raises(ValueError, match="space of cart_pole is"):
        run_on(data, "bc", "task.env=cart_pole")


def test_a_net_for_choices_is_refused(data):
    with pytest.raises(ValueError, match="values choices"):
        run_on(data, "bc", "models.policy={net: q_network}")


def test_weights_for_other_spaces_are_said(data, tmp_path):
    trainer = Trainer(load("bc", ["task={recorded: {task: {positioning: {}}, mix: random, episodes: 2}}", *SMALL[:2],
                                  "iterations=1", *METHODS["bc"]]))  # fmt: skip
    trainer.run()
    trainer.models["policy"].save(tmp_path / "net")
    with pytest.raises(ValueError, match="does not fit"):
        run_on(data, "bc", f"models.policy.weights={tmp_path / 'net'}")


def test_other_data_than_the_run_began_with_are_refused():
    recipe = load("bc", [LOG, *SMALL, *METHODS["bc"]])
    first = Trainer(recipe)
    first.on_row = lambda row: setattr(first, "stop_requested", first.iteration >= 1)
    first.run()
    second = Trainer(load("bc", [LOG.replace("episodes: 8", "episodes: 9"), *SMALL, *METHODS["bc"]]))
    with pytest.raises(ValueError, match="changed since the run began"):
        second.load_state_dict(first.state_dict(), first.models.state_dict())


@pytest.mark.parametrize(("method", "more", "says"), [
    ("bc", ["task=pendulum"], "transitions"),
    ("td3_bc", ["rollout=[env_steps]"], "fixed set"),
    ("bc", ["models.policy.normalise=false"], "keeps statistics"),
    ("decision_transformer", ["store=offline"], "returns_to_go|step"),
    ("bc", ["update=[data_statistics, return_range, {policy: {objectives: [likelihood]}}]"], "decision_transformer"),
])  # fmt: skip
def test_combinations_that_cannot_work(method, more, says):
    with pytest.raises((ValueError, KeyError), match=says):
        Trainer(load(method, [LOG, *SMALL, *METHODS[method], *more])).run()


# -- the command -------------------------------------------------------------------------------------------------------


def test_collect_writes_what_minari_reads(tmp_path):
    minari = pytest.importorskip("minari")
    out = tmp_path / "mixed-v0"
    words = ["--task", "pendulum", "task.max_steps=10", "--mix", "expert=0.25,random=0.75", "-n", 8, "--json"]
    done = command("collect", out, *words)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["episodes"] == 8 and facts["steps"] == 80 and not facts["stopped"]
    assert {"return/expert", "return/random"} <= facts.keys()
    found = minari.MinariDataset(str(out / "data"))
    assert len(found) == 8 and found[0].observations.shape == (11, 3) and found[0].actions.shape == (10, 1)
    sources = [float(episode.infos["source"][-1]) for episode in found]
    assert sources.count(0.0) == 2
    metadata = json.loads((out / "data" / "metadata.json").read_text())
    assert {"ref_min_score", "ref_max_score"} <= metadata.keys()
    same = command("collect", tmp_path / "again-v0", "--task", "pendulum", "task.max_steps=10", "--mix",
                   "expert=0.25,random=0.75", "-n", 8)  # fmt: skip
    assert same.exit_code == 0
    other = minari.MinariDataset(str(tmp_path / "again-v0" / "data"))
    assert all((a.actions == b.actions).all() for a, b in zip(found, other, strict=True))


def test_collect_from_a_finished_run(tmp_path):
    pytest.importorskip("h5py")
    done = command("train", "bc", LOG, *SMALL, *METHODS["bc"], "--runs", tmp_path, "--name", "r")
    assert done.exit_code == 0, done.output
    done = command("collect", tmp_path / "own-v0", "--policy", tmp_path / "r", "--steps", 50)
    assert done.exit_code == 0, done.output
    assert "3 episodes, 60 steps" in done.stdout  # whole episodes of 20 steps
    run_on(tmp_path / "own-v0")


def test_a_set_that_was_recorded_from_another_has_its_environment(tmp_path):
    pytest.importorskip("h5py")
    gym = pytest.importorskip("gymnasium")
    world = ["--task", "gym:Pendulum-v1", "task.max_steps=15", "task.kwargs={g: 5.0}"]
    done = command("collect", tmp_path / "one-v0", *world, "-n", 2)
    assert done.exit_code == 0, done.output
    done = command("collect", tmp_path / "two-v0", "--task", f"minari:{tmp_path / 'one-v0'}", "--steps", 20)
    assert done.exit_code == 0, done.output
    again = build_task(f"minari:{tmp_path / 'two-v0'}").it
    assert again.inner is not None and again.inner.kwargs == {"g": 5.0} and again.max_steps == 15
    metadata = json.loads((tmp_path / "one-v0" / "data" / "metadata.json").read_text())
    spec = gym.envs.registration.EnvSpec.from_json(metadata["env_spec"])
    assert spec.kwargs == {"g": 5.0} and spec.max_episode_steps == 15, "others make the same environment"


def test_ctrl_c_keeps_what_is_there(tmp_path):
    pytest.importorskip("h5py")
    out = tmp_path / "long-v0"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = started("collect", out, "--task", "pendulum", "-n", 1_000_000, **pipes)
    assert run.stderr is not None
    run.stderr.readline()  # the first line of progress: episodes are being recorded
    run.send_signal(signal.SIGINT)
    text, _ = run.communicate(timeout=120)
    assert run.returncode == 0 and "stopped early" in text
    assert (out / "data" / "metadata.json").is_file() and not list(out.glob(".writing-*"))
    run_on(out)


@pytest.mark.parametrize(("words", "says"), [
    (["--task", "arithmetic"], "no environment"),
    ([], "which environment"),
    (["--task", "pendulum", "--policy", "runs/none"], "no such run"),
    (["--task", "pendulum", "--policy", "exprt"], "no policy"),
    (["--task", "pendulum", "--mix", "expert=x"], "no number"),
    (["--task", "pendulum", "-n", "2", "--steps", "5"], "not both"),
    (["--task", "pendulum", "--format", "csv"], "format must be one of"),
])  # fmt: skip
def test_collect_says_what_is_wrong(tmp_path, words, says):
    pytest.importorskip("gymnasium")
    result = command("collect", tmp_path / "x-v0", *words)
    assert result.exit_code == 2 and says in result.output
    assert not Path(tmp_path / "x-v0" / "data").exists()
