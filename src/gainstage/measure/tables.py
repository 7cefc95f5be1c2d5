"""The tables of a report, once: HTML, Markdown and the terminal only write them out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gainstage.measure import outcome
from gainstage.measure.answer_tables import answers_gained, saturation
from gainstage.measure.cells import BEFORE, Column, Table, interval_text, minus, p_text, percent
from gainstage.measure.curves.learning import Curve
from gainstage.measure.intervals import Estimate, PairedDifference
from gainstage.measure.metrics import NONE, Metric, describe, number, short
from gainstage.measure.outcome import Report

POINTS = 9
"""Rows of the learning curve in numbers."""


def differences(report: Report) -> Table:
    """Every arm against the baseline."""
    shown = describe(report.metric)
    unit = f" ({shown.change_unit})" if shown.change_unit else ""
    level = percent(report.level)
    kind = "an interval that holds at every look" if report.sequential else "its t interval"
    test = "mixture over t statistics, looked at after every seed" if report.sequential else "two-sided paired t test"
    columns = [
        Column("arm", "", False),
        Column(f"difference{unit}", f"mean of the paired differences over seeds, with {kind} at {level}"),
        Column("P(better)", f"chance that a run of the arm beats a run of {report.baseline}; ties count one half"),
        Column("p\u00a0(Holm)", f"{test}, corrected by Holm for the number of comparisons"),
        Column(
            "detectable",
            "smallest true difference that this many seeds with this spread find four times in five, after Holm",
        ),
        Column("verdict", "confirmed only if the corrected test rejects equality", False),
    ]
    rows = [
        [
            c.arm,
            interval_text(c.difference, shown, change=True),
            NONE if c.probability is None else number(c.probability, 2),
            p_text(c.p_holm),
            shown.change(c.detectable).lstrip("+"),
            c.verdict,
        ]
        for c in report.comparisons
    ]
    return Table(f"Difference from {report.baseline}", "", columns, rows, list(range(1, len(rows) + 1)))


def scores(report: Report) -> Table:
    """Every arm's score before and after training, and where its noise comes from."""
    shown, level = describe(report.metric), percent(report.level)
    unit = f" ({shown.change_unit})" if shown.change_unit else ""
    known = any(report.metric in arm.before for arm in report.arms)
    started = [
        Column(f"{shown.label} before", f"{shown.meaning}, before training; mean over seeds with its t interval"),
        Column(f"change{unit}", f"after minus before, mean over seeds with its t interval at {level}"),
    ]
    columns = [
        Column("arm", "", False),
        Column("seeds", "independent training runs"),
        *(started[:1] if known else []),
        Column(f"mean {shown.label}", f"{shown.meaning}; mean over seeds with Student's t interval at {level}"),
        *(started[1:] if known else []),
        Column("IQM", "interquartile mean with a percentile bootstrap over seeds and problems; with few seeds this is "
                      "too narrow (with 3 it holds the truth in some 74 % of cases), so no verdict uses it"),
        Column("spread over seeds", "standard deviation of the score between seeds: training and evaluation noise"),
        Column("evaluation noise", "standard error of one run's score that drawing its evaluation answers causes"),
    ]  # fmt: skip
    rows = [
        [
            arm.name,
            str(len(arm.seeds)),
            *([interval_text(arm.before.get(report.metric), shown)] if known else []),
            interval_text(arm.value, shown),
            *([interval_text(arm.gain, shown, change=True)] if known else []),
            interval_text(arm.iqm, shown),
            shown.change(arm.spread).lstrip("+"),
            shown.change(arm.sampling_error).lstrip("+"),
        ]
        for arm in report.arms
    ]
    return Table("Scores", f"From the {report.basis}.", columns, rows, list(range(len(rows))))


def side_effects(report: Report) -> Table:
    """What the gain cost: length, entropy, divergence, large k, honesty; with the change against the baseline."""
    changes = {c.arm: c.side_effects for c in report.comparisons}
    in_arms = [name for arm in report.arms for name in arm.side_effects]
    names = list(dict.fromkeys([*in_arms, *(name for change in changes.values() for name in change)]))
    names = [name for name in names if name != describe(report.metric).name]
    described = {name: describe(name, report.episodes) for name in names}
    columns = [Column("arm", "", False)]
    for name in names:
        shown = described[name]
        unit = f" ({shown.unit})" if shown.unit else ""
        columns.append(Column(f"{shown.label}{unit}", f"{shown.meaning}; in brackets the change against the baseline"))
    rows = []
    for arm in report.arms:
        row = [arm.name]
        for name in names:
            value = arm.side_effects[name].value if name in arm.side_effects else None
            text, change = described[name].text(value), changes.get(arm.name, {}).get(name)
            row.append(f"{text} ({_starred(change, described[name], value)})" if change else text)
        rows.append(row)
    start = {
        arm.name: [described[n].text(arm.before[n].value) if n in arm.before else NONE for n in names]
        for arm in report.arms if arm.before
    }  # fmt: skip
    alike = len({tuple(row) for row in start.values()}) == 1
    before = [[BEFORE if alike else f"{name}, {BEFORE}", *row] for name, row in start.items()][: 1 if alike else None]
    about = "A star marks changes whose own interval leaves out zero (not corrected for looking at many)."
    arms = [*[None] * len(before), *range(len(rows))]
    return Table("Side effects", about, columns, [*before, *rows], arms)


def _starred(change: PairedDifference, shown: Metric, beside: float | None) -> str:
    return shown.change(change.value, beside) + ("*" if change.excludes_zero else "")


def learning(report: Report) -> Table:
    """The learning curves as numbers, against the axis of the comparison."""
    curves = report.curves.get(report.metric, {}).get(report.axis, {})
    curves = {name: curve for name, curve in curves.items() if curve.x}
    shown, axis = describe(report.metric), describe(f"budget/{report.axis}", report.episodes)
    columns = [Column(axis.label, axis.meaning), *(Column(name, shown.meaning) for name in curves)]
    rows = []
    if curves:
        start, end = max(c.x[0] for c in curves.values()), min(c.x[-1] for c in curves.values())
        for spend in np.linspace(start, end, POINTS) if end > start else []:
            rows.append(
                [short(float(spend)), *(_at(curve, float(spend), shown, report.level) for curve in curves.values())]
            )
    about = f"Mean {shown.label} over seeds with its interval, where each run has spent this much."
    return Table("Learning curve", about, columns, rows, [None] * len(rows))


def _at(curve: Curve, spend: float, shown: Metric, level: float) -> str:
    value, *ends = (float(np.interp(spend, curve.x, y)) for y in (curve.mean, curve.low, curve.high) if y)
    low, high = ends or (None, None)
    return interval_text(Estimate(value, low, high, len(curve.seeds), level), shown)


def equal_spend(report: Report) -> Table:
    """The comparison read off the curves at equal spend, on every axis."""
    shown = describe(report.metric)
    columns = [
        Column("axis", "", False),
        Column("at", "the largest amount that every run reached on this axis"),
        *(Column(arm.name, f"mean {shown.label} where each run has spent this much") for arm in report.arms),
        *(
            Column(f"{c.arm} {minus(report.baseline)}", "mean paired difference with its interval")
            for c in report.comparisons
            if c.verdict != outcome.INCOMPARABLE
        ),
    ]
    rows = []
    for axis, row in report.equal_spend.items():
        cells = [describe(f"budget/{axis}", report.episodes).label, short(row.spend)]
        cells += [shown.text(row.values[arm.name].value) if arm.name in row.values else NONE for arm in report.arms]
        cells += [interval_text(d, shown, change=True) for d in row.differences.values()]
        rows.append(cells)
    about = "A win on one axis can hide a loss on another. Read off the curves; not corrected for several axes."
    return Table("At equal spend, on every axis", about, columns, rows, [None] * len(rows))


def spent(report: Report) -> Table:
    """What a run of each arm really spent."""
    axes = list(dict.fromkeys(axis for arm in report.arms for axis in (*arm.spent, *arm.evaluation_spent)))
    columns = [Column("arm", "", False)]
    for axis in axes:
        shown = describe(f"budget/{axis}", report.episodes)
        columns.append(Column(shown.label, f"{shown.meaning}, in {shown.unit}"))
    rows: list[list[str]] = []
    arms: list[int | None] = []
    for index, arm in enumerate(report.arms):
        rows.append([arm.name, *(_range(arm.spent.get(axis)) for axis in axes)])
        arms.append(index)
        if arm.evaluation_spent:
            amounts = [short(arm.evaluation_spent[axis]) if axis in arm.evaluation_spent else NONE for axis in axes]
            rows.append(["evaluation, not counted", *amounts])
            arms.append(None)
    about = "Mean of a run, with the range over seeds; discarded answers, scoring passes and hidden rollouts included."
    return Table("What a run really spent", about, columns, rows, arms)


def _range(row: dict[str, float] | None) -> str:
    if row is None:
        return NONE
    low, high = short(row["min"]), short(row["max"])
    return short(row["mean"]) if low == high else f"{short(row['mean'])} ({low} to {high})"


def components(report: Report) -> Table:
    """Who spent it: component by component."""
    axes = list(dict.fromkeys(x for arm in report.arms for book in arm.spent_by.values() for x in book))
    columns = [Column("arm", "", False), Column("component", "the part of the chain that caused the cost", False)]
    shown = [describe(f"budget/{axis}", report.episodes) for axis in axes]
    columns += [Column(metric.label, metric.meaning) for metric in shown]
    rows: list[list[str]] = []
    arms: list[int | None] = []
    for index, arm in enumerate(report.arms):
        for name, book in arm.spent_by.items():
            rows.append([arm.name, name or "(trainer)", *(short(book[x]) if x in book else NONE for x in axes)])
            arms.append(index)
    return Table("Spending by component", "Mean over runs.", columns, rows, arms)


def parity(report: Report) -> Table:
    """Manifest fields that differ, with both values."""
    columns = [Column("arm", "", False), Column("field", "", False)]
    columns += [Column(report.baseline, "", False), Column("arm's value", "", False)]
    rows: list[list[str]] = []
    arms: list[int | None] = []
    for index, c in enumerate(report.comparisons, 1):
        for name, (left, right) in c.differing.items():
            rows.append([c.arm, name, NONE if left is None else str(left), NONE if right is None else str(right)])
            arms.append(index)
    return Table("Why it is not comparable", "Mend these and run again.", columns, rows, arms)


def tables(report: Report) -> list[Table]:
    """All tables that have something to say, in order of reading."""
    every: Sequence[Table] = (
        parity(report), differences(report), scores(report), side_effects(report), saturation(report),
        answers_gained(report), equal_spend(report), spent(report),
    )  # fmt: skip
    return [table for table in every if table.rows and len(table.columns) > 1]
