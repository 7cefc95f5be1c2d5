"""The tables of a report, once: HTML, Markdown and the terminal only write them out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from gainstage.measure import outcome
from gainstage.measure.intervals import Estimate, PairedDifference
from gainstage.measure.metrics import NONE, Metric, describe, number, short
from gainstage.measure.outcome import Report

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Column:
    """A column with one line of meaning."""

    label: str
    meaning: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """Texts in rows; `arms` is the index of the arm that a row belongs to, where it belongs to one."""

    title: str
    about: str
    columns: list[Column]
    rows: list[list[str]]
    arms: list[int | None] = field(default_factory=list)


def interval_text(estimate: Estimate | None, shown: Metric, change: bool = False) -> str:
    """`61.2 % [58.0, 64.4]`, or the number alone where there is no interval."""
    if estimate is None:
        return NONE
    write = shown.change if change else shown.text
    if estimate.low is None or estimate.high is None:
        return write(estimate.value)
    low, high = write(estimate.low).removesuffix(" %"), write(estimate.high).removesuffix(" %")
    return f"{write(estimate.value)} [{low}, {high}]"


def p_text(p: float | None) -> str:
    return NONE if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _percent(level: float) -> str:
    return f"{100 * level:g} %"


def differences(report: Report) -> Table:
    """Every arm against the baseline."""
    shown = describe(report.metric)
    unit = f" ({shown.change_unit})" if shown.change_unit else ""
    level = _percent(report.level)
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
    """Every arm's score and where its noise comes from."""
    shown, level = describe(report.metric), _percent(report.level)
    columns = [
        Column("arm", "", False),
        Column("seeds", "independent training runs"),
        Column(f"mean {shown.label}", f"{shown.meaning}; mean over seeds with Student's t interval at {level}"),
        Column("IQM", "interquartile mean with a percentile bootstrap over seeds and problems; with few seeds this is "
                      "too narrow (with 3 it holds the truth in some 74 % of cases), so no verdict uses it"),
        Column("spread over seeds", "standard deviation of the score between seeds: training and evaluation noise"),
        Column("evaluation noise", "standard error of one run's score that drawing its evaluation answers causes"),
    ]  # fmt: skip
    rows = [
        [
            arm.name,
            str(len(arm.seeds)),
            interval_text(arm.value, shown),
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
    columns = [Column("arm", "", False)]
    for name in names:
        shown = describe(name)
        unit = f" ({shown.unit})" if shown.unit else ""
        columns.append(Column(f"{shown.label}{unit}", f"{shown.meaning}; in brackets the change against the baseline"))
    rows = []
    for arm in report.arms:
        row = [arm.name]
        for name in names:
            value = arm.side_effects[name].value if name in arm.side_effects else None
            text, change = describe(name).text(value), changes.get(arm.name, {}).get(name)
            row.append(f"{text} ({_starred(change, describe(name), value)})" if change else text)
        rows.append(row)
    about = "A star marks changes whose own interval leaves out zero (not corrected for looking at many)."
    return Table("Side effects", about, columns, rows, list(range(len(rows))))


def _starred(change: PairedDifference, shown: Metric, beside: float | None) -> str:
    return shown.change(change.value, beside) + ("*" if change.excludes_zero else "")


def equal_spend(report: Report) -> Table:
    """The comparison read off the curves at equal spend, on every axis."""
    shown = describe(report.metric)
    columns = [
        Column("axis", "", False),
        Column("at", "the largest amount that every run reached on this axis"),
        *(Column(arm.name, f"mean {shown.label} where each run has spent this much") for arm in report.arms),
        *(
            Column(f"{c.arm} {_minus(report.baseline)}", "mean paired difference with its interval")
            for c in report.comparisons
            if c.verdict != outcome.INCOMPARABLE
        ),
    ]
    rows = []
    for axis, row in report.equal_spend.items():
        cells = [describe(f"budget/{axis}").label, short(row.spend)]
        cells += [shown.text(row.values[arm.name].value) if arm.name in row.values else NONE for arm in report.arms]
        cells += [interval_text(d, shown, change=True) for d in row.differences.values()]
        rows.append(cells)
    about = "A win on one axis can hide a loss on another. Read off the curves; not corrected for several axes."
    return Table("At equal spend, on every axis", about, columns, rows, [None] * len(rows))


def _minus(baseline: str) -> str:
    return f"\u2212 {baseline}"


def spent(report: Report) -> Table:
    """What a run of each arm really spent."""
    axes = list(dict.fromkeys(axis for arm in report.arms for axis in (*arm.spent, *arm.evaluation_spent)))
    columns = [Column("arm", "", False)]
    for axis in axes:
        shown = describe(f"budget/{axis}")
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
    columns += [Column(describe(f"budget/{axis}").label, describe(f"budget/{axis}").meaning) for axis in axes]
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
        parity(report), differences(report), scores(report), side_effects(report), equal_spend(report), spent(report),
    )  # fmt: skip
    return [table for table in every if table.rows and len(table.columns) > 1]


def markdown(report: Report) -> str:
    """The report as Markdown; whatever came from outside cannot break out of its cell."""
    lines = [f"# {_plain(report.title)}", "", f"**{_plain(report.sentence)}**", "", _plain(report.context) + "."]
    for kind, texts in (("Read with care", report.warnings), ("Notes", report.notes)):
        if texts:
            lines += ["", f"{kind}:", "", *(f"- {_plain(text)}" for text in texts)]
    for table in tables(report):
        lines += ["", f"## {_plain(table.title)}", ""]
        lines += [table.about, ""] if table.about else []
        lines.append("| " + " | ".join(_plain(c.label) for c in table.columns) + " |")
        lines.append("|" + "|".join("---:" if c.numeric else "---" for c in table.columns) + "|")
        lines += ["| " + " | ".join(_plain(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    flat = re.sub(r"[\x00-\x1f\x7f]+", " ", text)
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", escape(flat, quote=False))


def turned(table: Table) -> Table:
    """Rows and columns exchanged, for a terminal too narrow for the columns; only the rows of arms are kept."""
    first, *others = table.columns
    kept = [row for row, arm in zip(table.rows, table.arms, strict=True) if arm is not None]
    heads = [first, *(Column(row[0]) for row in kept)]
    rows = [[column.label, *(row[index] for row in kept)] for index, column in enumerate(others, start=1)]
    return Table(table.title, table.about, heads, rows)


def print_table(report: Report, console: Console | None = None) -> None:
    """The verdict and the main tables in the terminal."""
    from rich import box
    from rich.console import Console as RichConsole
    from rich.table import Table as RichTable
    from rich.text import Text

    out = console or RichConsole()
    colour = {outcome.GAIN: "green", outcome.LOSS: "red", outcome.NONE: "cyan"}.get(report.verdict, "yellow")
    out.print()
    out.print(Text(_terminal(report.sentence), style=f"bold {colour}"))
    out.print(Text(_terminal(report.context), style="dim"))

    def drawn(table: Table) -> RichTable:
        shown = RichTable(title=Text(_terminal(table.title)), box=box.SIMPLE, title_justify="left", pad_edge=False)
        for column in table.columns:
            shown.add_column(Text(_terminal(column.label)), justify="right" if column.numeric else "left")
        for row in table.rows:
            shown.add_row(*(Text(_terminal(cell)) for cell in row))
        return shown

    for table in (t for t in tables(report) if t.title not in ("At equal spend, on every axis",)):
        shown = drawn(table)
        if len(table.rows) + 1 < len(table.columns) and out.measure(shown).maximum >= out.width:
            shown = drawn(turned(table))
        out.print(shown)
    for text in report.warnings:
        out.print(Text("! " + _terminal(text), style="yellow"))
    for text in report.notes:
        out.print(Text("- " + _terminal(text), style="dim"))


def _terminal(text: str) -> str:
    """No control character of a name or note reaches the terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", text)
