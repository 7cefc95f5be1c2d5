"""`reproduce` and `ledger`: declared checks become runs that are shared, rows that are dated, and words."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gainstage.cli import checks, reproduce
from gainstage.cli.checks import Wishes, distinct, plan_check
from gainstage.cli.main import app
from gainstage.cli.side_by_side import Job, _one_run, is_done
from gainstage.measure.ledger import QUICK, load
from gainstage.recipe import catalog
from gainstage.recipe import load as recipe
from gainstage.registry import RecipeError

RUN = CliRunner()
TINY = ["plan.groups=2", "plan.minibatch=8", "evaluate.problems=4", "evaluate.samples=1", "evaluate.final_problems=4",
        "evaluate.final_samples=2", "evaluate.every=1.0"]  # fmt: skip
SET = [word for change in TINY for word in ("--set", change)]


class Here:
    """Runs in this process, and which they were."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.fails = ""

    def __call__(self, plan: Sequence[Job], jobs: int) -> None:
        for job in plan:
            if is_done(job):
                continue
            if self.fails and self.fails in job.label:
                raise RecipeError(f"1 of {len(plan)} runs failed; the first: {job.label}")
            _one_run(job, lambda share, row: None)
            self.made.append(job.label)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    runner = Here()
    monkeypatch.setattr(reproduce, "run_all", runner)
    code(monkeypatch, "0123456789")
    return runner


def code(monkeypatch: pytest.MonkeyPatch, at_start: str, later: str = "") -> None:
    """What the hash of the code is; without this, a file that is saved meanwhile would stop the test."""

    def identity() -> str:
        return at_start

    identity.__wrapped__ = lambda: later or at_start  # type: ignore[attr-defined]
    monkeypatch.setattr(reproduce, "code_identity", identity)
    monkeypatch.setattr(checks, "code_identity", identity)


def gs(*args: object, code: int = 0) -> str:
    result = RUN.invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output + str(result.exception)
    return result.output


def tiny(*args: object, code: int = 0) -> str:
    return gs("reproduce", *args, "--tasks", "arithmetic", "--budget", "generated_tokens=200", *SET, code=code)


# -- plans ------------------------------------------------------------------------------------------------------------


def test_every_method_declares_a_check_that_can_be_planned(tmp_path: Path) -> None:
    plans = {name: plan_check(name, Wishes(tmp_path, seeds=1)) for name in catalog()}
    for name, rows in plans.items():
        declared = recipe(name)
        steps = "control" in declared.tags  # an environment takes minutes a run: one may do, on three seeds
        assert len(rows) >= (1 if steps else 2), f"{name} is to be measured on two tasks"
        assert declared.check.seeds >= (3 if steps else 5)
        for check in rows:
            assert check.method == name != check.baseline
            arms = {job.arm for job in check.jobs}
            assert set(check.expect) == arms - {check.baseline}
    everything = [check for rows in plans.values() for check in rows]
    assert len(distinct(everything)) < 0.8 * sum(len(check.jobs) for check in everything)
    assert len({check.settings for check in everything}) == len(everything)


def test_games_that_begin_alike_are_not_taken_for_the_same() -> None:
    from gainstage.chain import build_task
    from gainstage.evaluation import overlaps
    from gainstage.measure.audits.contamination import overlap

    task = build_task({"room_quest": {"train_size": 500, "heldout_size": 64}}).it
    train, held = list(task.problems("train")), list(task.problems("test"))
    assert overlap(train, held).count, "the same words stand before different worlds"
    assert overlaps([task], held)["exact"].count == 0
    assert overlaps([task], train[:5])["exact"].count == 5


def test_methods_share_the_runs_of_their_baseline(tmp_path: Path) -> None:
    rgra, dapo = (plan_check(name, Wishes(tmp_path, seeds=2, tasks=("arithmetic",)))[0] for name in ("rgra", "dapo"))
    own = [{job.folder for job in check.jobs if job.arm == "grpo"} for check in (rgra, dapo)]
    assert own[0] == own[1] and len(own[0]) == 2
    other = plan_check("rgra", Wishes(tmp_path, seeds=2, tasks=("reverse",)))[0]
    assert own[0].isdisjoint(job.folder for job in other.jobs)


def test_phases_with_budgets_of_their_own_shrink_with_the_run(tmp_path: Path) -> None:
    (check, *_) = plan_check("iw_opd", Wishes(tmp_path, quick=True))
    for job in check.jobs:
        run = recipe(job.recipe, job.overrides)
        limits = [phase["budget"]["generated_tokens"] for phase in run.phases]
        assert sum(limits) == pytest.approx(run.budget["generated_tokens"])


def test_a_recipe_without_a_check_is_measured_against_grpo(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: grpo\ntask: {arithmetic: {levels: [2]}}\n")
    rows = plan_check(str(tmp_path / "mine.yaml"), Wishes(tmp_path, seeds=1))
    assert [(check.method, check.baseline, check.task) for check in rows] == [
        ("mine", "grpo", "arithmetic"), ("mine", "grpo", "modular_chain"),
    ]  # fmt: skip
    for check in rows:
        assert len({str(recipe(job.recipe, job.overrides).task) for job in check.jobs}) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("check: {expect: {pass@1: better}}", "check.expect.pass@1"),
        ("check: {againts: grpo}", "check.againts"),
        ("check: {seeds: 0}", "check.seeds"),
        ("check: {tasks: [{arithmetic: {}, reverse: {}}]}", "one `name: settings` pair"),
        ("tune: {update.policy.lr: {low: 1, high: 0.1}}", "low below high"),
        ("tune: {update.policy.lr: {around: 10, choices: [1]}}", "either"),
        ("tune: {update.policy.lr: {low: 0, high: 1, log: true}}", "log needs a low above 0"),
    ],
)
def test_mistakes_in_the_declaration_are_named(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"extends: grpo\n{text}\n")
    with pytest.raises(RecipeError, match=says):
        recipe(tmp_path / "mine.yaml")


def test_words_about_a_recipe_change_no_number(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: grpo\ncheck: {seeds: 9}\ntune: {update.policy.lr: {around: 3}}\n")
    assert recipe(tmp_path / "mine.yaml").fingerprint() == recipe("grpo").fingerprint()


# -- the command ------------------------------------------------------------------------------------------------------


def test_reproduce_measures_once_and_writes_dated_rows(here: Here, runs: Path) -> None:
    said = tiny("rgra", "--seeds", 1)
    assert "3 runs" in said and "claimed: not lower" in said
    assert here.made == ["grpo seed 0", "rgra seed 0", *here.made[2:]] and "positive_only" in here.made[2]
    rows = load(runs / "ledger.jsonl")
    main, *ablation = rows
    assert (main.method, main.baseline, main.task, main.metric) == ("rgra", "grpo", "arithmetic", "pass@1")
    assert (main.expected, main.outcome, main.seeds, main.quick, main.model) == (
        "not lower", "undecided", 1, False, "micro",
    )  # fmt: skip
    assert main.date and main.machine and main.code and main.settings and main.versions["torch"]
    assert {row.metric for row in ablation} == {"pass@1", "entropy/mean"}
    assert all("positive_only" in row.method for row in ablation)
    (home,) = (runs / "reproduce").iterdir()
    assert (home / "reports" / "rgra-arithmetic" / "report.html").is_file()
    assert not list(home.glob("*/checkpoints")), "finished runs keep none"

    said = tiny("rgra", "--seeds", 1)
    assert "measured" in said and len(here.made) == 3 and load(runs / "ledger.jsonl") == rows

    tiny("raft", "--seeds", 1)
    assert here.made[3:] == ["raft seed 0"], "the baseline's run is there"

    (runs / "ledger.jsonl").unlink()
    (next(home.glob("rgra-*")) / "record.json").unlink()
    tiny("rgra", "--seeds", 1)
    assert len(here.made) == 5, "only what is missing"


def test_a_quick_look_is_marked_and_stays_out_of_the_published_ledger(here: Here, runs: Path) -> None:
    published = runs.parent / "docs" / "ledger" / "ledger.jsonl"
    published.parent.mkdir(parents=True)
    published.touch()
    assert "never count as evidence" in tiny("gspo", "--quick")
    assert published.read_text() == ""
    (row,) = load(runs / "ledger.jsonl")
    assert (row.quick, row.verdict, row.outcome, row.seeds) == (True, QUICK, "", 2)
    assert "not yet" in gs("ledger", "gspo", "--runs", runs, "--path", runs / "ledger.jsonl")
    assert "0 of 1 methods measured" in gs("ledger", "gspo", "--quick", "--path", runs / "ledger.jsonl")
    (data,) = json.loads(gs("ledger", "gspo", "--quick", "--json", "--path", runs / "ledger.jsonl"))
    assert [row["verdict"] for row in data["rows"]] == [QUICK]
    tiny("gspo", "--seeds", 2)
    assert [row.quick for row in load(published)] == [False]


def test_what_fails_is_said_and_does_not_stop_the_rest(here: Here, runs: Path) -> None:
    here.fails = "raft seed 0"
    said = tiny("raft", "gspo", "--seeds", 1, code=2)
    assert "1 of 2 methods could not be measured" in said and "raft" in said
    assert [row.method for row in load(runs / "ledger.jsonl")] == ["gspo"]
    here.fails = ""
    tiny("raft", "gspo", "--seeds", 1)
    assert sorted(here.made) == ["grpo seed 0", "gspo seed 0", "raft seed 0"]


def test_a_stop_says_how_to_go_on(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(plan: Sequence[Job], jobs: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "run_all", stop)
    assert "the same command goes on" in tiny("raft", "--quick", code=130)


def test_code_that_changes_meanwhile_stops_the_work(here: Here, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code(monkeypatch, "before", "after")
    assert "code changed" in tiny("raft", "--quick", code=2)
    assert not here.made


def test_a_dry_run_estimates_and_runs_nothing(here: Here, runs: Path) -> None:
    said = gs("reproduce", "bnpo", "gspo", "--dry-run", "--jobs", 2)
    assert "40 runs, 30 of them different" in said and "30 runs of about 1:00, 2 side by side: about 15:00" in said
    assert not here.made and not (runs / "reproduce").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["reproduce"], "--all"),
        (["reproduce", "grpo", "--all"], "--all"),
        (["reproduce", "grpoo"], "'grpo'"),
        (["reproduce", "grpo", "--seeds", "0"], "--seeds"),
        (["reproduce", "grpo", "--jobs", "0"], "--jobs"),
        (["reproduce", "grpo", "--task", "arithmetik"], "arithmetic"),
        (["reproduce", "grpo", "--budget", "labels=5"], "labels"),
        (["ledger", "grpoo"], "'grpo'"),
        (["ledger", "--path", "nowhere.jsonl"], "no such file"),
    ],
)
def test_mistakes_are_one_line_and_code_2(args: list[str], says: str, here: Here, runs: Path) -> None:
    said = gs(*args, code=2)
    assert says in said and "Traceback" not in said


# -- the ledger -------------------------------------------------------------------------------------------------------


def test_the_ledger_prints_claims_beside_measurements(tmp_path: Path) -> None:
    from gainstage.measure.ledger import LedgerRow, append

    file = tmp_path / "own.jsonl"
    row = LedgerRow("2026-01-02", "dapo", "grpo", "arithmetic", "pass@1", "gain confirmed", 0.04, 0.02, 0.06, seeds=5,
                    p=0.001, expected="higher", outcome="as claimed")  # fmt: skip
    append(file, [row, LedgerRow("2026-01-03", "elsewhere", "grpo", "t", "pass@1", "no difference shown")])
    data = {method["method"]: method for method in json.loads(gs("ledger", "--json", "--path", file))}
    assert set(catalog()) <= set(data) and "elsewhere" in data
    assert data["dapo"]["rows"][0]["outcome"] == "as claimed" and data["dapo"]["rows"][0]["stands"] is True
    assert data["dapo"]["claim"] == recipe("dapo").claim and data["gspo"]["rows"] == []
    text = " ".join(gs("ledger", "dapo", "gspo", "--path", file).split())
    assert "1 of 2 methods measured" in text and "not yet" in text and "elsewhere" not in text
    table = gs("ledger", "--markdown", "--path", file).splitlines()
    assert len(table) == 4 and "+4.0 points pass@1" in table[3]
    assert gs("ledger", "rgra", "--markdown")  # the shipped one


@pytest.mark.parametrize(("words", "threads"), [(["--jobs", "1"], 8), (["--jobs", "2"], 4), (["--threads", "1"], 1)])
def test_runs_share_the_cores_or_have_the_threads_that_are_said(monkeypatch, tmp_path, words, threads):
    seen = []
    monkeypatch.setattr(multiprocessing, "cpu_count", lambda: 8)
    monkeypatch.setattr(reproduce, "plan_check", lambda name, wishes: seen.append(wishes.threads) or [])
    out = RUN.invoke(app, ["reproduce", "rgra", "--dry-run", "--runs", str(tmp_path), *words])
    assert out.exit_code == 0, out.output
    assert seen == [threads]
