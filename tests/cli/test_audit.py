"""The audits, through the real command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gainstage.cli.main import app

RUN = CliRunner()


def gs(*args: str, code: int = 0) -> str:
    result = RUN.invoke(app, ["audit", *map(str, args)])
    assert result.exit_code == code, result.output + str(result.exception)
    return result.stdout


@pytest.mark.parametrize("command", ["contamination", "reward", "judge"])
def test_help_ends_in_examples(command: str) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", gs(command, "--help"))
    assert "Example" in text and f"gainstage audit {command}" in text


def test_a_clean_reward_and_one_that_pays_for_lists(tmp_path: Path) -> None:
    clean = json.loads(gs("reward", "-n", "2", "--json"))
    assert clean["clean"] and clean["right"] == 1 and sum(clean["tried"].values()) > 100
    file = tmp_path / "mine.py"
    file.write_text("def score(problem, text):\n    return float(str(problem.answer) in text)\n")
    text = gs("reward", "-n", "2", f"reward={file}:score", code=1)
    assert "several answers      18 of 18" in text and "got 1" in text
    assert gs("reward", "--task", "countdown", "-n", "2").startswith("countdown, task_verdict: 0 of")


def test_format_rewards_are_audited_as_training_pays_them() -> None:
    report = json.loads(gs("reward", "-n", "2", "reward=[task_verdict, {tag_format: {weight: 0.1}}]", "--json", code=1))
    assert report["paid"]["structure"] and not report["paid"]["empty"]
    assert {round(f["reward"], 3) for f in report["findings"]} == {0.1}


def test_judges(tmp_path: Path) -> None:
    assert json.loads(gs("judge", "-n", "3", "--json"))["trustworthy"]
    file = tmp_path / "judge.py"
    file.write_text("def prefer(question, first, second, rubric):\n    return 1.0\n")
    text = gs("judge", "-n", "3", "--judge", f"{file}:prefer", code=1)
    assert "accepts garbage" in text and "prefers the first        100.0%" in text


def test_contamination_of_the_embedded_model() -> None:
    report = json.loads(gs("contamination", "-n", "20", "--json"))
    assert not report["flagged"] and len(report["rows"]) == 6 and report["control"] == "another seed"


def test_mistakes_are_named(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"prompt": "a b", "answer": "1"}\n')
    task = f"jsonl:{tmp_path}/test.jsonl"
    for args, message in (
        (("contamination", "--task", task), "--control"),
        (("reward", "--task", "room_quest"), "check"),
        (("judge", "--judge", "nothing"), "my_file.py"),
        (("reward", "--task", "arithmetik"), "arithmetic"),
    ):
        result = RUN.invoke(app, ["audit", *args])
        assert result.exit_code == 2 and message in result.stderr, result.output
