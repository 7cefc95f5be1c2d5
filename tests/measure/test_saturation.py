"""pass@k over k with the untrained policy beside it, and performance profiles over problems."""

import numpy as np
import pytest

from gainstage.measure.answer_tables import answers_gained
from gainstage.measure.answer_tables import saturation as table
from gainstage.measure.compare import compare
from gainstage.measure.curves.saturation import Saturation, paired, powers, rates, reached, saturation
from gainstage.measure.evaluate import Answer, EvalRecord
from gainstage.measure.outcome import Report
from gainstage.measure.panels import answers
from gainstage.measure.report import render
from gainstage.measure.runs import Arm, RunRecord
from gainstage.measure.statistics import performance_profile


def records(rights, n):
    return [
        EvalRecord(f"p{i}", tuple(Answer(float(j < c), j < c) for j in range(n))) for i, c in enumerate(rights)
    ]  # fmt: skip


def run(arm, seed, rights, n=16, before=(), m=2):
    first = {"t": records(before, m)} if before else {}
    return RunRecord(arm, seed, evaluation={"t": records(rights, n)}, before=first)


def group(*runs):
    arms = {}
    for r in runs:
        arms.setdefault(r.arm, Arm(r.arm, {})).runs[r.seed] = r
    return list(arms.values())


def test_the_curve_is_the_published_estimate_averaged_over_seeds():
    found = saturation(group(run("a", 0, [3]), run("a", 1, [16])), ["t"])
    assert found.arms["a"].x == [1, 2, 4, 8, 16]
    assert found.arms["a"].mean == pytest.approx([(v + 1) / 2 for v in (0.1875, 0.35, 0.607143, 0.9, 1.0)], abs=1e-6)
    assert len(found.arms["a"].low) == 5 and found.start is None and found.reached == {}


def test_first_looks_of_all_seeds_make_one_untrained_curve():
    arms = group(run("a", 0, [8, 8], before=[1, 0]), run("a", 1, [8, 8], before=[0, 0]), run("b", 0, [9, 9]))
    found = saturation(arms, ["t"])
    assert found.start_answers == 4 and found.start.x == [1, 2, 4]
    assert found.start.mean == pytest.approx([0.125, 0.25, 0.5])
    assert all(a <= b <= c for a, b, c in zip(found.start.low, found.start.mean, found.start.high, strict=True))
    assert found.reached == {"a": 4, "b": None}


def test_the_smallest_k_counts_every_k_and_only_common_problems():
    start = {("t", "p0"): (10, 5), ("t", "p1"): (10, 0)}
    assert reached(start, [{("t", "p0"): (4, 3)}]) == 2, "pass@2 of 5 in 10 is 7/9"
    assert reached(start, [{("t", "p0"): (4, 2)}]) == 1
    assert reached(start, [{("t", "p0"): (4, 4), ("t", "p1"): (4, 4)}]) is None
    assert reached(start, [{("t", "other"): (4, 4)}]) is None


def test_the_profile_is_the_published_one_with_problems_as_tasks():
    arms = group(run("a", 0, [0, 4, 8], 8), run("a", 1, [2, 8, 8], 8))
    curve = saturation(arms, ["t"]).profile["a"]
    grid = [*curve.x[:-1], 1 - 1e-9]
    by_problem = {"p0": [0, 2 / 8], "p1": [4 / 8, 1], "p2": [1, 1]}
    assert curve.mean == pytest.approx(performance_profile(by_problem, grid).tolist())
    assert curve.mean[0] == pytest.approx(5 / 6) and curve.mean[-1] == pytest.approx(3 / 6)
    assert np.all(np.diff(curve.mean) <= 1e-12)


def test_tasks_count_the_same_whatever_their_size():
    evaluation = {"t": records([0, 0, 0], 2), "u": records([2], 2)}
    found = saturation([Arm("a", {0: RunRecord("a", 0, evaluation=evaluation)})], ["t", "u"])
    assert found.arms["a"].mean == pytest.approx([0.5, 0.5]) and found.arms["a"].low == []


def test_nothing_is_said_without_verdicts_or_with_one_answer():
    assert saturation(group(run("a", 0, [1, 0], 1)), ["t"]) == Saturation()
    unjudged = {"t": [EvalRecord("p", (Answer(1.0), Answer(0.0)))]}
    assert saturation([Arm("a", {0: RunRecord("a", 0, evaluation=unjudged)})], ["t"]) == Saturation()
    assert saturation([Arm("a", {0: RunRecord("a", 0)})], ["t"]) == Saturation()
    assert powers(6) == [1, 2, 4, 6] and powers(1) == [1] and powers(8) == [1, 2, 4, 8]


def test_the_report_shows_curves_and_table(make_runs):
    runs = make_runs({"grpo": 0.5, "better": 0.8}, seeds=range(3))
    for r in runs:
        r.before = {"addition": records([1] * 20 + [0] * 20, 2)}
    report = compare(runs)
    shown = table(report)
    assert [row[0] for row in shown.rows] == ["grpo", "better", "before training"]
    assert [c.label for c in shown.columns[1:]] == ["pass@1", "pass@2", "pass@4", "pass@8", "untrained needs"]
    assert shown.rows[0][-1] == "k = 4" and shown.rows[1][-1] == "k > 6" and shown.rows[2][4] == "\u2013"
    assert "6 answers a problem" in shown.about and answers(report).count('<svg class="chart"') == 3
    assert answers(report).count('class="arm a6 d6"') == 1
    gained = answers_gained(report)
    assert [row[0] for row in gained.rows] == ["better \u2212 grpo", "grpo \u2212 before training",
                                               "better \u2212 before training"]  # fmt: skip
    assert gained.rows[0][1].startswith("+") and "[" in gained.rows[0][1] and gained.arms == [1, 0, 1]
    assert "Differences of pass@k" in report.markdown() and "Differences of pass@k" in render(report)
    assert Report.from_json(report.to_json()) == report
    assert answers(compare(runs, "reward/mean")) == "" and not table(compare(runs, "reward/mean")).rows


def table_of(rights, n=16):
    return {("t", f"p{i}"): (n, c) for i, c in enumerate(rights)}


def test_the_paired_interval_is_that_of_the_differences_by_problem():
    """Two sides that differ by the same on every problem differ for sure, however hard the problems are."""
    rng = np.random.default_rng(0)
    rights = rng.integers(0, 15, 200)
    curve = paired([table_of(rights + 1)], [table_of(rights)], 0.95)
    assert curve.x == [1, 2, 4, 8, 16] and curve.mean[0] == pytest.approx(1 / 16)
    assert curve.low[0] == pytest.approx(1 / 16) and curve.high[0] == pytest.approx(1 / 16)
    shuffled = paired([table_of(rng.permutation(rights) + 1)], [table_of(rights)], 0.95)
    assert shuffled.high[0] - shuffled.low[0] > 0.05, "without pairs the problems' own spread remains"
    same = paired([table_of(rights)], [table_of(rights)], 0.95)
    assert set(same.mean) == set(same.low) == set(same.high) == {0.0}


def test_the_paired_bootstrap_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 17, 80), rng.integers(0, 17, 80)
    curve = paired([table_of(a)], [table_of(b)], 0.9)
    assert curve.mean == pytest.approx(
        (rates(table_of(a), [1, 2, 4, 8, 16]) - rates(table_of(b), [1, 2, 4, 8, 16])).tolist()
    )
    made = stats.bootstrap(
        ((a - b) / 16,), np.mean, confidence_level=0.9, n_resamples=4000, method="percentile", rng=rng
    ).confidence_interval
    assert (curve.low[0], curve.high[0]) == pytest.approx((made.low, made.high), abs=0.012)


def test_the_paired_interval_holds_the_truth_as_often_as_it_says():
    """The difference over all problems there are, from samples of them: the chances by problem are known."""
    rng, inside = np.random.default_rng(2), 0
    for _ in range(200):
        hard = rng.beta(1, 1, 60)
        a, b = rng.binomial(16, hard), rng.binomial(16, hard**2)
        curve = paired([table_of(a)], [table_of(b)], 0.95)
        inside += curve.low[0] <= 1 / 2 - 1 / 3 <= curve.high[0]
    assert 180 <= inside <= 199


def test_runs_are_averaged_and_only_common_problems_count():
    one, two = {("t", "p0"): (4, 4), ("t", "p1"): (4, 0)}, {("t", "p0"): (4, 2), ("t", "p2"): (4, 4)}
    assert paired([one, two], [{("t", "p0"): (2, 1)}], 0.95).mean == pytest.approx([0.25, -1 / 12])
    assert paired([one], [{("t", "p9"): (2, 1)}], 0.95).x == []


def test_tokens_are_the_answers_times_their_mean_length():
    long = [EvalRecord("p0", tuple(Answer(1.0, True, n) for n in (10, 30))),
            EvalRecord("p1", tuple(Answer(0.0, False, n) for n in (2, 2)))]  # fmt: skip
    arms = [Arm("a", {0: RunRecord("a", 0, evaluation={"t": long}, before={"t": long})})]
    found = saturation(arms, ["t"])
    assert found.tokens["a"].x == [11, 22] and found.tokens["a"].mean == found.arms["a"].mean
    assert found.start_tokens.x == [11, 22] and found.over_baseline == {} and found.over_start["a"].mean == [0, 0]
    unknown = saturation(group(run("a", 0, [3], before=[1])), ["t"])
    assert unknown.tokens["a"].x == [] and unknown.start_tokens.x == []
