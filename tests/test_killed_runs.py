"""SIGKILL and --resume through the command line: runs that replay end with the bits of a run that nobody touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from gainstage.cli.main import app
from gainstage.tracking.folder import read_metrics

QUICK = ["models.policy.hidden=[32]", "plan.minibatch=32", "evaluate.problems=1", "evaluate.every=1", "save.every=0.2"]
RUNS = {
    "rainbow": [
        "task=cart_pole", "plan.updates=1", "budget.env_steps=2560", "store.replay.capacity=1000",
        "store.replay.least=200",
    ],
    "sac": [
        "task=pendulum", "models.critic.hidden=[32]", "plan.updates=1", "budget.env_steps=1500",
        "store.replay.capacity=600", "store.replay.least=200", "store.replay.on_disk=true",
        "rollout.uniform_warmup.steps=200",
    ],
    "her": ["task={bit_flip: {bits: 6}}", "plan.updates=1", "budget.env_steps=4800", "store.episodes.capacity=2000"],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RUNS))
def test_killed_between_two_checkpoints_and_resumed(name: str, tmp_path: Path) -> None:
    """The ring has turned, and what it holds at the kill is newer than the checkpoint that is gone back to."""
    words = ["train", name, *QUICK, *RUNS[name], "--runs", str(tmp_path)]
    whole = CliRunner().invoke(app, [*words, "--name", "whole"])
    assert whole.exit_code == 0, whole.output
    cut = tmp_path / "cut"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gainstage", *words, "--name", "cut"]
    run = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while run.poll() is None:
        time.sleep(0.01)
        saved = cut / "checkpoints" / "latest"
        if saved.exists() and int(saved.read_text()) < len(read_metrics(cut)) - 2:
            break
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, "it was through before it could be killed"
    assert not list(cut.rglob(".tensor*")), "the file of the ring has no name"
    again = CliRunner().invoke(app, ["train", "--resume", str(cut)])
    assert again.exit_code == 0, again.output
    names = sorted(path.name for path in (tmp_path / "whole" / "checkpoints").iterdir())
    assert names == sorted(path.name for path in (cut / "checkpoints").iterdir())
    newest = f"checkpoints/{names[-2]}"
    for role in (tmp_path / "whole" / newest / "models").iterdir():
        a, b = load_file(role), load_file(cut / newest / "models" / role.name)
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a), role.name
    steps = [
        {file.name: file.read_bytes() for file in (folder / newest / "store").iterdir()}
        for folder in (tmp_path / "whole", cut)
    ]
    assert steps[0] and steps[0] == steps[1]
