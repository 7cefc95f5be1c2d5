"""The figures of a comparison beside its verdict: summaries of arms, side effects, equal spend, curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gainstage.measure import outcome
from gainstage.measure.audits.calibration import shared_attempts
from gainstage.measure.budget import AXES
from gainstage.measure.curves.learning import Curve, learning_curve, reach, value_at
from gainstage.measure.evaluate import EvalRecord, vote_of
from gainstage.measure.intervals import Estimate, PairedDifference, mean_interval, paired_difference, sampling_error
from gainstage.measure.metrics import RETAINED, TAX, describe
from gainstage.measure.outcome import ArmSummary, Comparison, EqualSpend
from gainstage.measure.runs import ANY_TASK, Arm, RunRecord, read
from gainstage.measure.starts import at_start, first_row, gain, names_before, start_row
from gainstage.measure.statistics import iqm, stratified_bootstrap

CURVES = ("reward/mean", "length/mean", "length/truncated", "entropy/mean", "kl/ref", "kl/start", "kl/sampler")
Numbers = dict[tuple[str, int], dict[str, float]]
"""(arm, seed) -> final numbers."""


def difference_noise(base: Arm, arm: Arm, metric: str) -> float:
    """Standard deviation of one difference that drawing evaluation answers causes; 0 where no verdicts are kept."""
    a, b = arm_sampling_error(base, metric), arm_sampling_error(arm, metric)
    return 0.0 if a is None or b is None else float(np.hypot(a, b))


def arm_sampling_error(arm: Arm, metric: str) -> float | None:
    """Root mean square over runs of the sampling error of a run's pass@1; None for other metrics."""
    squares = []
    for run in arm.runs.values():
        tasks = [[r.correct for r in records if r.correct] for records in _evaluations(run, metric)]
        if not tasks or not all(tasks):
            return None
        squares.append(sum(sampling_error(rows) ** 2 for rows in tasks) / len(tasks) ** 2)
    return float(np.sqrt(np.mean(squares)))


def _evaluations(run: RunRecord, metric: str) -> list[list[EvalRecord]]:
    """Records of the tasks that pass@1 is taken over; none where another metric is compared."""
    if describe(metric).name != "pass@1":
        return []
    return [records for task, records in run.evaluation.items() if metric in (f"eval/{task}/pass@1", "eval/*/pass@1")]


def _matrix(arm: Arm, metric: str, scores: Sequence[float]) -> np.ndarray | None:
    """Share of right answers "R P" by seed and problem, where the scores are its means over one task's problems."""
    rows, ids = [], None
    for seed in arm.seeds:
        evaluations = _evaluations(arm.runs[seed], metric)
        records = sorted(evaluations[0], key=lambda record: record.problem_id) if len(evaluations) == 1 else []
        here = [record.problem_id for record in records]
        if not here or any(not r.correct for r in records) or (ids is not None and here != ids):
            return None
        ids = here
        rows.append([sum(right) / len(right) for record in records if (right := record.correct)])
    matrix = np.array(rows)
    return matrix if len(scores) == len(matrix) and np.allclose(matrix.mean(1), scores) else None


def bootstrap_difference(
    base: Arm, arm: Arm, scores: Sequence[float], base_scores: Sequence[float], metric: str, level: float
) -> Estimate | None:
    """Percentile bootstrap of the paired difference over seeds, and over problems where their verdicts are kept."""
    a, b = _matrix(arm, metric, scores), _matrix(base, metric, base_scores)
    pairs = np.subtract(scores, base_scores) if a is None or b is None or a.shape != b.shape else a - b
    return stratified_bootstrap([pairs], np.mean, level=level)


def side_effect_names(numbers: Numbers) -> list[str]:
    """The side effects of these runs: pass@k for the largest k that was measured, and every retained task, included."""
    found = {name for row in numbers.values() for name in row}
    largest = max((k for name in found if (k := _k(name)) > 1), default=0)
    retained = sorted(name for name in found if name.startswith(RETAINED))
    return [*TAX, *([f"pass@{largest}"] if largest else []), *retained]


def _k(name: str) -> int:
    """The k of `eval/{task}/pass@{k}`, 0 of any other name."""
    k = describe(name).name.removeprefix("pass@") if name.startswith("eval/") else ""
    return int(k) if k.isdigit() else 0


def with_side_effects(c: Comparison, arms: Sequence[Arm], numbers: Numbers, level: float) -> Comparison:
    """The comparison with the paired changes of its side effects."""
    if c.verdict == outcome.INCOMPARABLE:
        return c
    base, arm = arms[0], next(a for a in arms if a.name == c.arm)
    effects: dict[str, PairedDifference] = {}
    for name in side_effect_names(numbers):
        a, b = (side_effect(side, numbers, name) for side in (arm, base))
        if a and b:
            effects[name] = paired_difference(a, b, level, bounds=describe(name).difference_bounds)
    if shared := shared_calibration(arm, base):
        effects["ece/shared"] = paired_difference(*shared, level, bounds=describe("ece/shared").difference_bounds)
    return replace(c, side_effects=effects)


def shared_calibration(arm: Arm, base: Arm) -> tuple[list[float], list[float]] | None:
    """Calibration error of both arms by seed, on the problems that both attempt; None where neither ever declines."""
    errors: list[tuple[float, float]] = []
    declined = False
    for seed in arm.seeds:
        left, right = _votes(arm.runs[seed]), _votes(base.runs[seed])
        keys = sorted(left.keys() & right.keys())
        rows = [list(zip(*(side[key] for key in keys), strict=True)) for side in (left, right)]
        if not any(a and b for a, b in zip(*(row[2] if row else () for row in rows), strict=True)):
            return None
        a, b = shared_attempts((rows[0][0], rows[0][1], rows[0][2]), (rows[1][0], rows[1][1], rows[1][2]))
        assert a.ece is not None and b.ece is not None, "there are shared attempts"
        errors.append((a.ece, b.ece))
        declined |= not all(rows[0][2] + rows[1][2])
    return ([a for a, _ in errors], [b for _, b in errors]) if declined else None


def _votes(run: RunRecord) -> dict[tuple[str, str], tuple[float, bool, bool]]:
    """Confidence, verdict and attempt of the most frequent answer, by task and problem."""
    rows = [(task, record.problem_id, vote_of(record)) for task, rs in run.evaluation.items() for record in rs]
    return {(task, problem): vote for task, problem, vote in rows if vote is not None}


def side_effect(arm: Arm, numbers: Numbers, name: str) -> list[float]:
    """One value a seed, from the held-out evaluation where it has one, else from training; empty if any lacks it."""
    values: list[float] = []
    for seed in arm.seeds:
        row = numbers[arm.name, seed]
        value = read(row, ANY_TASK + name)
        value = read(row, name) if value is None else value
        if value is None:
            return []
        values.append(value)
    return values


def summary(
    arm: Arm, scores: dict[int, float], numbers: Numbers, metric: str, level: float, *, off_curves: bool = False
) -> ArmSummary:
    """One arm's score with its noise, side effects and spending. `off_curves`: scores are read off learning curves."""
    start = first_row if off_curves else start_row
    values = [scores[seed] for seed in arm.seeds if seed in scores]
    matrix = _matrix(arm, metric, values)
    names = side_effect_names(numbers)
    effects = {name: row for name in names if (row := side_effect(arm, numbers, name))}
    runs = list(arm.runs.values())
    return ArmSummary(
        name=arm.name,
        seeds=arm.seeds,
        value=mean_interval(values, level, describe(metric).bounds) if values else None,
        iqm=stratified_bootstrap([np.array(values) if matrix is None else matrix], iqm, level=level)
        if values
        else None,
        scores={str(seed): score for seed, score in scores.items()},
        before=at_start(arm, names_before(arm, names), level) | at_start(arm, [metric], level, start),
        gain=gain(arm, metric, scores, level, start),
        spread=float(np.std(values, ddof=1)) if len(values) > 1 else None,
        sampling_error=arm_sampling_error(arm, metric),
        side_effects={name: mean_interval(row, level, describe(name).bounds) for name, row in effects.items()},
        spent=_spread([run.spent for run in runs]),
        spent_by=_mean_by([run.spent_by for run in runs]),
        evaluation_spent={axis: row["mean"] for axis, row in _spread([r.evaluation_spent for r in runs]).items()},
    )


def _spread(books: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """axis -> mean, min, max over runs, of the axes that any run was charged on."""
    out = {}
    for axis in AXES:
        values = [book.get(axis, 0.0) for book in books]
        if any(values):
            out[axis] = {"mean": float(np.mean(values)), "min": float(min(values)), "max": float(max(values))}
    return out


def _mean_by(books: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """component -> axis -> mean over runs."""
    out: dict[str, dict[str, float]] = {}
    for component in sorted({name for book in books for name in book}):
        axes = sorted({axis for book in books for axis in book.get(component, {})}, key=list(AXES).index)
        out[component] = {x: float(np.mean([b.get(component, {}).get(x, 0.0) for b in books])) for x in axes}
    return out


def equal_spend(arms: Sequence[Arm], comparable: Sequence[str], metric: str, level: float) -> dict[str, EqualSpend]:
    """Every axis on which all curves reach a common spend; differences for the comparable arms only."""
    out = {}
    shown = describe(metric)
    for axis in AXES:
        spend = reach([run.curve for arm in arms for run in arm.runs.values()], metric, axis)
        if not spend:
            continue
        read_off = {a.name: [value_at(a.runs[s].curve, metric, axis, spend) for s in a.seeds] for a in arms}
        at = {name: [value for value in row if value is not None] for name, row in read_off.items()}
        values = {name: mean_interval(row, level, shown.bounds) for name, row in at.items()}
        base = at[arms[0].name]
        pairs = {n: paired_difference(at[n], base, level, bounds=shown.difference_bounds) for n in comparable}
        out[axis] = EqualSpend(spend, values, pairs)
    return out


def draw_curves(
    arms: Sequence[Arm], metric: str, names: set[str], level: float
) -> dict[str, dict[str, dict[str, Curve]]]:
    out: dict[str, dict[str, dict[str, Curve]]] = {}
    measured = {name for arm in arms for run in arm.runs.values() for row in run.curve[:-1] for name in row}
    widest = ANY_TASK + f"pass@{max((_k(name) for name in measured), default=0)}"
    wanted = [metric, *(name for name in (widest,) if name != metric), *CURVES]
    for name in wanted:
        for axis in (axis for axis in AXES if f"budget/{axis}" in names):
            drawn = {a.name: learning_curve({s: r.curve for s, r in a.runs.items()}, name, axis, level) for a in arms}
            kept = {arm: curve for arm, curve in drawn.items() if curve is not None and _moves(curve)}
            if kept:
                out.setdefault(name, {})[axis] = kept
    return out


def _moves(curve: Curve) -> bool:
    """A curve needs two points that are apart."""
    return any(len(x) > 1 and x[-1] > x[0] for x, _ in curve.seeds.values())
