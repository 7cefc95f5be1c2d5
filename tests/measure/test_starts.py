"""The score before training beside the one after, and gains that are only surer answers."""

import pytest

from gainstage.measure.compare import compare
from gainstage.measure.metrics import NONE
from gainstage.measure.outcome import Report
from gainstage.measure.printing import print_table
from gainstage.measure.report import render
from gainstage.measure.runs import Arm
from gainstage.measure.starts import gain, start_row, start_values
from gainstage.measure.tables import scores, side_effects


def started(run, before, greedy=None):
    """The run with a first look at `before`; greedy (before, after)."""
    run.curve = [{"iteration": -1.0, "eval/addition/pass@1": before, "eval/addition/entropy/mean": 1.5}, *run.curve[1:]]
    if greedy:
        run.curve[0]["eval/addition/greedy"], run.final["eval/addition/greedy"] = greedy
    return run


@pytest.fixture
def runs(make_runs):
    made = make_runs({"grpo": 0.5, "better": 0.8}, seeds=range(4))
    return [started(run, 0.2 + 0.01 * run.seed) for run in made]


def test_the_first_row_is_a_start_only_where_nothing_was_spent(make_run):
    run = started(make_run("a", 0), 0.25)
    assert start_values(Arm("a", {0: run}), "eval/*/pass@1") == [0.25]
    run.curve[0]["budget/generated_tokens"] = 100.0
    assert start_row(run) == {} and start_values(Arm("a", {0: run}), "eval/*/pass@1") == []


def test_before_after_and_change_stand_in_the_table(runs):
    report = compare(runs)
    arm = report.arms[1]
    assert arm.before["eval/*/pass@1"].value == pytest.approx(0.215) and arm.before["eval/*/pass@1"].low < 0.215
    assert arm.gain.value == pytest.approx(arm.value.value - 0.215)
    assert arm.gain.differences == pytest.approx([arm.scores[str(s)] - 0.2 - 0.01 * s for s in range(4)])
    table = scores(report)
    labels = [column.label for column in table.columns]
    assert labels[2:5] == ["pass@1 before", "mean pass@1", "change (points)"]
    assert table.rows[1][2].startswith("21.5 % [") and table.rows[1][4].startswith("+")
    for text in (render(report), report.markdown(), report.to_json()):
        assert "before" in text
    assert Report.from_json(report.to_json()) == report


def test_runs_without_a_first_look_have_no_such_columns(runs):
    runs[0].curve = runs[0].curve[1:]
    report = compare(runs)
    assert report.arms[0].gain is None and report.arms[1].gain is not None
    assert scores(report).rows[0][2] == NONE
    for run in runs:
        run.curve = run.curve[1:]
    assert "pass@1 before" not in [c.label for c in scores(compare(runs)).columns]


def test_the_start_is_one_row_of_the_side_effects_where_it_is_the_same_for_all(runs):
    table = side_effects(compare(runs))
    at = [c.label for c in table.columns].index("entropy (nats)")
    assert table.rows[0][0] == "before training" and table.rows[0][at] == "1.50" and table.arms == [None, 0, 1]
    for run in runs[:4]:
        run.curve[0]["eval/addition/entropy/mean"] = 1.0
    assert [row[0] for row in side_effects(compare(runs)).rows[:2]] == [
        "grpo, before training",
        "better, before training",
    ]


def test_a_narrow_terminal_shows_the_start_too(runs):
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    print_table(compare(runs), Console(file=out, width=70))
    assert "before training" in out.getvalue() and "pass@1 before" in out.getvalue()


def test_gains_by_surer_answers_alone_are_named(make_runs):
    made = make_runs({"grpo": 0.6, "better": 0.8}, seeds=range(4))
    greedy = {"grpo": 0.52, "better": 0.9}
    made = [started(run, 0.3, (0.5, greedy[run.arm] + 0.001 * run.seed)) for run in made]
    report = compare(made)
    (found,) = [text for text in report.warnings if "surer" in text]
    assert found.startswith("grpo: since the start pass@1 changed by +") and "greedy pass@1 by +2.2" in found
    assert report.arms[1].side_effects["greedy"].value == pytest.approx(0.9015)
    assert report.comparisons[0].side_effects["greedy"].value == pytest.approx(0.38)
    assert not [text for text in compare([r for r in made if r.seed == 0]).warnings if "surer" in text], "one seed"


def test_another_metric_has_its_start_only_on_held_out_problems(runs):
    report = compare(runs, "reward/mean")
    assert gain(Arm("a", {0: runs[0]}), "reward/mean", {0: 1.0}, 0.95) is None and report.arms[0].gain is None
