"""The tables of what more answers to a problem bring, beside what training brings."""

from __future__ import annotations

from gainstage.measure.cells import BEFORE, Column, Table, interval_text, minus, percent
from gainstage.measure.curves.saturation import RESAMPLES
from gainstage.measure.intervals import Estimate
from gainstage.measure.metrics import NONE, describe
from gainstage.measure.outcome import Report

ANSWERS = "More answers, and more training"


def saturation(report: Report) -> Table:
    """pass@k over k for every arm and for the untrained policy, and how many answers make up for training."""
    found = report.saturation
    curves = [(arm.name, found.arms[arm.name], i) for i, arm in enumerate(report.arms) if arm.name in found.arms]
    ks = max((curve.x for _, curve, _ in curves), key=len, default=[])
    shown, rows = describe("pass@1"), []
    columns = [Column("arm", "", False), *(Column(f"pass@{k:g}", describe(f"pass@{k:g}").meaning) for k in ks)]
    about = "smallest k at which the untrained policy's pass@k is the arm's pass@1, on the same problems"
    columns.append(Column("untrained needs", about))
    for name, curve, _ in curves:
        values = dict(zip(curve.x, curve.mean, strict=True))
        k = found.reached.get(name)
        needs = NONE if name not in found.reached else f"k = {k}" if k else f"k > {found.start_answers}"
        rows.append([name, *(shown.text(values.get(k)) for k in ks), needs])
    if found.start is not None and rows:
        values = dict(zip(found.start.x, found.start.mean, strict=True))
        rows.append([BEFORE, *(shown.text(values.get(k)) for k in ks), ""])
    about = "Chance that one of k answers is right (unbiased estimate), mean over problems and seeds."
    if found.start is not None:
        about += f" Before training: the first looks of all seeds together, {found.start_answers} answers a problem."
    return Table(ANSWERS, about, columns, rows, [*(i for _, _, i in curves), *[None] * (len(rows) - len(curves))])


def answers_gained(report: Report) -> Table:
    """pass@k of every arm minus the baseline's, and minus the untrained policy's, over k."""
    found, shown = report.saturation, describe("pass@1")
    lines = [(f"{arm.name} {minus(base)}", curves[arm.name], index)
             for base, curves in ((report.baseline, found.over_baseline), (BEFORE, found.over_start))
             for index, arm in enumerate(report.arms) if arm.name in curves and curves[arm.name].x]  # fmt: skip
    ks = sorted({k for _, curve, _ in lines for k in curve.x})
    columns = [Column("difference (points)", "", False), *(Column(f"pass@{k:g}", "difference, interval") for k in ks)]
    rows = []
    for name, curve, _ in lines:
        ends = zip(curve.mean, curve.low, curve.high, strict=True)
        at = {k: Estimate(*end, RESAMPLES, report.level) for k, end in zip(curve.x, ends, strict=True)}
        rows.append([name, *(interval_text(at.get(k), shown, change=True) for k in ks)])
    about = (
        f"With the {percent(report.level)} interval of a bootstrap over problems ({RESAMPLES} draws, the same for "
        "both sides): how far other problems might have changed it, with these very runs. The verdict counts runs."
    )
    return Table("Differences of pass@k", about, columns, rows, [index for _, _, index in lines])
