"""Looks at held-out problems in a run: retained tasks, the calibration gate, the manifest, overlap with training."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from gainstage.evaluation import overlaps
from gainstage.measure.compare import difference
from gainstage.measure.runs import ParityManifest
from gainstage.recipe import load
from gainstage.registry import RecipeError
from gainstage.running import Run, load_record
from gainstage.tracking.folder import RunFolder
from gainstage.types import Problem

TINY = ["plan.groups=2", "plan.minibatch=16", "iterations=3", "evaluate.problems=4", "evaluate.samples=4",
        "evaluate.final_problems=4", "evaluate.final_samples=4"]  # fmt: skip


def make(name: str, *overrides: str, folder: Path | None = None) -> Run:
    return Run(load(name, [*TINY, *overrides]), RunFolder.create("run", parent=folder) if folder else None)


def manifest(name: str, *overrides: str) -> ParityManifest:
    found = make(name, *overrides).record(finished=True).manifest
    assert found is not None
    return found


def test_retained_tasks_are_looked_at_before_and_after() -> None:
    run = make("grpo", "evaluate.retain=[reverse,{maze: {sizes: [3]}}]", "update.policy.lr=0.0")
    record = run.execute()
    assert {"retained/reverse", "retained/maze"} <= set(run.curve[0])
    for task in ("reverse", "maze"):
        assert record.final[f"retained/{task}"] == run.curve[0][f"retained/{task}"]
        assert record.final[f"retained/{task}/change"] == 0, "nothing was trained"
    assert list(record.evaluation) == ["arithmetic"], "what is retained is no part of the score"
    kept = ["update.policy.lr=0.0", "evaluate.retain=[]"]
    assert make("grpo", *kept).execute().evaluation_spent["answers"] < record.evaluation_spent["verifier_calls"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [("evaluate.retain=[arithmetic,arithmetic]", "given twice"), ("evaluate.retain=[no_such]", "no task component"),
     ("evaluate.gate={tolerence: 1}", "did you mean 'tolerance'")],
)  # fmt: skip
def test_wrong_settings_are_named(setting: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make("grpo", setting)


def test_the_gate_neither_sees_the_test_split_nor_guesses_from_few_answers() -> None:
    with pytest.raises(RecipeError, match="must not see the test split"):
        make("grpo", "evaluate.gate={}", "evaluate.split=test")
    with pytest.raises(RecipeError, match=r"evaluate\.samples to 4"):
        make("grpo", "evaluate.gate={}", "evaluate.samples=3")


def test_the_gate_ends_the_run_and_a_resumed_run_stays_ended(tmp_path: Path, monkeypatch) -> None:
    """Looks whose error rises from the second on; the first one is the best."""
    scripted = iter([(0.5, 0.1), (0.6, 0.15), (0.6, 0.3), (0.6, 0.3)])
    real = Run._look

    def look(self: Run) -> dict[str, float]:
        accuracy, ece = next(scripted)
        return real(self) | {"eval/arithmetic/pass@1": accuracy, "eval/arithmetic/ece": ece}

    first = Run._first_look
    monkeypatch.setattr(Run, "_first_look", lambda self: first(self) | look(self))
    monkeypatch.setattr(Run, "_look", look)
    settings = ["iterations=10", "evaluate.every=0.1", "save.every=0.1", "evaluate.gate={}"]
    run = make("grpo", *settings, folder=tmp_path)
    record = run.execute()
    assert run.trainer.iteration == 2 and not run.trainer.finished and run.closed
    assert any("calibration gate" in note for note in record.notes)
    assert (tmp_path / "run" / "best" / "model.safetensors").is_file() and record.evaluation["arithmetic"]
    assert load_record(tmp_path / "run") is not None
    run.folder.close()
    again = Run.resume(tmp_path / "run")
    assert again.closed and again.execute().spent == json.loads(record.to_json())["spent"]
    assert again.trainer.iteration == 2


def test_an_open_gate_changes_nothing() -> None:
    plain, gated = make("grpo"), make("grpo", "evaluate.gate={tolerance: 1.0}")
    a, b = plain.execute(), gated.execute()
    assert a.evaluation == b.evaluation and gated.trainer.finished and not gated.closed


def test_recipes_of_the_catalogue_are_looked_at_alike() -> None:
    """DAPO's room for answers that it punishes is training's; without a rollout the same question is asked."""
    base = manifest("grpo")
    for name in ("dapo", "ppo", "sft"):
        assert difference(base, manifest(name)) == [], name
    assert base.max_new == 12 and base.template.startswith("chat:") and base.verifier.startswith("arithmetic ")


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("rollout.generate.template=boxed", "template"),
        ("rollout.generate.max_new=20", "max_new"),
        ("rollout.generate.stop=['=']", "stop"),
        ("evaluate.temperature=0.5", "sampling.temperature"),
        ("evaluate.final_samples=8", "samples"),
        ("evaluate.final_problems=5", "problems"),
        ("evaluate.split=test", "evaluation.split"),
        ("budget.generated_tokens=500", "budget.generated_tokens"),
        ("task=reverse", "verifier"),
        ("task.levels=[3]", "problems"),
    ],
)
def test_a_setting_of_the_evaluation_enters_the_manifest(setting: str, field: str) -> None:
    assert field in difference(manifest("grpo"), manifest("grpo", setting))


def test_settings_of_the_method_do_not_enter_it() -> None:
    assert difference(manifest("grpo"), manifest("grpo", "update.policy.lr=1e-5", "plan.groups=8")) == []


def test_overlap_is_counted_over_the_tasks_of_every_phase() -> None:
    """A problem of the evaluation that only the first phase trains on."""
    tasks = [
        SimpleNamespace(problems=lambda split, texts=texts: [Problem(text, text) for text in texts])
        for texts in (["a b", "leaked problem"], ["c d", "e f"])
    ]
    asked = [Problem("1", "Leaked  problem"), Problem("2", "g")]
    found = overlaps(tasks, asked)
    assert found["exact"].count == 1 and found["exact"].training == 4 and found["ngram"].count == 0
    assert overlaps(tasks[1:], asked)["exact"].count == 0
