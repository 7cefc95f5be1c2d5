"""Trackers: the right names reach them, and what fails there does not reach the training."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gainstage.ops.extras import MissingExtra
from gainstage.tracking import RunFolder, Sinks
from gainstage.tracking.sinks import identity

ROW = {"iteration": 4, "seconds": 1.5, "reward/mean": 0.5, "kl/ref": None, "nonfinite": ["kl/ref"], "lr": 1e-4}


class Recorder:
    """Stands in for a tracker's module."""

    def __init__(self) -> None:
        self.started: dict = {}
        self.rows: list = []
        self.ended = 0

    def init(self, **settings):
        self.started = settings
        return self

    def log(self, metrics, step):
        self.rows.append((step, metrics))

    def finish(self):
        self.ended += 1


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_rows_reach_the_tracker_in_the_spelling_asked_for(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tracker = Recorder()
    monkeypatch.setitem(sys.modules, name, tracker)
    sinks = Sinks([name], tmp_path / "run-7", {"api_key": "sk-secret", "seed": 1}, log_names="trl")
    sinks.log(ROW)
    sinks.close()
    assert tracker.rows == [(4, {"seconds": 1.5, "reward": 0.5, "learning_rate": 1e-4})]
    assert tracker.started["name"].startswith("run-7") and tracker.started["config"] == {"api_key": "***", "seed": 1}
    assert tracker.ended == 1


def test_tensorboard_files_hold_the_numbers(tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    sinks = Sinks(["tensorboard"], tmp_path, {})
    sinks.log(ROW)
    sinks.log({**ROW, "iteration": 5, "reward/mean": 0.75})
    sinks.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(4, 0.5), (5, 0.75)]
    assert "kl/ref" not in events.Tags()["scalars"]


def test_a_failing_tracker_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    good, bad = Recorder(), Recorder()
    bad.log = lambda metrics, step: (_ for _ in ()).throw(ConnectionError("no network"))
    monkeypatch.setitem(sys.modules, "trackio", good)
    monkeypatch.setitem(sys.modules, "wandb", bad)
    sinks = Sinks(["wandb", "trackio"], tmp_path, {})
    with pytest.warns(UserWarning, match="wandb is left out from here on: ConnectionError: no network"):
        sinks.log(ROW)
    sinks.log(ROW)
    assert len(good.rows) == 2


def test_wrong_names_and_missing_packages_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="unknown tracker 'mlflow'; known are tensorboard, trackio, wandb"):
        Sinks(["mlflow"], tmp_path, {})
    with pytest.raises(ValueError, match="log_names must be one of"):
        Sinks([], tmp_path, {}, log_names="hf")
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[track\]"):
        Sinks(["trackio"], tmp_path, {})


def test_a_resumed_run_goes_on_and_one_started_anew_does_not(runs: Path):
    folder = RunFolder.create("mine")
    first = identity(folder.path)
    folder.close()
    RunFolder.resume(folder.path, 0).close()
    assert identity(folder.path) == first and first.startswith("mine-")
    (folder.path / "status.json").write_text('{"started": "later"}')
    assert identity(folder.path) != first


def test_no_sink_is_nothing(tmp_path: Path):
    sinks = Sinks([], tmp_path, {})
    sinks.log(ROW)
    sinks.close()
    assert list(tmp_path.iterdir()) == []
