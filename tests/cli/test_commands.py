"""The commands, through the real command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gainstage.cli.main import app
from gainstage.recipe import catalog
from gainstage.tracking.folder import read_metrics

RUN = CliRunner()
TINY = ["plan.groups=4", "plan.minibatch=16", "iterations=2", "evaluate.problems=4", "evaluate.samples=1",
        "evaluate.final_problems=4", "evaluate.final_samples=2"]  # fmt: skip
COMMANDS = ["train", "compare", "reproduce", "ledger", "evaluate", "methods", "show", "tasks", "pretrain", "sample",
            "doctor"]  # fmt: skip


def gs(*args: str, code: int = 0) -> str:
    result = RUN.invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output + str(result.exception)
    return result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_in_examples(command: str) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", gs(command, "--help"))
    assert "Example" in text and f"gainstage {command}" in text


def test_methods_lists_the_catalogue() -> None:
    rows = json.loads(gs("methods", "--json"))
    assert {row["name"] for row in rows} == set(catalog())
    assert all(row["title"] and row["paper"] for row in rows)
    assert "vade" in gs("methods", "--tag", "sampler")


@pytest.mark.parametrize("name", ["grpo", "ppo_lm", "opd", "dpo"])
def test_show_and_flat(name: str) -> None:
    assert "reads" in gs("show", name)
    flat = gs("show", name, "--flat")
    compile(flat, name, "exec")
    order = [
        flat.find(f"# ---- {stage}.")
        for stage in ("rollout", "store", "credit", "update")
        if f"# ---- {stage}." in flat
    ]
    assert order == sorted(order)
    assert "def optimise" in flat


def test_show_json_names_columns() -> None:
    data = json.loads(gs("show", "grpo", "--json"))
    assert {"stage": "credit", "name": "broadcast", "reads": ["advantage", "mask"], "writes": ["advantages"]} in data[
        "columns"
    ][0]


def test_tasks() -> None:
    assert "arithmetic" in gs("tasks")
    assert json.loads(gs("tasks", "arithmetic", "--json"))["answer"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["train", "grpoo"], "'grpo'"),
        (["train"], "which method"),
        (["train", "grpo", "plan.grups=3"], "groups"),
        (["train", "grpo", "--task", "arithmetik"], "arithmetic"),
        (["train", "grpo", "--policy", "./nowhere"], "does not exist"),
        (["train", "grpo", "--budget", "generated_token=5"], "generated_tokens"),
        (["train", "grpo", "--device", "cuda:7x"], "device"),
        (["train", "grpo", "--plugin", "absent.py"], "no such file"),
        (["train", "grpo", "--resume", "nowhere"], "--resume takes the run as it is"),
        (["train", "--resume", "nowhere"], "holds no run"),
        (["train", "grpo", "--track", "wandbb", "iterations=1"], "wandb"),
        (["compare", "grpo"], "two arms"),
        (["compare", "grpo", "grpo"], "twice"),
        (["compare", "grpo", "rgra", "--seeds", "0"], "--seeds"),
        (["compare", "grpo", "rgra", "--axis", "gradient_step"], "gradient_steps"),
        (["compare", "grpo", "rgra", "--jobs", "-1"], "--jobs"),
        (["compare", "grpo,update.policy.lr=3e-4", "grpo,update.policy.lr=3e+4"], "both be written"),
        (["compare", "grpo", "grpo,update.policy.lrr=3"], "'lr'"),
        (["train", "grpo", "--threads", "0"], "--threads"),
        (["evaluate", "--samples", "0"], "--samples"),
        (["show", "nothing"], "no recipe"),
        (["tasks", "nothing"], "no task"),
        (["evaluate", "--split", "tset"], "split"),
        (["sample", "nothing-of-that-name", "-p", "x"], "micro"),
        (["sample", "-p", "x", "-k", "0"], "--number"),
    ],
)
def test_mistakes_are_one_line_and_code_2(
    args: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = RUN.invoke(app, args)
    assert result.exit_code == 2, result.output + str(result.exception)
    assert says in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "text",
    ["def f(:", "raise KeyError('x')", "import no_such_module", "raise SystemExit", "import os\nos._exit(0)"],
)
def test_a_plugin_that_does_not_run_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(text)
    result = RUN.invoke(app, ["train", "grpo", "--dry-run", "--plugin", str(tmp_path / "own.py")])
    assert result.exit_code == 2 and "own.py does not run" in result.output


def test_a_run_whose_status_or_recipe_was_damaged(tmp_path: Path) -> None:
    gs("train", "grpo", "--runs", tmp_path, "--name", "a", *TINY)
    (tmp_path / "a" / "status.json").write_text("")  # a power cut: it is written without waiting for the disk
    gs("train", "--resume", tmp_path / "a")
    assert json.loads((tmp_path / "a" / "status.json").read_text())["state"] == "finished"
    (tmp_path / "a" / "recipe.yaml").write_text("plan: [")
    result = RUN.invoke(app, ["train", "--resume", str(tmp_path / "a")])
    assert result.exit_code == 2 and "recipe.yaml: not readable" in result.output


def test_workers_end_when_the_comparison_is_killed(tmp_path: Path) -> None:
    import os
    import signal
    import time

    changes = [text for change in TINY if not change.startswith("iterations") for text in ("--set", change)]
    command = [sys.executable, "-m", "gainstage.cli.main", "compare", "grpo", "rgra", "--seeds", "1", "--jobs", "1",
               "--budget", "generated_tokens=900k", "--runs", str(tmp_path), "--name", "c", *changes]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    status = tmp_path / "c" / "grpo-seed0" / "status.json"
    for _ in range(600):
        time.sleep(0.1)
        if len(read_metrics(status.parent)) > 1:
            break
    worker = json.loads(status.read_text())["pid"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(300):
        time.sleep(0.1)
        state = Path(f"/proc/{worker}/stat")
        if not state.is_file() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker of a killed comparison went on")


def test_commas_inside_brackets_do_not_part_an_arm() -> None:
    from gainstage.cli.arms import pieces

    assert pieces("grpo") == ["grpo"]
    assert pieces("grpo,plan.epochs=2,reward=[task_verdict, {length: {as: 'a,b'}}]") == [
        "grpo", "plan.epochs=2", "reward=[task_verdict, {length: {as: 'a,b'}}]"]  # fmt: skip


def test_train_dry_run_prints_the_arithmetic(tmp_path: Path) -> None:
    gs("train", "grpo", "--dry-run", "--runs", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_run_says_where_its_data_become_off_policy() -> None:
    from gainstage.cli.train import describe
    from gainstage.recipe import load
    from gainstage.running import Run

    assert "off-policy" in describe(Run(load("rgra")))
    assert "off-policy" not in describe(Run(load("rgra", ["plan.minibatch=null"])))
    assert "off-policy" not in describe(Run(load("grpo")))
    assert "at most 16 tokens an answer" in describe(Run(load("dapo")))


def test_train_evaluate_sample(tmp_path: Path) -> None:
    gs("train", "grpo", "--runs", tmp_path, "--name", "a", *TINY)
    assert (tmp_path / "a" / "final" / "model.safetensors").is_file()
    gs("train", "grpo", "--runs", tmp_path, "--name", "a", *TINY, code=2)  # the name is taken
    out = json.loads(
        gs("evaluate", "--policy", tmp_path / "a", "-n", "4", "--json", "--save", tmp_path / "answers.jsonl")
    )
    assert 0 <= out["pass@1"] <= 1
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 4
    assert gs("sample", str(tmp_path / "a"), "-p", "1+1=", "--max-new", "8", "-k", "2").count("\n") == 2


def test_evaluate_tells_declining_rightly_from_wrongly() -> None:
    args = ["evaluate", "-n", "8", "--samples", "1"]
    said = gs(*args, 'task={arithmetic: {abstain: "?", unanswerable: 0.5}}')
    assert "abstained 0.0 % (0.0 % of unanswerable, 0.0 % of answerable)" in said
    assert "unanswerable" not in gs(*args, 'task={arithmetic: {abstain: "?"}}') and "abstained" not in gs(*args)


def test_compare_and_again(tmp_path: Path) -> None:
    args = [
        "compare",
        "grpo",
        "rgra",
        "--seeds",
        "2",
        "--runs",
        tmp_path,
        "--name",
        "c",
        "--budget",
        "generated_tokens=2k",
    ]
    args += [text for change in TINY if not change.startswith("iterations") for text in ("--set", change)]
    report = json.loads(gs(*args, "--json"))
    assert "verdict" in json.dumps(report)
    page = (tmp_path / "c" / "report.html").read_text()
    assert "<svg" in page and "http://" not in page.replace("http://www.w3.org", "") and "<script" not in page
    before = (tmp_path / "c" / "grpo-seed0" / "record.json").stat().st_mtime_ns
    result = RUN.invoke(app, [*map(str, args), "--axis", "gradient_steps"])
    assert result.exit_code == 0 and "evaluation, which no budget counts: 52 answers" in result.stderr
    assert (tmp_path / "c" / "grpo-seed0" / "record.json").stat().st_mtime_ns == before, "a finished run was run again"
    assert json.loads((tmp_path / "c" / "report.json").read_text())["axis"] == "gradient_steps"
    text = (tmp_path / "c" / "report.md").read_text()
    assert "| gradient steps | grpo | rgra |" in text and "pass@1 before" in text
    page = (tmp_path / "c" / "report.html").read_text()
    assert re.search(r'id="x0" checked><label for="x0"[^>]*>gradient steps', page)


def test_tasks_with_many_answers_show_none() -> None:
    assert "answer" not in gs("tasks", "countdown").split("problem")[1]
    assert "answer " in gs("tasks", "arithmetic")


def test_help_says_what_may_be_given() -> None:
    text = re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m|\u2502", "", gs("compare", "--help")))
    assert "generated_tokens=80k" in text and "jsonl:PATH" in text and "gym:ID" in text


def test_pretrain_is_deterministic(tmp_path: Path) -> None:
    import hashlib

    for name in "ab":
        gs("pretrain", "micro-half", "--steps", "2", "--no-rates", "--out", tmp_path / name)
    first, second = (hashlib.sha256((tmp_path / n / "model.safetensors").read_bytes()).hexdigest() for n in "ab")
    assert first == second


def test_sigterm_stops_cleanly_and_resume_finishes(tmp_path: Path) -> None:
    """The first signal ends the iteration, writes a checkpoint and exits with 130; the run goes on from there."""
    import signal
    import time

    command = [
        sys.executable,
        "-m",
        "gainstage.cli.main",
        "train",
        "grpo",
        "--runs",
        str(tmp_path),
        "--name",
        "s",
        *TINY,
    ]
    command[command.index("iterations=2")] = "iterations=400"
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    for _ in range(600):
        time.sleep(0.1)
        if len(read_metrics(tmp_path / "s")) > 2:
            break
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert json.loads((tmp_path / "s" / "status.json").read_text())["state"] == "stopped"
    done = len(read_metrics(tmp_path / "s"))
    assert b"--resume" in errors and done < 400
    assert list((tmp_path / "s" / "checkpoints").glob("0*"))
