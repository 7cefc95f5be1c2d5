"""Verdicts on runs whose truth is known."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from gainstage.measure import outcome
from gainstage.measure.audits.contamination import Overlap
from gainstage.measure.compare import compare, difference
from gainstage.measure.intervals import power
from gainstage.measure.metrics import describe
from gainstage.measure.outcome import Report
from gainstage.measure.runs import ParityManifest, RunRecord


def plain_runs(scores, manifest=None, **more):
    """Runs with nothing but a final number: {arm: {seed: score}}."""
    manifest = manifest or ParityManifest("hash", budget={"generated_tokens": 10})
    return [
        RunRecord(arm, seed, final={"eval/t/pass@1": score}, spent={"generated_tokens": 10}, manifest=manifest, **more)
        for arm, row in scores.items()
        for seed, score in row.items()
    ]


def by_seed(values):
    return dict(enumerate(values))


def test_a_clear_gain_is_confirmed(make_runs):
    report = compare(make_runs({"grpo": 0.5, "better": 0.8}, seeds=range(5)))
    c = report.comparisons[0]
    assert report.verdict == c.verdict == outcome.GAIN
    assert c.difference.low > 0.1 and c.probability == 1.0 and c.p_holm < 0.01
    assert report.sentence.startswith("gain confirmed for better: +")
    assert "5 paired seeds" in report.context and "100k generated tokens a run" in report.context
    assert report.basis == "final evaluation"


def test_the_same_runs_read_the_other_way_are_a_loss(make_runs):
    runs = make_runs({"grpo": 0.5, "better": 0.8}, seeds=range(5))
    forth, back = compare(runs), compare(runs, baseline="better")
    assert back.verdict == outcome.LOSS and back.baseline == "better"
    assert back.comparisons[0].difference.value == pytest.approx(-forth.comparisons[0].difference.value)
    assert compare(runs, better="lower").verdict == outcome.LOSS
    for metric, better in {
        "pass@1": "higher",
        "groups/zero_variance": "lower",
        "ece": "lower",
        "entropy/mean": "higher",
    }.items():
        assert describe(metric).better == better


def test_the_verdicts_interval_is_the_paired_t_interval():
    a, b = [0.61, 0.72, 0.66, 0.74], [0.60, 0.64, 0.65, 0.66]
    report = compare(plain_runs({"base": by_seed(b), "new": by_seed(a)}))
    want = stats.ttest_rel(a, b)
    got = report.comparisons[0]
    assert (got.difference.low, got.difference.high) == pytest.approx(tuple(want.confidence_interval(0.95)))
    assert got.p_holm == pytest.approx(want.pvalue)
    assert got.bootstrap.high - got.bootstrap.low < got.difference.high - got.difference.low
    assert got.verdict == outcome.NONE


def test_identical_arms_show_no_difference():
    scores = by_seed([0.2, 0.5, 0.6])
    c = compare(plain_runs({"a": scores, "b": scores})).comparisons[0]
    assert c.verdict == outcome.NONE and c.probability == 0.5 and c.difference.value == 0


def test_one_seed_gives_no_interval(make_runs):
    report = compare(make_runs({"a": 0.2, "b": 0.9}, seeds=(0,)))
    c = report.comparisons[0]
    assert c.verdict == outcome.NONE and c.difference.low is None and c.bootstrap is None
    assert report.arms[0].value.low is None and report.arms[0].iqm is None
    assert "one seed gives no interval" in report.sentence
    assert any("One seed" in warning for warning in report.warnings)


def test_two_seeds_never_confirm():
    report = compare(plain_runs({"a": by_seed([0.1, 0.2]), "b": by_seed([0.9, 1.0 - 1e-6])}))
    assert report.verdict == outcome.NONE and "too few" in report.sentence


def test_saturated_arms_are_told_apart_by_the_evaluations_own_noise(make_run):
    runs = [make_run(arm, seed) for arm in ("none", "all") for seed in range(3)]
    for run in runs:
        right = run.arm == "all"
        records = run.evaluation["addition"]
        run.evaluation["addition"] = [
            replace(r, answers=tuple(replace(a, correct=right) for a in r.answers)) for r in records
        ]
    c = compare(runs).comparisons[0]
    assert c.verdict == outcome.GAIN and c.difference.high <= 1 and c.difference.low > 0.9
    same = [make_run(arm, seed) for arm in ("a", "b") for seed in range(3)]
    for run in same:
        run.evaluation = make_run("a", run.seed).evaluation
    assert any("equal to a in every pair" in note for note in compare(same).notes)
    flat = compare(plain_runs({"a": by_seed([0.1] * 3), "b": by_seed([0.2] * 3)})).comparisons[0]
    assert flat.verdict == outcome.NONE and "no spread" in flat.reason


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sampling": {"temperature": 0.6}}, "sampling.temperature"),
        ({"samples": 1}, "samples"),
        ({"template": "chatml"}, "template"),
        ({"problems": "other"}, "problems"),
        ({"budget": {"generated_tokens": 200_000}}, "budget.generated_tokens"),
        ({"stop": ("\n",)}, "stop"),
        ({"evaluation": {"split": "train"}}, "evaluation.split"),
    ],
)
def test_a_differing_manifest_is_not_comparable_and_named(make_runs, manifest, change, field):
    other = replace(manifest, **change)
    assert difference(manifest, other) == [field]
    runs = make_runs({"a": 0.3, "b": 0.9}, seeds=range(5))
    for run in runs:
        if run.arm == "b":
            run.manifest = other
    report = compare(runs)
    c = report.comparisons[0]
    assert report.verdict == outcome.INCOMPARABLE and list(c.differing) == [field] and field in report.sentence
    assert c.difference is None and not report.equal_spend["generated_tokens"].differences
    assert "+" not in report.sentence


def test_a_missing_manifest_or_seed_or_score_is_not_comparable(make_runs):
    runs = make_runs({"a": 0.3, "b": 0.9}, seeds=range(4))
    assert "seeds" in compare(runs[:-1]).comparisons[0].differing
    runs[-1].manifest = None
    assert "manifest" in compare(runs).comparisons[0].differing
    holes = plain_runs({"a": by_seed([0.1, 0.2, 0.3]), "b": by_seed([0.5, 0.6, float("nan")])})
    assert "eval/*/pass@1 of b, seed 2" in compare(holes).comparisons[0].differing


def test_shared_problems_contaminate(make_runs):
    runs = make_runs({"a": 0.3, "b": 0.9}, seeds=range(4))
    for run in runs:
        run.contamination = {"exact": Overlap(7, 40, 1000, ("p1",))}
    report = compare(runs)
    assert report.verdict == outcome.CONTAMINATED and "7 of 40" in report.sentence
    assert report.contamination["a"]["exact"]["count"] == 7


def test_holm_over_all_arms():
    rng = np.random.default_rng(0)
    base = rng.normal(0.5, 0.05, 5)
    shifts = {"b": 0.02, "c": 0.0, "d": 0.3}
    noise = {name: rng.normal(0, 0.012, 5) for name in shifts}
    scores = {"a": by_seed(base)} | {n: by_seed(base + s + noise[n]) for n, s in shifts.items()}
    report = compare(plain_runs(scores))
    raw = [c.difference.p for c in report.comparisons]
    assert [c.p_holm for c in report.comparisons] == pytest.approx(list(stats_holm(raw)))
    assert report.verdict == outcome.GAIN and report.comparisons[1].verdict == outcome.NONE


def stats_holm(p):
    order, out, top = np.argsort(p), [0.0] * len(p), 0.0
    for rank, index in enumerate(order):
        top = max(top, min(1.0, p[index] * (len(p) - rank)))
        out[index] = top
    return out


def test_a_gain_that_only_holm_takes_away_says_so():
    d = np.array([0.01, 0.03, 0.02, 0.04, 0.045])
    d = d - d.mean() + 3.0 * d.std(ddof=1) / np.sqrt(5)
    assert stats.ttest_1samp(d, 0).pvalue == pytest.approx(0.0399, abs=1e-4)
    zero = np.array([0.01, -0.01, 0.005, -0.004, 0.0])
    base = np.full(5, 0.5)
    report = compare(plain_runs({"a": by_seed(base), "b": by_seed(base + d), "c": by_seed(base + zero)}))
    assert report.comparisons[0].difference.excludes_zero
    assert report.comparisons[0].verdict == outcome.NONE and "Holm" in report.sentence


def test_unequal_spending_is_read_off_the_curves(make_run):
    runs = [make_run("a", s, 0.7, spread=0.0) for s in range(3)]
    runs += [make_run("b", s, 0.7, spread=0.0, spent=200_000) for s in range(3)]
    report = compare(runs)
    a, b = report.arms
    assert report.basis == "learning curves at 100k generated tokens"
    assert a.value.value == pytest.approx(0.7) and b.value.value == pytest.approx(0.3 + 0.4 * 0.75, abs=0.02)
    assert report.verdict != outcome.GAIN and any("unequally" in w for w in report.warnings)


def test_curves_on_another_split_than_the_score_say_so(make_run, manifest):
    behind_gate = replace(manifest, evaluation={**manifest.evaluation, "split": "test", "curves": "validation"})
    runs = [make_run(arm, seed, spent=spent, manifest=behind_gate)
            for arm, spent in (("grpo", 100_000), ("stopped", 60_000)) for seed in range(3)]  # fmt: skip
    assert compare(runs).basis.startswith("learning curves on the validation split at 60")
    assert "evaluation.curves" in difference(manifest, behind_gate)


def test_a_number_of_training_alone_is_compared_at_equal_spend(make_runs):
    runs = make_runs({"grpo": 0.5, "better": 0.8}, seeds=range(4))
    for run in runs:
        run.curve = [{**row, "own/number": float(run.arm == "better") * (1 + 0.01 * run.seed)} for row in run.curve]
    report = compare(runs, "own/number")
    assert report.basis.startswith("learning curves at") and report.comparisons[0].difference.value == pytest.approx(
        1.015
    )
    assert report.comparisons[0].verdict == outcome.GAIN


def test_unequal_spending_without_curves_is_not_comparable():
    runs = plain_runs({"a": by_seed([0.1, 0.2, 0.3]), "b": by_seed([0.5, 0.6, 0.8])})
    for run in runs[3:]:
        run.spent = {"generated_tokens": 40}
    report = compare(runs)
    assert report.verdict == outcome.INCOMPARABLE and "spent generated_tokens" in report.sentence


def test_every_axis_gets_its_own_comparison_and_curves(make_runs):
    report = compare(make_runs({"a": 0.5, "b": 0.6}))
    assert {"generated_tokens", "trained_tokens", "gradient_steps", "seconds"} <= report.equal_spend.keys()
    seconds = report.equal_spend["seconds"]
    assert seconds.spend < 100 and seconds.values["a"].n == 3 and seconds.differences["b"].low is not None
    curve = report.curves["eval/*/pass@1"]["generated_tokens"]["a"]
    assert curve.x[0] == 0 and curve.x[-1] == 100_000 and len(curve.seeds) == 3
    assert all(lo <= m <= hi for lo, m, hi in zip(curve.low, curve.mean, curve.high, strict=True))
    assert {"reward/mean", "entropy/mean", "kl/ref"} <= report.curves.keys()


def test_side_effects_and_spending_stand_beside(make_runs):
    report = compare(make_runs({"a": 0.5, "b": 0.6}))
    arm = report.arms[1]
    assert {"length/mean", "length/truncated", "entropy/mean", "kl/start"} <= arm.side_effects.keys()
    assert report.comparisons[0].side_effects["length/mean"].n == 3
    assert arm.spent["verifier_calls"] == {"mean": 6400, "min": 6400, "max": 6400}
    assert arm.spent_by["update.policy"] == {"gradient_steps": 1600}
    assert arm.evaluation_spent["generated_tokens"] == 30_000
    assert 0 < arm.sampling_error < 0.05


def test_notes_are_said_once_with_their_arms(make_runs):
    runs = make_runs({"a": 0.5, "b": 0.5})
    for run in runs:
        run.notes = ["one update per batch"] + (["no critic"] if run.arm == "b" else [])
    assert compare(runs).notes == ["one update per batch", "b: no critic"]


def test_several_tasks_count_alike(make_run):
    manifest = ParityManifest("hash", budget={"generated_tokens": 10})
    runs = [
        RunRecord(arm, seed, final={"eval/x/pass@1": x, "eval/y/pass@1": y}, spent={"generated_tokens": 10},
                  manifest=manifest)
        for arm, rows in {"a": [(0.1, 0.3), (0.2, 0.5), (0.0, 0.4)], "b": [(0.1, 0.5), (0.2, 0.9), (0.0, 0.7)]}.items()
        for seed, (x, y) in enumerate(rows)
    ]  # fmt: skip
    report = compare(runs)
    assert report.tasks == ["x", "y"] and report.arms[0].scores == pytest.approx({"0": 0.2, "1": 0.35, "2": 0.2})
    single = compare(runs, "eval/x/pass@1")
    assert single.tasks == ["x"] and single.comparisons[0].difference.value == 0


def test_noise_and_bootstrap_follow_the_task_that_is_compared(make_run):
    runs = [make_run(arm, seed, rate) for arm, rate in (("a", 0.5), ("b", 0.7)) for seed in range(3)]
    alone = compare(runs)
    for run in runs:
        run.evaluation["easy"] = [replace(r, answers=r.answers[:1]) for r in run.evaluation["addition"]]
    single, both = compare(runs, "eval/addition/pass@1"), compare(runs)
    assert single.arms[0].sampling_error == alone.arms[0].sampling_error != both.arms[0].sampling_error
    assert single.comparisons[0].bootstrap == alone.comparisons[0].bootstrap != both.comparisons[0].bootstrap


def test_returns_are_not_cut_to_rates():
    runs = plain_runs({"a": by_seed([0, 0, 0]), "b": by_seed([0, 0, 0])})
    for run in runs:
        run.final = {"eval/pendulum/reward/mean": -150.0 - 10 * run.seed + 60 * (run.arm == "b") + run.seed**2}
    report = compare(runs, "reward/mean")
    assert report.arms[0].value.low < -100 and report.comparisons[0].difference.value == pytest.approx(60)


def test_wrong_requests_say_what_is_wrong(make_runs):
    runs = make_runs({"a": 0.5, "b": 0.5})
    for arguments, message in (
        ({"metric": "accuracy"}, "no run has the metric"),
        ({"baseline": "c"}, "not among the arms"),
        ({"axis": "tokens"}, "no axis"),
        ({"better": "more"}, "better must be"),
    ):
        with pytest.raises(ValueError, match=message):
            compare(runs, **arguments)
    with pytest.raises(ValueError, match="two arms"):
        compare(runs[:3])
    with pytest.raises(ValueError, match="seed 0 twice"):
        compare([*runs, runs[0]])


def test_report_and_runs_survive_json(make_runs):
    runs = make_runs({"a": 0.5, "b": 0.6})
    again = [RunRecord.from_json(run.to_json()) for run in runs]
    assert again == runs
    report = compare(again)
    assert Report.from_json(report.to_json()) == report == compare(runs)
    assert json.loads(report.to_json())["verdict"] in outcome.VERDICTS
    runs[0].final["loss"] = float("nan")
    assert json.loads(runs[0].to_json())["final"]["loss"] is None


def test_manifest_from_foreign_data():
    with pytest.raises(ValueError, match="unknown fields"):
        ParityManifest.from_dict({"problems": "x", "temperature": 1})
    with pytest.raises(ValueError, match="problems"):
        ParityManifest.from_dict({})


def test_a_a_comparisons_rarely_claim_a_gain():
    rng = np.random.default_rng(11)
    claims = 0
    for _ in range(60):
        shared = rng.normal(0.5, 0.05, 3)
        scores = {arm: by_seed(shared + rng.normal(0, 0.02, 3)) for arm in "abc"}
        claims += compare(plain_runs(scores)).verdict != outcome.NONE
    assert claims <= 9


def test_a_sequential_verdict_holds_at_every_look_and_says_when_it_stood():
    rng = np.random.default_rng(8)
    base = rng.normal(0.5, 0.05, 8)
    scores = {"a": by_seed(base), "b": by_seed(base + 0.1 + rng.normal(0, 0.01, 8)),
              "c": by_seed(base + rng.normal(0, 0.01, 8))}  # fmt: skip
    fixed, report = compare(plain_runs(scores)), compare(plain_runs(scores), sequential=True)
    b, c = report.comparisons
    assert report.sequential and b.verdict == outcome.GAIN and b.settled and 4 <= b.decided_after < 8
    assert c.verdict == outcome.NONE and not c.settled and c.decided_after is None
    assert f"decided after {b.decided_after} seeds" in report.sentence and "at any stop" in report.context
    assert b.difference.high > fixed.comparisons[0].difference.high and b.detectable is None
    assert Report.from_json(report.to_json()) == report
    assert compare(plain_runs(scores), sequential=True, better="lower").comparisons[0].verdict == outcome.LOSS


def test_a_sequential_verdict_once_found_is_not_lost_by_further_seeds():
    early = [0.1, 0.11, 0.09, 0.1, 0.105, 0.095]
    scores = lambda d: {"a": by_seed([0.5] * len(d)), "b": by_seed([0.5 + x for x in d])}  # noqa: E731
    found = compare(plain_runs(scores(early)), sequential=True).comparisons[0]
    later = compare(plain_runs(scores([*early, -0.2])), sequential=True).comparisons[0]
    assert found.verdict == later.verdict == outcome.GAIN
    assert found.decided_after == later.decided_after and later.difference.p == found.difference.p
    assert compare(plain_runs(scores([*early, -0.2]))).comparisons[0].verdict == outcome.NONE


def test_three_seeds_cannot_be_decided_sequentially():
    report = compare(plain_runs({"a": by_seed([0.1, 0.11, 0.1]), "b": by_seed([0.9, 0.9, 0.91])}), sequential=True)
    assert report.verdict == outcome.NONE and "too few to be decided at every look" in report.sentence


def test_an_interval_inside_of_what_matters_settles_it():
    base = np.array([0.5, 0.6, 0.55, 0.52, 0.58])
    near = base + np.array([0.001, -0.001, 0.0005, -0.0005, 0.0])
    scores = {"a": by_seed(base), "b": by_seed(near)}
    for sequential in (False, True):
        c = compare(plain_runs(scores), effect=0.02, sequential=sequential).comparisons[0]
        assert c.verdict == outcome.NONE and c.settled and "smaller than 2.0 points" in c.reason
    assert not compare(plain_runs(scores), effect=0.0001).comparisons[0].settled
    small = compare(plain_runs({"a": by_seed(base), "b": by_seed(near + 0.005)}), effect=0.02)
    assert small.verdict == outcome.GAIN and "real, but smaller than the 2.0 points" in small.sentence
    with pytest.raises(ValueError, match="effect must be positive"):
        compare(plain_runs(scores), effect=0.0)


def test_detectable_pays_for_the_number_of_arms():
    base = np.array([0.5, 0.6, 0.55, 0.52, 0.58])
    b, c = base + np.array([0.01, -0.01, 0.02, 0, 0.01]), base + np.array([0.01, 0.02, 0.02, 0, -0.01])
    two = compare(plain_runs({"a": by_seed(base), "b": by_seed(b)})).comparisons[0]
    three = compare(plain_runs({"a": by_seed(base), "b": by_seed(b), "c": by_seed(c)})).comparisons[0]
    assert three.detectable > two.detectable
    assert power(three.detectable, three.difference.sd, 5, 0.025) == pytest.approx(0.8, abs=1e-6)
