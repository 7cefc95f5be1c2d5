"""A metric that no run will have is refused before the first run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gainstage.cli.arms import plan_runs
from gainstage.cli.main import app
from gainstage.cli.metric_names import check_metric
from gainstage.recipe import load
from gainstage.registry import RecipeError, load_plugin
from gainstage.running import Run

PLUGIN = """
import torch
from gainstage.registry import component


@component("objective", "own_objective_that_logs")
def own(out, mb):
    return -out.logprobs * mb["advantages"], {"own/number": mb["advantages"]}
"""


def said(metric: str, *arms: str, shared: tuple[str, ...] = ()) -> str:
    return check_metric(metric, plan_runs(list(arms or ("grpo", "rgra")), range(1), shared, Path("runs/x"), [], 1))


@pytest.mark.parametrize(
    "metric",
    ["pass@1", "pass@16", "eval/*/ece", "eval/arithmetic/length/mean", "kl/ref", "loss", "grad/norm", "time/collect",
     "reward/part/task_verdict/mean", "ratio/masked_threshold", "thompson/effective_ratio", "kl/position/3",
     "budget/generated_tokens", "hallucination", "eval/arithmetic/pass@1/low"],
)  # fmt: skip
def test_names_that_a_run_may_have_pass(metric: str) -> None:
    assert said(metric) == ""


@pytest.mark.parametrize(
    ("metric", "hint"),
    [
        ("pas@1", "did you mean 'pass@1'"),
        ("pass@2", "measures pass@1, pass@4, pass@16; --set evaluate.final_samples=2 "),
        ("eval/arithmetic/pass@64", "final_samples=64"),
        ("eval/aritmetic/ece", "did you mean 'eval/arithmetic/ece'"),
        ("kl/reff", "'kl/ref'"),
        ("foo/loss", "no run will have 'foo/loss'"),
        ("accuracy", "no run will have 'accuracy'"),
        ("retained/reverse", "no run will have"),
    ],
)
def test_other_names_are_refused_with_near_matches(metric: str, hint: str) -> None:
    with pytest.raises(RecipeError, match=r"--metric") as raised:
        said(metric)
    assert hint in str(raised.value)


def test_settings_of_the_arms_decide() -> None:
    assert said("retained/reverse/change", shared=("evaluate.retain=[reverse]",)) == ""
    assert said("pass@2", shared=("evaluate.final_samples=2",)) == ""
    assert said("value/loss", "grpo", "ppo_lm") == ""


def test_what_components_of_the_users_own_may_log_is_read_from_their_file_or_left_open(tmp_path: Path) -> None:
    (tmp_path / "own_objective.py").write_text(PLUGIN)
    load_plugin(tmp_path / "own_objective.py")
    arm = "grpo,update.policy.objectives=[own_objective_that_logs]"
    assert said("own/number", "grpo", arm) == ""
    warning = said("own/numbr", "grpo", arm)
    assert "unless update.policy.own_objective_that_logs logs it" in warning
    with pytest.raises(RecipeError, match="no run will have 'own/numbr'"):
        said("own/numbr")


def test_every_number_of_a_run_passes() -> None:
    """What a run logs and measures, the task with abstention included."""
    task = 'task={arithmetic: {abstain: "?", unanswerable: 0.3, levels: [1]}}'
    tiny = ["plan.groups=2", "plan.minibatch=8", "iterations=2", "evaluate.problems=8", "evaluate.samples=4",
            "evaluate.final_problems=8", "evaluate.final_samples=4", "evaluate.every=0.5", task]  # fmt: skip
    record = Run(load("grpo", tiny)).execute()
    names = {*record.numbers(), *(name for row in record.curve for name in row)}
    assert {"eval/arithmetic/abstention", "loss"} <= names
    plan = plan_runs(["grpo", "rgra"], range(1), tiny, Path("runs/x"), [], 1)
    assert [name for name in names if check_metric(name, plan)] == []


def test_the_command_says_it_before_a_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compare", "grpo", "rgra", "--metric", "pas@1", "--runs", str(tmp_path / "r")])
    assert result.exit_code == 2 and "did you mean 'pass@1'" in result.stderr and not (tmp_path / "r").exists()
