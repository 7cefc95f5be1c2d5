"""A report as Markdown and in the terminal."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from gainstage.measure import outcome
from gainstage.measure.cells import BEFORE, Column, Table
from gainstage.measure.outcome import Report
from gainstage.measure.tables import learning, tables

if TYPE_CHECKING:
    from rich.console import Console


def markdown(report: Report) -> str:
    """The report as Markdown; whatever came from outside cannot break out of its cell."""
    lines = [f"# {_plain(report.title)}", "", f"**{_plain(report.sentence)}**", "", _plain(report.context) + "."]
    for kind, texts in (("Read with care", report.warnings), ("Notes", report.notes)):
        if texts:
            lines += ["", f"{kind}:", "", *(f"- {_plain(text)}" for text in texts)]
    for table in [*tables(report), learning(report)]:
        if not table.rows:
            continue
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
    """Rows and columns exchanged, for a terminal too narrow for the columns; asides to arms are left out."""
    first, *others = table.columns
    pairs = zip(table.rows, table.arms, strict=True)
    kept = [row for row, arm in pairs if arm is not None or row[0].endswith(BEFORE)]
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
