"""Runs to a verdict: pairs of seeds, equal spend, intervals that hold, one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np

from gainstage.measure import outcome
from gainstage.measure.budget import AXES, check_axis
from gainstage.measure.curves.learning import reach, value_at
from gainstage.measure.curves.saturation import Saturation, saturation
from gainstage.measure.intervals import minimum_detectable_effect, paired_difference
from gainstage.measure.metrics import describe, short
from gainstage.measure.outcome import Comparison, Report
from gainstage.measure.runs import (
    ANY_TASK,
    Arm,
    ParityManifest,
    RunRecord,
    difference,
    field_value,
    group,
    read,
    tasks_of,
)
from gainstage.measure.sequential import sequential_difference
from gainstage.measure.starts import sharpening
from gainstage.measure.statistics import probability_of_improvement
from gainstage.measure.summaries import (
    bootstrap_difference,
    difference_noise,
    draw_curves,
    equal_spend,
    summary,
    with_side_effects,
)
from gainstage.measure.verdicts import Plan, judge
from gainstage.measure.wording import contamination, context, equal_pairs, notes, overall, sentence, warnings

__all__ = ["Arm", "ParityManifest", "Report", "RunRecord", "compare", "difference"]

FINAL = "final evaluation"
Scores = dict[str, dict[int, float]]


@dataclass(frozen=True)
class Matter:
    """Runs made ready to be judged: arms (the baseline first), their numbers, and the score of every run."""

    arms: list[Arm]
    numbers: dict[tuple[str, int], dict[str, float]]
    names: set[str]
    axis: str
    scores: Scores
    basis: str
    uneven: list[str]
    """For each arm behind the baseline the axis that was spent unequally with no curve to mend it, or ""."""
    plan: Plan


class How(TypedDict, total=False):
    """How runs are compared: arguments of `prepare` that `compare` hands on."""

    baseline: str | None
    axis: str | None
    better: str | None
    level: float
    tolerance: float
    sequential: bool
    effect: float | None


def compare(
    runs: Iterable[RunRecord], metric: str = "pass@1", *, title: str = "", created: str = "", **how: Unpack[How]
) -> Report:
    """Compare every arm with the baseline, seed by seed.

    The score of a run is its final held-out evaluation. Where runs spent unequally (by more than `tolerance`) on the
    budget's axis, it is read off the learning curves at the spend that all of them reached.

    Args:
        runs: records of at least two arms.
        metric: `pass@1` means `eval/*/pass@1`, the plain mean over tasks; a full log name means itself.
        title, created: printed on top of the report.
        how: arguments of `prepare`.

    Raises:
        ValueError: as `prepare`.
    """
    matter = prepare(runs, metric, **how)
    arms, numbers, names, metric = matter.arms, matter.numbers, matter.names, matter.plan.metric
    level, sequential = matter.plan.level, matter.plan.sequential
    comparisons = [with_side_effects(c, arms, numbers, level) for c in verdicts(matter)]
    comparable = [c.arm for c in comparisons if c.verdict != outcome.INCOMPARABLE]
    first = arms[0].runs[arms[0].seeds[0]].manifest
    tasks = tasks_of(names, metric)
    off = matter.basis != FINAL
    summaries = [summary(arm, matter.scores[arm.name], numbers, metric, level, off_curves=off) for arm in arms]
    return Report(
        title=title or " against ".join((", ".join(arm.name for arm in arms[1:]), arms[0].name)),
        metric=metric,
        better=matter.plan.better,
        tasks=tasks,
        axis=matter.axis,
        level=level,
        verdict=overall(comparisons),
        sentence=sentence(comparisons, metric),
        context=context(arms, metric, matter.axis, tasks, sequential),
        basis=matter.basis,
        arms=summaries,
        comparisons=comparisons,
        equal_spend=equal_spend(arms, comparable, metric, level),
        curves=draw_curves(arms, metric, names, level),
        saturation=saturation(arms, tasks, level) if describe(metric).name == "pass@1" else Saturation(),
        manifest=first.to_dict() if first else {},
        contamination=contamination(arms),
        notes=[*notes(arms), *equal_pairs(comparisons)],
        warnings=[*warnings(arms, matter.axis, matter.basis), *sharpening(arms, numbers, metric)],
        created=created,
        sequential=sequential,
    )


def prepare(
    runs: Iterable[RunRecord],
    metric: str = "pass@1",
    *,
    baseline: str | None = None,
    axis: str | None = None,
    better: str | None = None,
    level: float = 0.95,
    tolerance: float = 0.05,
    sequential: bool = False,
    effect: float | None = None,
) -> Matter:
    """Group the runs and score them.

    Args:
        runs, metric: as in `compare`.
        baseline: name of the arm that the others are compared with; the first one where None.
        axis: budget axis that was to be equal; the first limit of the manifest's budget where None.
        better: "higher" or "lower"; what the metric itself says where None.
        level: coverage of the intervals; 1 - level is the error rate kept by Holm over all comparisons.
        tolerance: relative difference of spending that counts as equal.
        sequential: the number of seeds was not fixed beforehand: intervals and p values that hold at every look.
        effect: smallest difference that matters; an interval inside of it ends a sequential comparison, too.

    Raises:
        ValueError: fewer than two arms, a seed twice, an unknown axis, or no run that has the metric.
    """
    if better not in (None, "higher", "lower"):
        raise ValueError(f"compare: better must be 'higher' or 'lower', got {better!r}")
    if effect is not None and not effect > 0:
        raise ValueError(f"compare: effect must be positive, got {effect}")
    arms = group(runs, baseline)
    if len(arms) < 2:
        raise ValueError(f"compare needs at least two arms, got {[arm.name for arm in arms]}")
    everyone = [run for arm in arms for run in arm.runs.values()]
    numbers = {(run.arm, run.seed): run.numbers() for run in everyone}
    names = {name for row in numbers.values() for name in row} | {n for r in everyone for row in r.curve for n in row}
    metric = _full_name(metric, names)
    axis = check_axis(axis) if axis else _axis(arms)
    scores, basis = _scores(arms, numbers, metric, axis, tolerance)
    uneven = [axis if basis == FINAL and _unequal(_spends((arms[0], arm), axis), tolerance) else "" for arm in arms[1:]]
    plan = Plan(metric, better or describe(metric).better, level, len(arms) - 1, sequential, effect)
    return Matter(arms, numbers, names, axis, scores, basis, uneven, plan)


def verdicts(matter: Matter) -> list[Comparison]:
    """Every arm against the baseline: difference, interval, verdict. No side effects, no curves."""
    base, *others = matter.arms
    pairs = zip(others, matter.uneven, strict=True)
    return judge([_compare(base, arm, matter.scores, matter.plan, uneven) for arm, uneven in pairs], matter.plan)


def _full_name(metric: str, names: set[str]) -> str:
    starred = metric if metric.startswith("eval/") else ANY_TASK + metric
    if tasks_of(names, starred) and (starred.startswith(ANY_TASK) or starred in names):
        return starred
    if metric in names:
        return metric
    raise ValueError(f"compare: no run has the metric {metric!r}; measured are {sorted(names)[:12]}")


def _axis(arms: Sequence[Arm]) -> str:
    """The budget's first limit; without one the first axis that every run was charged on."""
    runs = [run for arm in arms for run in arm.runs.values()]
    manifest = runs[0].manifest
    if manifest and manifest.budget:
        return check_axis(next(iter(manifest.budget)))
    return next((name for name in AXES if all(run.spent.get(name, 0) > 0 for run in runs)), "generated_tokens")


def _scores(
    arms: Sequence[Arm], numbers: dict[tuple[str, int], dict[str, float]], metric: str, axis: str, tolerance: float
) -> tuple[Scores, str]:
    """Score per arm and seed, and in words where it comes from."""
    curves = [run.curve for arm in arms for run in arm.runs.values()]
    # a number of training, which no last look has
    trained_only = all(read(row, metric) is None for row in numbers.values())
    uneven = _unequal(_spends(arms, axis), tolerance)
    if (uneven or trained_only) and (spend := reach(curves, metric, axis)):
        out: Scores = {}
        for arm in arms:
            values = {seed: value_at(run.curve, metric, axis, spend) for seed, run in arm.runs.items()}
            out[arm.name] = {seed: value for seed, value in values.items() if value is not None}
        return out, f"learning curves{_drawn_on(arms)} at {short(spend)} {describe('budget/' + axis).label}"
    finals = {a.name: {seed: read(numbers[a.name, seed], metric) for seed in a.seeds} for a in arms}
    return {name: {s: v for s, v in row.items() if v is not None} for name, row in finals.items()}, FINAL


def _drawn_on(arms: Sequence[Arm]) -> str:
    """The split of the learning curves, where it is not that of the final evaluation."""
    manifest = next(iter(arms[0].runs.values())).manifest
    split = manifest.evaluation.get("curves") if manifest else None
    return f" on the {split} split" if split else ""


def _spends(arms: Sequence[Arm], axis: str) -> list[float]:
    return [run.spent.get(axis, 0.0) for arm in arms for run in arm.runs.values()]


def _unequal(spends: Sequence[float], tolerance: float) -> bool:
    return max(spends) > (1 + tolerance) * min(spends)


def _compare(base: Arm, arm: Arm, scores: Scores, plan: Plan, uneven: str) -> Comparison:
    """One arm against the baseline, before Holm. `uneven`: what was spent unequally with no curve to mend it."""
    metric, level = plan.metric, plan.level
    differing = _differing(base, arm)
    for side in (base, arm):
        for seed in side.seeds:
            if seed not in scores[side.name]:
                differing[f"{metric} of {side.name}, seed {seed}"] = [None, None]
    if uneven:
        means = [np.mean([run.spent.get(uneven, 0.0) for run in side.runs.values()]) for side in (base, arm)]
        differing[f"spent {uneven}"] = [short(float(mean)) for mean in means]
    if differing:
        return Comparison(arm.name, base.name, outcome.INCOMPARABLE, ", ".join(differing), differing=differing)
    shown = describe(metric)
    a = [scores[arm.name][seed] for seed in arm.seeds]
    b = [scores[base.name][seed] for seed in arm.seeds]
    measure = sequential_difference if plan.sequential else paired_difference
    pair = measure(a, b, level, difference_noise(base, arm, metric), shown.difference_bounds)
    chance = probability_of_improvement(a, b)
    return Comparison(
        arm.name,
        base.name,
        outcome.NONE,
        difference=pair,
        bootstrap=bootstrap_difference(base, arm, a, b, metric, level),
        probability=chance if plan.better == "higher" else 1 - chance,
        detectable=None
        if plan.sequential or not pair.sd
        else minimum_detectable_effect(pair.sd, pair.n, (1 - level) / plan.comparisons),
        reason=_contaminated(base, arm),
    )


def _differing(base: Arm, arm: Arm) -> dict[str, list[Any]]:
    """Manifest fields in which any run of the two arms differs from the baseline's first run, with both values."""
    missing = [any(run.manifest is None for run in side.runs.values()) for side in (base, arm)]
    if any(missing):
        return {"manifest": ["missing" if gone else "there" for gone in missing]}
    manifests = [run.manifest for side in (base, arm) for run in side.runs.values() if run.manifest]
    out: dict[str, list[Any]] = {}
    for manifest in manifests[1:]:
        for name in difference(manifests[0], manifest):
            out.setdefault(name, [field_value(manifests[0], name), field_value(manifest, name)])
    if base.seeds != arm.seeds:
        out["seeds"] = [base.seeds, arm.seeds]
    return out


def _contaminated(base: Arm, arm: Arm) -> str:
    overlaps = [run.contamination.get("exact") for side in (base, arm) for run in side.runs.values()]
    return next((overlap.message for overlap in overlaps if overlap is not None and overlap.count), "")
