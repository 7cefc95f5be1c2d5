"""The folder of a run: names, metrics that survive a kill, resume, full disks, secrets."""

from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from gainstage.recipe import load
from gainstage.running import Run
from gainstage.tracking import RunExists, RunFolder, read_metrics, read_status
from gainstage.tracking import files as tracking_files


def lines(folder: RunFolder) -> list[dict]:
    return [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]


def test_made_up_names_count_upwards_and_are_never_reused(runs: Path):
    made = [RunFolder.create(stem="grpo-addition") for _ in range(3)]
    assert [folder.name for folder in made] == ["grpo-addition-001", "grpo-addition-002", "grpo-addition-003"]
    (runs / "grpo-addition-041").mkdir()
    assert RunFolder.create(stem="grpo-addition").name == "grpo-addition-042"
    assert RunFolder.create(stem="grpo").name == "grpo-001"
    assert RunFolder.create(stem="../my task!").path == Path("runs/my-task-001")


def test_a_taken_name_is_kept_unless_clean_is_given(runs: Path):
    first = RunFolder.create("mine")
    first.log(0, {"reward/mean": 0.5})
    with pytest.raises(RunExists, match="--resume continues it, --clean starts anew"):
        RunFolder.create("mine")
    assert lines(first)[0]["reward/mean"] == 0.5
    with pytest.raises(RunExists, match=f"is being written by process {os.getpid()}"):
        RunFolder.create("mine", clean=True)
    first.close("stopped")
    with RunFolder.create("mine", clean=True) as second:
        assert not (second.path / "metrics.jsonl").exists()


def test_clean_deletes_nothing_but_runs(runs: Path):
    precious = runs / "thesis"
    precious.mkdir()
    (precious / "chapter1.md").write_text("years of work")
    with pytest.raises(RunExists, match="--clean will not delete it"):
        RunFolder.create("thesis", clean=True)
    assert (precious / "chapter1.md").exists()
    (runs / "note").write_text("a file")
    with pytest.raises(RunExists):
        RunFolder.create("note", clean=True)


def test_a_row_says_what_is_not_finite_and_leaves_out_what_does_not_apply(runs: Path):
    folder = RunFolder.create()
    folder.log(0, {"a": torch.tensor(1.5), "b": None, "c": math.nan, "d": math.inf, "e": 3, "f": True})
    (row,) = lines(folder)
    assert row["a"] == 1.5 and "b" not in row and row["c"] is None and row["d"] is None
    assert row["nonfinite"] == ["c", "d"]
    assert isinstance(row["e"], int) and row["f"] == 1.0 and row["iteration"] == 0


def test_resume_takes_back_what_came_after_the_checkpoint(runs: Path):
    folder = RunFolder.create("r")
    folder.log(-1, {"eval/t/pass@1": 0.1})
    for iteration in range(5):
        folder.log(iteration, {"reward/mean": iteration / 10})
        (folder.path / "rollouts").mkdir(exist_ok=True)
        (folder.path / "rollouts" / f"{iteration:06d}.parquet").touch()
    folder.close()
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 5, "rew')  # a kill in the middle of a line
    resumed = RunFolder.resume(folder.path, 3)
    assert [row["iteration"] for row in lines(resumed)] == [-1, 0, 1, 2]
    assert sorted(p.stem for p in (folder.path / "rollouts").iterdir()) == ["000000", "000001", "000002"]
    resumed.log(3, {"reward/mean": 0.3})
    assert [row["iteration"] for row in lines(resumed)] == [-1, 0, 1, 2, 3]
    seconds = [row["seconds"] for row in lines(resumed)]
    assert seconds == sorted(seconds)


def test_resume_bears_what_others_left_in_the_folder_and_names_rows_that_are_none(runs: Path):
    folder = RunFolder.create("a")
    folder.log(0, {"reward/mean": 0.1})
    (folder.path / "rollouts").mkdir()
    (folder.path / "rollouts" / "notes.parquet").write_text("")
    (folder.path / "environment.json").write_text("[]")
    folder.close("stopped")
    with RunFolder.resume(folder.path, 1) as resumed:
        resumed.write_environment([])
    assert len(json.loads((folder.path / "environment.json").read_text())["resumed"]) == 1
    for line in ("{}", "[1]"):
        (folder.path / "metrics.jsonl").write_text(line + "\n")
        with pytest.raises(ValueError, match="line 1 is no row of metrics"):
            RunFolder.resume(folder.path, 1)


def test_resume_wants_the_folder_of_a_run(runs: Path):
    with pytest.raises(RunExists, match="is not the folder of a run"):
        RunFolder.resume(runs, 0)


def test_a_torn_line_is_left_out_and_a_torn_middle_is_an_error(runs: Path):
    (runs / "metrics.jsonl").write_text('{"iteration": 0}\n{"iteration": 1}\n{"iter')
    assert [row["iteration"] for row in read_metrics(runs)] == [0, 1]
    (runs / "metrics.jsonl").write_text('{"iteration": 0}\n{"iter\n{"iteration": 2}\n')
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        read_metrics(runs)


WRITER = """
import sys
from gainstage.tracking.folder import RunFolder
folder = RunFolder.create("killed", parent=sys.argv[1])
for iteration in range(10**9):
    folder.log(iteration, {"reward/mean": 1 / 3})
    print(iteration, flush=True)
"""


def test_no_line_is_lost_when_the_process_is_killed(runs: Path):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(runs)], stdout=subprocess.PIPE, text=True)
    said = [process.stdout.readline() for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    process.wait()
    said = [int(line) for line in said if line.endswith("\n")]
    assert len(said) >= 50
    written = [row["iteration"] for row in read_metrics(runs / "killed")]
    assert written[: len(said)] == said and len(written) <= len(said) + 1
    assert read_status(runs / "killed")["state"] == "running"
    RunFolder.resume(runs / "killed", 10).close()  # the lock went with the process
    assert len(read_metrics(runs / "killed")) == 10


def _hold(path: str, ready, release) -> None:
    folder = RunFolder.create("held", parent=path)
    folder.write_recipe(load("grpo").model_dump(mode="json"))
    (folder.checkpoints / ".000001.7.tmp").mkdir(parents=True)
    ready.set()
    release.wait(30)
    folder.close()


def test_two_processes_do_not_write_one_run(runs: Path):
    context = multiprocessing.get_context("fork")
    ready, release = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(str(runs), ready, release))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(RunExists, match=f"being written by process {holder.pid}"):
        RunFolder.resume(runs / "held", 0)
    with pytest.raises(RunExists, match="being written"):
        Run.resume(runs / "held")
    assert (runs / "held/checkpoints/.000001.7.tmp").is_dir(), "a checkpoint that another process writes was removed"
    release.set()
    holder.join(30)
    RunFolder.resume(runs / "held", 0).close()


def test_a_full_disk_delays_rows_and_loses_none(runs: Path, monkeypatch: pytest.MonkeyPatch):
    folder = RunFolder.create()
    folder.log(0, {"x": 0})
    room = 10
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:room])

    monkeypatch.setattr(tracking_files.os, "write", full)
    folder.log(1, {"x": 1})  # in pieces
    real, room = write, 0
    with pytest.warns(UserWarning, match=r"metrics.jsonl not written \(.*No space left"):
        folder.log(2, {"x": 2})
    folder.log(3, {"x": 3})  # said once
    assert [row["x"] for row in lines(folder)] == [0, 1]
    monkeypatch.setattr(tracking_files.os, "write", real)
    folder.log(4, {"x": 4})
    assert [row["x"] for row in lines(folder)] == [0, 1, 2, 3, 4]
    assert [row.get("failures/log") for row in lines(folder)] == [None, None, None, 1, 1]


def test_a_write_that_fails_half_way_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    tracking_files.append(path, b"one\n")
    write, calls = os.write, iter([True, False])

    def half(descriptor: int, data: bytes) -> int:
        if next(calls):
            return write(descriptor, data[:2])
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(tracking_files.os, "write", half)
    with pytest.raises(OSError, match="full"):
        tracking_files.append(path, b"two\n")
    assert path.read_bytes() == b"one\n"


def test_status_tells_how_a_run_ended(runs: Path):
    folder = RunFolder.create("ok")
    with folder:
        folder.status("running", iteration=7, reward=0.5)
        assert read_status(folder.path)["state"] == "running"
    status = read_status(folder.path)
    assert (status["state"], status["iteration"], status["reward"]) == ("finished", 7, 0.5)
    with pytest.raises(RuntimeError), RunFolder.create("bad"):
        raise RuntimeError("loss is not finite")
    assert read_status(runs / "bad")["message"] == "RuntimeError: loss is not finite"
    with pytest.raises(KeyboardInterrupt), RunFolder.create("stopped"):
        raise KeyboardInterrupt
    assert read_status(runs / "stopped")["state"] == "stopped"
    with pytest.raises(ValueError, match="state must be one of"):
        RunFolder.create().status("happy")


def test_status_is_not_written_more_than_once_a_second(runs: Path, monkeypatch: pytest.MonkeyPatch):
    folder = RunFolder.create()
    for iteration in range(100):
        folder.status("running", iteration=iteration)
    assert read_status(folder.path)["iteration"] < 99
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 5)
    folder.status("running", iteration=100)
    assert read_status(folder.path)["iteration"] == 100


def test_recipe_and_environment_tell_what_ran(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = RunFolder.create()
    recipe = {"name": "grpo", "plan": {"groups": 16}, "select": [{"shuffle": {"samples": 8}}]}
    assert yaml.safe_load(folder.write_recipe(recipe).read_text()) == recipe
    environment = json.loads(folder.write_environment(["gainstage", "train", "grpo"]).read_text())
    assert environment["argv"] == ["gainstage", "train", "grpo"]
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["threads"] == torch.get_num_threads() and environment["cores"] >= 1
    assert environment["variables"]["OMP_NUM_THREADS"] == "1"
    folder.write_environment(["again"])
    environment = json.loads((folder.path / "environment.json").read_text())
    assert environment["argv"][0] == "gainstage" and [e["argv"] for e in environment["resumed"]] == [["again"]]


def test_no_secret_reaches_a_file(runs: Path, monkeypatch: pytest.MonkeyPatch):
    secrets = [
        "sk-abcdefghijklmnop1234",
        "plain-looking-value",
        "hunter2hunter2",
        "hf_ABCDEFGHIJKLMNOPQR",
        "s3cr3tvalue",
    ]
    monkeypatch.setenv("JUDGE_API_KEY", secrets[1])
    folder = RunFolder.create()
    folder.write_recipe(
        {"models": {"judge": {"remote": f"https://me:{secrets[2]}@host/v1", "api_key": secrets[0]}}, "note": secrets[3]}
    )
    folder.write_environment(
        ["gainstage", "train", f"models.judge.api_key={secrets[4]}", "--password", secrets[2], f"x={secrets[1]}"]
    )
    folder.status("failed", message=f"401 for key {secrets[0]}")
    written = "".join(p.read_text() for p in folder.path.iterdir() if p.is_file())
    assert "***" in written and "gainstage" in written
    for secret in secrets:
        assert secret not in written
