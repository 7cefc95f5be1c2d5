"""`compare --tune`: what is searched, what it costs, and that nothing of it touches the test split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gainstage.cli import tuning
from gainstage.cli.arms import Setup, plan_runs
from gainstage.cli.main import app
from gainstage.cli.side_by_side import Job, _one_run, is_done
from gainstage.cli.tuning import SEED, Tuning, Wish, dimensions, learning_rates, parse_wish, tune_arms
from gainstage.measure.tuning import Tuned
from gainstage.recipe import load
from gainstage.registry import RecipeError

RUN = CliRunner()
TINY = ["plan.groups=2", "plan.minibatch=8", "evaluate.problems=4", "evaluate.samples=1", "evaluate.final_problems=4",
        "evaluate.final_samples=2", "evaluate.every=1.0"]  # fmt: skip


def test_what_tune_asks_for() -> None:
    assert parse_wish("trials=8") == Wish(8)
    assert parse_wish("trials=8, keys=update.policy.lr, plan.minibatch, seeds=2, by=reward") == Wish(
        8, 2, ("update.policy.lr", "plan.minibatch"), "reward"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("8", "for instance trials=8"),
        ("trials=1", "at least 2"),
        ("trials=many", "trials must be a number"),
        ("trials=8,seeds=0", "seeds must be"),
        ("trial=8", "trials"),
        ("trials=8,trials=9", "twice"),
        ("trials=8,update.policy.lr", "for instance"),
        ("trials=8,by=test", "validation, reward"),
        ("keys=update.policy.lr", "trials must be"),
    ],
)
def test_mistakes_are_named(text: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        parse_wish(text)


def test_the_policys_learning_rate_is_searched_around_the_recipes_value() -> None:
    for name, key in (("grpo", "update.policy.lr"), ("ppo_lm", "update.policy.lr"), ("dpo", "update.preference.lr"),
                      ("opd", "phases.distil.update.policy.lr")):  # fmt: skip
        recipe = load(name)
        assert learning_rates(recipe) == [key]
        (space,) = dimensions(recipe, [], name)
        value = tuning._start(recipe, [space])[key]
        assert (space.key, space.log) == (key, True)
        assert (space.low, space.high) == pytest.approx((value / 10, value * 10))


def test_keys_and_declared_spaces(tmp_path: Path) -> None:
    text = "extends: grpo\ntune: {plan.minibatch: {choices: [64, null]}, update.policy.clip: {low: 0.5, high: 2}}\n"
    (tmp_path / "mine.yaml").write_text(text)
    recipe = load(tmp_path / "mine.yaml")
    first, second = dimensions(recipe, [], "mine")
    assert first.choices == (64, None) and (second.low, second.high, second.log) == (0.5, 2.0, False)
    (groups,) = dimensions(recipe, ["plan.groups", "update.policy.objectives.of_another_arm"], "mine")
    assert (groups.low, groups.high, groups.integer) == (8, 128, True)
    (clip,) = dimensions(recipe, ["update.policy.objectives.clipped.high"], "mine")
    assert (clip.low, clip.high) == pytest.approx((0.02, 2.0))
    with pytest.raises(RecipeError, match=r"none of the keys plan\.nothing"):
        dimensions(recipe, ["plan.nothing"], "mine")
    with pytest.raises(RecipeError, match="no range can be laid"):
        dimensions(recipe, ["update.policy.agg"], "mine")


class Here:
    """Runs in this process, and which they were."""

    def __init__(self) -> None:
        self.made: list[Job] = []

    def __call__(self, plan: Sequence[Job], jobs: int) -> None:
        for job in plan:
            if not is_done(job):
                _one_run(job, lambda share, row: None)
                self.made.append(job)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    pytest.importorskip("optuna", reason="needs the extra: tune")
    runner = Here()
    monkeypatch.setattr("gainstage.cli.compare.run_all", runner)
    monkeypatch.setattr(tuning, "run_all", runner)
    return runner


def test_every_arm_gets_the_same_search_and_the_report_counts_it(here: Here, runs: Path) -> None:
    args = ["compare", "grpo", "rgra", "--seeds", "1", "--tune", "trials=2", "--name", "t", "--json",
            "--budget", "generated_tokens=150", *(word for change in TINY for word in ("--set", change))]  # fmt: skip
    result = RUN.invoke(app, args)
    assert result.exit_code == 0, result.output + str(result.exception)
    trials = [job for job in here.made if "trial" in job.arm]
    finals = [job for job in here.made if "trial" not in job.arm]
    assert [sum(job.arm.startswith(arm) for job in trials) for arm in ("grpo", "rgra")] == [2, 2]
    assert len(finals) == 2 and {job.seed for job in trials} == {SEED}
    for job in here.made:
        assert load(job.recipe, job.overrides).evaluate.split == ("validation" if job in trials else "test")

    found = {arm["arm"]: arm for arm in json.loads((runs / "t" / "tuning.json").read_text())}
    for arm in ("grpo", "rgra"):
        best = max(found[arm]["trials"], key=lambda trial: trial["score"])
        assert found[arm]["trials"][0]["settings"] == {} and found[arm]["best"]["score"] == best["score"]
        assert found[arm]["spent"]["generated_tokens"] >= 2 * 150
        chosen = {f"{key}={json.dumps(value)}" for key, value in found[arm]["best"]["settings"].items()}
        assert all(chosen <= set(job.overrides) for job in finals if job.arm == arm)
    report = json.loads((runs / "t" / "report.json").read_text())
    assert report["manifest"]["tuning"] == {"trials": 2, "seeds": 1, "judged by": "validation split"}
    assert sum("tuning of" in note and "2 trials" in note for note in report["notes"]) == 2

    made = len(here.made)
    again = RUN.invoke(app, args)
    assert again.exit_code == 0 and len(here.made) == made, "an interrupted search finds its finished trials"
    assert json.loads((runs / "t" / "tuning.json").read_text()) == list(found.values())


def test_a_trial_that_broke_off_is_a_result_and_a_mistake_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = [
        j for j in plan_runs(["grpo", "rgra"], [0], ["budget.generated_tokens=9"], tmp_path, [], 1) if j.arm == "grpo"
    ]

    def fail(plan: Sequence[Job], jobs: int) -> None:
        raise RecipeError("1 of 1 runs failed")

    monkeypatch.setattr(tuning, "run_all", fail)
    with pytest.raises(RecipeError):
        tuning._run([job], 1)

    def diverge(plan: Sequence[Job], jobs: int) -> None:
        (job.folder / "failures").mkdir(parents=True)
        (job.folder / "failures" / "000003.safetensors").touch()
        (job.folder / "metrics.jsonl").write_text('{"iteration": 0, "budget/generated_tokens": 70.0}\n')
        raise RecipeError("1 of 1 runs failed")

    monkeypatch.setattr(tuning, "run_all", diverge)
    tuning._run([job], 1)
    assert tuning._score([job], "pass@1", "validation") is None
    assert tuning._spent(job.folder) == {"generated_tokens": 70.0}


def test_one_held_out_split_is_not_tuned_on(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the extra: tune")
    (tmp_path / "data.jsonl").write_text("".join(f'{{"prompt": "{a}+1=", "answer": "{a + 1}"}}\n' for a in range(40)))
    shared = [f"task=jsonl:{tmp_path}/data.jsonl", "budget.generated_tokens=9", "rollout.generate.max_new=8"]
    with pytest.raises(RecipeError, match="by=reward"):
        tune_arms(Setup(["grpo", "rgra"], shared, tmp_path, [], 1), "trials=2", 1, "pass@1")


def test_a_key_of_no_arm_is_named_before_the_first_run(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the extra: tune")
    with pytest.raises(RecipeError, match=r"no arm has the key 'plan\.grups'"):
        shared = ["budget.generated_tokens=9"]
        tune_arms(Setup(["grpo", "rgra"], shared, tmp_path, [], 1), "trials=2,keys=plan.groups,plan.grups", 1, "pass@1")


def test_behind_a_gate_only_the_last_look_sees_the_test_split(tmp_path: Path) -> None:
    tuning = Tuning(Wish(2), [Tuned(arm, [{"settings": {}, "score": 1.0}]) for arm in ("grpo", "rgra")])
    for change, splits in (("seed=0", ("test", None)), ("evaluate.gate={}", ("validation", "test"))):
        plan = plan_runs(["grpo", "rgra"], [0], ["evaluate.samples=4", change], tmp_path, [], 1)
        for job in tuning.applied(plan):
            found = load(job.recipe, job.overrides).evaluate
            assert (found.split, found.final_split) == splits
