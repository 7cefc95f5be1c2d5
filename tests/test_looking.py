"""Looks at held-out problems in a run: retained tasks, the calibration gate, the manifest, overlap with training."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from gainstage.evaluation import overlaps
from gainstage.looking import Extent, Looks, cut
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
    real = Looks.on_the_way

    def look(self: Looks) -> dict[str, float]:
        accuracy, ece = next(scripted)
        return real(self) | {"eval/arithmetic/pass@1": accuracy, "eval/arithmetic/ece": ece}

    first = Looks.before
    monkeypatch.setattr(Looks, "before", lambda self: first(self) | look(self))
    monkeypatch.setattr(Looks, "on_the_way", look)
    settings = ["iterations=10", "evaluate.every=0.1", "save.every=0.1", "evaluate.gate={}"]
    run = make("grpo", *settings, folder=tmp_path)
    record = run.execute()
    assert run.trainer.iteration == 2 and not run.trainer.finished and run.looks.closed
    assert any("calibration gate" in note for note in record.notes)
    assert (tmp_path / "run" / "best" / "model.safetensors").is_file() and record.evaluation["arithmetic"]
    assert load_record(tmp_path / "run") is not None
    run.folder.close()
    again = Run.resume(tmp_path / "run")
    assert again.looks.closed and again.execute().spent == json.loads(record.to_json())["spent"]
    assert again.trainer.iteration == 2


def test_an_open_gate_changes_nothing() -> None:
    plain, gated = make("grpo"), make("grpo", "evaluate.gate={tolerance: 1.0}")
    a, b = plain.execute(), gated.execute()
    assert a.before != b.before and gated.trainer.finished and not gated.looks.closed
    named = make("grpo", "evaluate.final_split=test").execute()
    assert named.evaluation == b.evaluation and named.before == b.before, "the final score is the test split's"


def test_recipes_of_the_catalogue_are_looked_at_alike() -> None:
    """DAPO's room for answers that it punishes is training's; without a rollout the same question is asked."""
    base = manifest("grpo")
    for name in ("dapo", "ppo_lm", "sft"):
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
        SimpleNamespace(capabilities=(), problems=lambda split, texts=texts: [Problem(text, text) for text in texts])
        for texts in (["a b", "leaked problem"], ["c d", "e f"])
    ]
    asked = [Problem("1", "Leaked  problem"), Problem("2", "g")]
    found = overlaps(tasks, asked)
    assert found["exact"].count == 1 and found["exact"].training == 4 and found["ngram"].count == 0
    assert overlaps(tasks[1:], asked)["exact"].count == 0


def test_the_first_look_asks_what_the_last_one_asks_and_shows_what_the_others_show(tmp_path: Path) -> None:
    run = make("grpo", "evaluate.samples=2", "evaluate.problems=3", "evaluate.final_samples=8", folder=tmp_path)
    few = make("grpo", "evaluate.samples=2", "evaluate.problems=3", "evaluate.final_samples=2")
    rows = [dict(r.looks.before()) for r in (run, few)]
    assert [(r.problem_id, r.n) for r in run.looks.first] == [(p.id, 8) for p in run.looks.asked()]
    assert cut(run.looks.first, Extent(3, 2, "validation")) == cut(few.looks.first, few.looks.on_way)
    name = "eval/arithmetic/"
    assert {k: v for k, v in rows[0].items() if "greedy" not in k} == {
        k: v for k, v in rows[1].items() if "greedy" not in k
    }
    assert rows[0][name + "answers"] == 6 and name + "pass@8" not in rows[0]
    assert run.looks.start_numbers()[name + "pass@8"] >= run.looks.start_numbers()[name + "pass@1"]


def test_pass_at_large_k_before_training_stands_beside_the_arms() -> None:
    from gainstage.measure.answer_tables import saturation
    from gainstage.measure.compare import compare
    from gainstage.measure.tables import side_effects

    settings = ["evaluate.samples=2", "evaluate.final_samples=8", "update.policy.lr=0.0"]
    records = []
    for arm in ("a", "b"):
        run = make("grpo", *settings, "task.levels=[1]")
        run.arm = arm
        records.append(run.execute())
    report = compare(records)
    table = side_effects(report)
    at = [c.label for c in table.columns].index("pass@8")
    assert table.rows[0][0] == "before training" and table.rows[0][at] == table.rows[1][at], "nothing was trained"
    assert report.arms[0].gain.value == 0 and report.saturation.start_answers == 8
    assert [row[-1] for row in saturation(report).rows[:2]] == ["k = 1", "k = 1"], "the smallest k is printed"


def test_a_gate_that_halves_slows_the_policy_down_and_goes_on(tmp_path: Path, monkeypatch) -> None:
    """It closes at the second and at the fourth look; a run cut off between them ends with the very same weights."""
    from safetensors.torch import load_file

    from gainstage.measure.audits.calibration import Gate

    monkeypatch.setattr(Gate, "closed", lambda self, looks: len(looks) in (2, 4))
    settings = ["iterations=6", "evaluate.every=0.16", "save.every=0.16", "save.keep=9", "evaluate.gate.action=halve"]
    settings += ["update.policy.lr=0.001", "update.policy.schedule=constant", "update.policy.warmup=0.0"]
    whole = make("grpo", *settings, folder=tmp_path)
    record = whole.execute()
    assert [row["lr"] for row in whole.curve if "lr" in row] == [0.001, 5e-4, 5e-4, 2.5e-4, 2.5e-4, 2.5e-4]
    assert whole.trainer.finished and "the calibration gate halved the policy's learning rate 2 times" in record.notes
    assert record.manifest.evaluation["split"] == "test" and record.manifest.evaluation["curves"] == "validation"
    whole.folder.close()

    other = Run(load("grpo", [*TINY, *settings]), RunFolder.create("cut", parent=tmp_path))
    other.watch = lambda row, trainer: setattr(trainer, "stop_requested", trainer.iteration == 2)
    other.execute()
    other.folder.close()
    again = Run.resume(tmp_path / "cut")
    assert again.trainer.lr_scale == {"policy": 0.5} and again.execute().evaluation == record.evaluation
    left = [load_file(tmp_path / name / "final" / "model.safetensors") for name in ("run", "cut")]
    assert all((left[0][key] == left[1][key]).all() for key in left[0])
    assert [row.get("lr") for row in again.curve] == [row.get("lr") for row in whole.curve]


def test_the_final_look_may_have_a_split_of_its_own() -> None:
    run = make("grpo", "evaluate.final_split=test", "iterations=1")
    record = run.execute()
    known = {r.problem_id for r in record.evaluation["arithmetic"]}
    assert known == {p.id for p in run.task.problems("test")[:4]} == {r.problem_id for r in record.before["arithmetic"]}
    assert difference(record.manifest, manifest("grpo", "evaluate.split=test")) == ["evaluation.curves"]
    assert load("grpo").fingerprint() != load("grpo", ["evaluate.final_split=test"]).fingerprint()
    with pytest.raises(RecipeError, match="action"):
        make("grpo", "evaluate.gate={action: pause}")
