"""Seeds in rounds, planning from finished runs, and looks that are remembered."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gainstage.cli import power, rounds
from gainstage.cli.arms import write_report
from gainstage.cli.main import app
from gainstage.cli.side_by_side import Job
from gainstage.measure import outcome
from gainstage.measure.outcome import Report
from gainstage.measure.runs import ParityManifest, RunRecord
from gainstage.registry import RecipeError

MANIFEST = ParityManifest("hash", budget={"generated_tokens": 10})
NOISE = [0.004, -0.006, 0.002, 0.009, -0.001, 0.003, -0.008, 0.001, 0.006, -0.004, 0.002, 0.0]


@dataclass
class House:
    """Runs that are finished the moment they are asked for."""

    home: Path
    gains: dict[str, float]

    def __post_init__(self):
        self.ran: list[str] = []

    def plan(self, seeds: range) -> list[Job]:
        arms = ["base", *self.gains]
        return [Job(arm, "grpo", (), seed, self.home / f"{arm}-seed{seed}", (), 1) for seed in seeds for arm in arms]

    def run(self, jobs: list[Job]) -> None:
        for job in jobs:
            if (job.folder / "record.json").is_file():
                continue
            self.ran.append(job.label)
            job.folder.mkdir(parents=True)
            wobble = NOISE[(job.seed + sum(map(ord, job.arm))) % len(NOISE)]
            score = 0.5 + 0.01 * job.seed + self.gains.get(job.arm, 0.0) + (wobble if job.arm != "base" else 0.0)
            record = RunRecord(job.arm, job.seed, final={"eval/t/pass@1": score}, manifest=MANIFEST,
                               spent={"generated_tokens": 10})  # fmt: skip
            (job.folder / "record.json").write_text(record.to_json())

    def measure(self, jobs: list[Job]) -> Report:
        return write_report(jobs, self.home, "pass@1", sequential=True, effect=0.02)


@pytest.fixture
def go(tmp_path, monkeypatch):
    """Run `until_decided` on made-up runs; returns the report, the house and what was said."""
    monkeypatch.setattr("gainstage.cli.side_by_side.is_done", lambda job: (job.folder / "record.json").is_file())

    def made(gains, first=3, most=12, step=1, home=tmp_path / "one"):
        house, said = House(home, gains), []
        report = rounds.until_decided(
            house.plan, house.run, house.measure, first=first, most=most, step=step, say=said.append
        )
        return report, house, said

    return made


def test_it_stops_when_decided_and_not_before(go):
    report, house, said = go({"new": 0.2})
    assert report.verdict == outcome.GAIN and report.sequential
    n = len(report.arms[0].seeds)
    assert n == report.comparisons[0].decided_after < 12 and len(house.ran) == 2 * n
    assert said[0].startswith("4 seeds:"), "nothing can be decided before"
    assert said[-1].endswith("Decided.") and all("Open: new" in line for line in said[:-1])


def test_all_arms_must_be_settled_and_equal_ones_are_once_close_enough(go):
    report, _, said = go({"new": 0.2, "same": 0.0})
    new, same = report.comparisons
    assert new.verdict == outcome.GAIN and same.verdict == outcome.NONE
    assert same.settled and "smaller than 2.0 points" in same.reason and new.decided_after <= len(said) + 3


def test_it_ends_undecided_at_the_last_seed(go):
    report, house, said = go({"near": 0.004}, most=4)
    assert report.verdict == outcome.NONE and len(report.arms[0].seeds) == 4 and len(house.ran) == 8
    assert said[-1].startswith("4 seeds") and "Open: near" in said[-1]


def test_an_interrupted_comparison_goes_on_and_ends_the_same(go, tmp_path):
    whole, _, _ = go({"new": 0.016})
    first, house, _ = go({"new": 0.016}, most=4, home=tmp_path / "two")
    assert not first.comparisons[0].settled
    rest, again, said = go({"new": 0.016}, home=tmp_path / "two")
    assert again.ran and not set(again.ran) & set(house.ran) and said[0].startswith("4 seeds:")
    assert rest.comparisons == whole.comparisons


def test_too_few_seeds_to_ever_decide(go):
    with pytest.raises(RecipeError, match=r"--max-seeds 3: .* before 4 seeds"):
        go({"new": 0.2}, most=3)


def test_a_round_keeps_the_processes_busy():
    assert [rounds.seeds_a_round(jobs, ["a", "b"]) for jobs in (1, 2, 3, 8)] == [1, 1, 2, 4]


def test_going_on_after_a_look_is_said(tmp_path):
    house = House(tmp_path, {"new": 0.01})
    for seeds in (3, 5, 5):
        house.run(house.plan(range(seeds)))
        report = write_report(house.plan(range(seeds)), tmp_path, "pass@1")
    assert report.looks == [3] and any("Looked at before with 3 seeds" in w for w in report.warnings)
    assert any("Looked at before" in line for line in (tmp_path / "report.md").read_text().splitlines())
    sequential = write_report(house.plan(range(5)), tmp_path, "pass@1", sequential=True)
    assert not any("Looked at before" in w for w in sequential.warnings)
    chosen = write_report(house.plan(range(5)), tmp_path, "pass@1")
    assert 5 in chosen.looks and any("Looked at before" in w for w in chosen.warnings)


def test_one_look_needs_no_warning(tmp_path):
    house = House(tmp_path, {"new": 0.01})
    house.run(house.plan(range(3)))
    (tmp_path / "report.json").write_text("{")
    for _ in range(2):
        report = write_report(house.plan(range(3)), tmp_path, "pass@1")
    assert report.looks == [] and not any("Looked at" in w for w in report.warnings)


def test_finished_pairs_are_those_of_all_arms(tmp_path, monkeypatch):
    monkeypatch.setattr("gainstage.cli.side_by_side.is_done", lambda job: (job.folder / "record.json").is_file())
    house = House(tmp_path, {"new": 0.01})
    house.run(house.plan(range(3)))
    (tmp_path / "new-seed1" / "record.json").unlink()
    pairs = power.finished_pairs(house.plan(range(20)))
    assert {job.seed for job in pairs} == {0, 2}
    (plan,) = power.plans_of(pairs, "pass@1", 0.02)
    assert plan.pairs == 2 and plan.arm == "new" and not (tmp_path / "report.json").exists()
    text = "\n".join(power.sentences([plan]))
    assert "from 2 finished pairs; with 80 % confidence at most" in text and "a difference of 2.0 points needs" in text


def test_power_from_a_given_spread_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["compare", "grpo", "rgra", "--power", "--sd", "0.02", "--effect", "0.02"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0 and "10 seeds find a difference of 2.0 points" in shown.output
    (plan,) = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    assert plan["seeds"] == 10 and plan["detectable"]["10"] == pytest.approx(0.0200, abs=3e-4)
    assert list(tmp_path.iterdir()) == []
    for wrong, message in ((["--effect", "2"], "two points"), (["--sd", "-1"], "sd must be positive")):
        said = CliRunner().invoke(app, [*command, *wrong])
        assert said.exit_code == 2 and message in said.output
