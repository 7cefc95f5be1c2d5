"""Looking on changes nothing: no weight, no checkpoint and no choice ever depends on the test split."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import gainstage
from gainstage import checkpoint
from gainstage.recipe import load
from gainstage.registry import RecipeError
from gainstage.running import Run
from gainstage.tracking.folder import RunFolder

TINY = ["plan.groups=4", "plan.minibatch=16", "evaluate.problems=4", "evaluate.samples=2", "evaluate.every=0.3",
        "iterations=3", "save.every=0.3", "save.keep=9"]  # fmt: skip


def finished(folder: Path, name: str, *overrides: str) -> tuple[Run, set[str]]:
    """A finished run and the splits that it asked its task for."""
    run = Run(load("grpo", [*TINY, *overrides]), RunFolder.create(name, parent=folder))
    kind, asked = type(run.task), set[str]()
    before = kind.problems

    def problems(task, split: str):
        asked.add(split)
        return before(task, split)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "problems", problems)
        run.execute()
    return run, asked


def test_a_run_that_looks_at_test_ends_with_the_same_weights_and_checkpoints(tmp_path):
    validation, seen = finished(tmp_path, "validation")
    test, seen_test = finished(tmp_path, "test", "evaluate.split=test", "evaluate.problems=7")
    assert seen == {"train", "validation"}, "nobody asks for the test problems unless the evaluation is told to"
    assert seen_test == {"train", "test"}
    kept = [sorted(p.name for p in run.folder.checkpoints.iterdir()) for run in (validation, test)]
    assert kept[0] == kept[1] and len(kept[0]) >= 3
    weights = [load_file(run.folder.path / "final" / "model.safetensors") for run in (validation, test)]
    assert weights[0].keys() == weights[1].keys() and all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])
    left = [run.looks.last for run in (validation, test)]
    assert {r.problem_id for r in left[0]}.isdisjoint(r.problem_id for r in left[1]), "the looks themselves differ"


def test_the_model_that_is_left_is_the_last_one_whatever_the_looks_said(tmp_path):
    run, _ = finished(tmp_path, "run")
    newest, complaints = checkpoint.newest_good(run.folder.checkpoints)
    _, weights, _ = checkpoint.load(newest)
    left = load_file(run.folder.path / "final" / "model.safetensors")
    same = [torch.equal(left[key], weights["policy"][key]) for key in left.keys() & weights["policy"].keys()]
    assert not complaints and same and all(same)
    assert newest.name == f"{run.trainer.iteration:06d}"


def test_the_gate_that_chooses_weights_may_not_see_the_test_split():
    with pytest.raises((RecipeError, ValueError), match="must not see the test split"):
        load("grpo", [*TINY, "evaluate.samples=4", "evaluate.gate={}", "evaluate.split=test"])


def test_the_gate_may_not_see_test_problems_under_another_name(tmp_path):
    rows = {"train": range(10, 40), "validation": range(40, 60)}
    for split, numbers in rows.items():
        lines = [json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) for n in numbers]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    changes = [*TINY, "evaluate.samples=4", f"task=jsonl:{tmp_path}"]
    Run(load("grpo", changes))
    with pytest.raises(RecipeError, match=r"4 validation problems of task .* are test problems"):
        Run(load("grpo", [*changes, "evaluate.gate={}"]))
    Run(load("grpo", [*TINY, "evaluate.samples=4", "evaluate.gate={}"]))


def test_only_evaluation_names_a_held_out_split():
    """Stages and trainer ask for `train`; a split that is not written down as such comes from evaluation's settings."""
    root = Path(gainstage.__file__).parent
    asking = {}
    for file in sorted(root.rglob("*.py")):
        room = file.relative_to(root).parts[0]
        if room in ("tasks", "cli", "view"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if called and node.func.attr == "problems" and node.args:
                asking.setdefault(file.relative_to(root).as_posix(), []).append(ast.unparse(node.args[0]))
    others = {file: splits for file, splits in asking.items() if set(splits) - {"'train'"}}
    assert asking and set(others) <= {"evaluation.py", "policies/language/micro_rates.py"}, others
