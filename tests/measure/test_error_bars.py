"""Error bars at the ends of the scale, ties and orientation: from the answers to the report."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gainstage.measure import outcome
from gainstage.measure import statistics as s
from gainstage.measure.compare import compare
from gainstage.measure.evaluate import Answer, EvalRecord, rate_interval, summarize


def answered(right: int, n: int, samples: int = 1) -> list[EvalRecord]:
    return [EvalRecord(f"p{i}", (Answer(float(i < right), i < right),) * samples) for i in range(n)]


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(0, 25, 0, 0.133), (0, 50, 0, 0.071), (10, 10, 0.722, 1), (0, 1, 0, 0.793), (1, 1, 0.207, 1)],
)
@pytest.mark.parametrize("samples", [1, 4])
def test_an_evaluation_at_the_ends_keeps_its_width(right, n, low, high, samples):
    numbers = summarize(answered(right, n, samples))
    assert (numbers["pass@1/low"], numbers["pass@1/high"]) == pytest.approx((low, high), abs=1e-3)
    assert numbers["pass@1"] == right / n


def test_answers_to_one_problem_do_not_count_as_independent():
    one, many = rate_interval(answered(10, 20)), rate_interval(answered(10, 20, samples=16))
    assert many.high - many.low > 0.95 * (one.high - one.low)


def intervals(value):
    """All (low, high) of a report, wherever they stand."""
    if isinstance(value, dict):
        if isinstance(value.get("low"), float) and isinstance(value.get("high"), float):
            yield value["low"], value["high"]
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from intervals(inner)


@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
@pytest.mark.parametrize(("base", "arm"), [(0, 0), (1, 1), (0, 1), (1, 0)])
def test_no_interval_of_a_report_has_width_zero(make_run, seeds, base, arm):
    runs = []
    for name, right in (("base", base), ("arm", arm)):
        for seed in range(seeds):
            run = make_run(name, seed)
            records = run.evaluation["addition"]
            run.evaluation["addition"] = [
                replace(r, answers=tuple(Answer(float(right), bool(right), length=9) for _ in r.answers))
                for r in records
            ]
            runs.append(replace(run, curve=[]))
    report = compare(runs)
    found = list(intervals(json.loads(report.to_json())))
    assert all(high - low > 1e-6 for low, high in found)
    assert (report.comparisons[0].difference.low is None) == (seeds == 1)
    want = outcome.NONE if base == arm or seeds < 3 else outcome.GAIN if arm else outcome.LOSS
    assert report.verdict == want
    assert report.comparisons[0].probability == (0.5 if base == arm else float(arm > base))


def test_the_pooled_error_belongs_to_the_weighted_mean_only():
    errors, sizes = [0.05, 0.01], [100, 900]
    rates, pooled = [0.5, 0.9], math.sqrt(100 * 0.05**2 * 100 + 900 * 0.01**2 * 900) / 1000
    assert s.standard_error_of_weighted_mean(errors, sizes) == pytest.approx(pooled)
    assert s.standard_error_of_task_mean(errors) > 2.4 * pooled
    rng = np.random.default_rng(0)
    draws = rng.normal(rates, errors, (40_000, 2))
    assert draws.mean(1).std() == pytest.approx(s.standard_error_of_task_mean(errors), rel=0.02)
    assert (draws @ [0.1, 0.9]).std() == pytest.approx(s.standard_error_of_weighted_mean(errors, sizes), rel=0.02)


def test_several_tasks_of_different_size_carry_the_error_of_their_plain_mean(make_run):
    runs = [make_run(arm, seed, problems=40) for arm in "ab" for seed in range(3)]
    for run in runs:
        run.evaluation["few"] = run.evaluation["addition"][:5]
    arm = compare(runs).arms[0]
    alone = [compare(runs, f"eval/{task}/pass@1").arms[0].sampling_error for task in ("addition", "few")]
    assert arm.sampling_error == pytest.approx(s.standard_error_of_task_mean(alone))


matrices = st.integers(1, 4).flatmap(
    lambda tasks: st.lists(st.lists(st.integers(0, 3), min_size=tasks, max_size=tasks), min_size=1, max_size=5)
)


@given(matrices)
def test_orientation_is_named_and_both_ways_agree(x):
    y = np.asarray(x)[::-1] + 1
    runs_first = s.probability_of_improvement(x, y, axes="runs tasks")
    assert s.probability_of_improvement(np.transpose(x), y.T, axes="tasks runs") == runs_first
    assert s.probability_of_improvement(y, x, axes="runs tasks") == pytest.approx(1 - runs_first)
    assert s.probability_of_improvement(x, x, axes="runs tasks") == pytest.approx(0.5)


def test_what_is_no_score_is_refused():
    for scores in ({"t": []}, {"t": [1.0, math.nan]}, {"t": [math.inf]}):
        with pytest.raises(ValueError, match="finite and at least one"):
            s.probability_of_improvement(scores, {"t": [1.0]})
    with pytest.raises(ValueError, match="name the axes"):
        s.performance_profile(np.zeros((2, 3)), [0.5])


def test_a_profile_falls_from_one_to_zero_and_ends_between_the_means():
    rng = np.random.default_rng(1)
    scores = {"a": rng.uniform(size=9), "b": rng.uniform(size=4)}
    grid = np.linspace(-0.01, 1.01, 2001)
    profile = s.performance_profile(scores, grid)
    assert profile[0] == 1 and profile[-1] == 0 and (np.diff(profile) <= 0).all()
    area = np.trapezoid(profile, grid) + grid[0]
    assert area == pytest.approx(np.mean([scores["a"].mean(), scores["b"].mean()]), abs=1e-3)
