"""A report as one HTML file: no script, no network, everything from outside escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from gainstage.measure import outcome, svg
from gainstage.measure import tables as t
from gainstage.measure.answer_tables import answers_gained, saturation
from gainstage.measure.cells import Table
from gainstage.measure.metrics import describe
from gainstage.measure.outcome import Report
from gainstage.measure.page import STYLE
from gainstage.measure.panels import answers, curves, switch_rules
from gainstage.measure.printing import print_table
from gainstage.measure.wording import clause

__all__ = ["print_table", "render"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
TONES = {outcome.GAIN: "gain", outcome.LOSS: "loss", outcome.NONE: "none"}
MARKS = {outcome.GAIN: "\u25b2", outcome.LOSS: "\u25bc", outcome.NONE: "\u2248"}
PLOT = 250
CROWDED = 8
"""Columns above which intervals and changes stand under their number instead of beside it."""


def render(report: Report) -> str:
    """The whole page. It opens offline, carries no script and forbids any by its content security policy."""
    body = "".join(
        (
            _head(report),
            _parity(report),
            _differences(report),
            curves(report),
            _section(t.scores(report)),
            _section(t.side_effects(report)),
            _section(saturation(report), after=answers(report)),
            _section(answers_gained(report)),
            _section(t.equal_spend(report)),
            _spent(report),
            _manifest(report),
            _reading(report),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(report.title)}: {escape(report.verdict)}</title>"
        f"<style>{STYLE}{switch_rules(report)}</style></head><body><main>{body}</main></body></html>"
    )


def _head(report: Report) -> str:
    tone = TONES.get(report.verdict, "stop")
    date = f" \u00b7 {escape(report.created)}" if report.created else ""
    word = f'<span aria-hidden="true">{MARKS.get(report.verdict, "!")}</span> {escape(_word(report))}'
    parts = [
        f'<header><p class="over">gainstage \u00b7 comparison{date}</p><h1>{escape(report.title)}</h1>',
        f'<div class="verdict {tone}"><p class="word">{word}</p>',
        f'<p class="sentence">{_lines(report)}</p>',
        f'<p class="context">{escape(report.context)}. Scores from the {escape(report.basis)}.</p></div>',
    ]
    if report.warnings:
        parts.append(f'<div class="care"><h2>Read with care</h2>{_list(report.warnings)}</div>')
    if report.notes:
        parts.append(f'<div class="notes"><h2>Notes</h2>{_list(report.notes)}</div>')
    return "".join(parts) + "</header>"


def _word(report: Report) -> str:
    """The verdict; where arms differ, for how many of them it holds."""
    verdicts = [c.verdict for c in report.comparisons]
    count = verdicts.count(report.verdict)
    return report.verdict if count == len(verdicts) else f"{report.verdict}: {count} of {len(verdicts)} arms"


def _lines(report: Report) -> str:
    """The sentence, a line for each arm."""
    clauses = [clause(c, report.metric) for c in report.comparisons]
    text = ";<br>".join(escape(part) for part in clauses) + "."
    return text[:1].upper() + text[1:]


def _list(texts: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def _cell(text: str, numeric: bool) -> str:
    if numeric:
        return f'<td class="n">{_main_number(text)}</td>'
    return f"<td{' class=say' if text in outcome.VERDICTS else ''}>{escape(text)}</td>"


def _main_number(text: str) -> str:
    """The number itself at full strength, its interval or change beside it in a quieter tone."""
    for mark in (" [", " ("):
        main, found, rest = text.partition(mark)
        if found:
            return f'{escape(main)} <span class="quiet">{escape(found.strip() + rest)}</span>'
    return escape(text)


def _chip(index: int | None) -> str:
    return "" if index is None else f'<i class="chip a{index % svg.STYLES}" aria-hidden="true"></i>'


def _headings(table: Table, extra: dict[int, str]) -> str:
    cells = []
    for place, column in enumerate(table.columns):
        about = f' title="{escape(column.meaning)}"' if column.meaning else ""
        kind = ' class="n"' if column.numeric else ""
        label = f"<abbr{about}>{escape(column.label)}</abbr>" if about else escape(column.label)
        cells.append(f'<th scope="col"{kind}>{label}</th>{extra.get(place, "")}')
    return "<thead><tr>" + "".join(cells) + "</tr></thead>"


def _rows(table: Table, extra: dict[int, list[str]]) -> str:
    out = []
    for number, row in enumerate(table.rows):
        arm = table.arms[number]
        cells = [f'<th scope="row"><span class="who">{_chip(arm)}<span>{escape(row[0])}</span></span></th>']
        for place, (text, column) in enumerate(zip(row[1:], table.columns[1:], strict=True), 1):
            cells.append(_cell(text, column.numeric) + (extra[place][number] if place in extra else ""))
        out.append(f"<tr{'' if arm is not None or table.arms.count(None) == len(table.rows) else ' class=aside'}>")
        out.append("".join(cells) + "</tr>")
    return "<tbody>" + "".join(out) + "</tbody>"


def _section(table: Table, before: str = "", after: str = "") -> str:
    if not table.rows or len(table.columns) < 2:
        return ""
    about = f'<p class="about">{escape(table.about)}</p>' if table.about else ""
    tight = " class=tight" if len(table.columns) > CROWDED else ""
    body = f"<table{tight}>{_headings(table, {})}{_rows(table, {})}</table>"
    return f'<section><h2>{escape(table.title)}</h2>{about}{before}<div class="wide">{body}</div>{after}</section>'


def _parity(report: Report) -> str:
    return _section(t.parity(report))


def _differences(report: Report) -> str:
    """The table of differences with a plot of every interval on one scale."""
    table, shown = t.differences(report), describe(report.metric)
    pairs = [c.difference for c in report.comparisons if c.difference is not None]
    if not pairs:
        return ""
    scale, ticks = svg.difference_scale(pairs, PLOT)
    plots = [
        f'<td class="plot">{svg.interval_plot(c.difference, index, scale, ticks, shown)}</td>'
        for index, c in enumerate(report.comparisons, 1)
    ]
    about = "large dot and line: mean and interval; small rings: one pair of seeds each; dark line: no difference"
    heading = {1: f'<th scope="col" class="plot"><abbr title="{about}">{_direction(report)}</abbr></th>'}
    rest = len(table.columns) - 2
    foot = f'<tfoot><tr><td></td><td></td><td class="plot">{svg.interval_axis(scale, ticks, shown)}</td>'
    foot += f'<td colspan="{rest}"></td></tr></tfoot>'
    body = f"<table>{_headings(table, heading)}{_rows(table, {1: plots})}{foot}</table>"
    return f'<section><h2>{escape(table.title)}</h2><div class="wide">{body}</div></section>'


def _direction(report: Report) -> str:
    return "worse \u2192 better" if report.better == "higher" else "better \u2190 worse"


def _spent(report: Report) -> str:
    table = t.components(report)
    inner = f"<table>{_headings(table, {})}{_rows(table, {})}</table>" if table.rows else ""
    details = f'<details><summary>By component</summary><div class="wide">{inner}</div></details>' if inner else ""
    return _section(t.spent(report), after=details)


def _manifest(report: Report) -> str:
    """What was held equal, and the overlap of training and evaluation problems."""
    rows = [(name, value) for name, value in report.manifest.items() if value not in ("", [], {}, None, 0)]
    cells = "".join(f'<tr><th scope="row">{escape(str(k))}</th><td>{escape(_plain(v))}</td></tr>' for k, v in rows)
    for name, text in _overlaps(report):
        cells += f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>'
    if not cells:
        return ""
    refused = any(c.verdict == outcome.INCOMPARABLE for c in report.comparisons)
    about = "Settings of the baseline." if refused else "All runs agree in these, or the comparison would be refused."
    return (
        f'<section><h2>{"Settings" if refused else "Held equal"}</h2><p class="about">{about}</p>'
        f'<div class="wide"><table class="pairs"><tbody>{cells}</tbody></table></div></section>'
    )


def _overlaps(report: Report) -> list[tuple[str, str]]:
    """Overlap of training and evaluation problems, once for all arms where they agree."""
    found: dict[tuple[str, str], list[str]] = {}
    for arm, checks in report.contamination.items():
        for check, overlap in checks.items():
            text = (
                f"{overlap['count']} of {overlap['evaluation']} evaluation problems, {overlap['training']} for training"
            )
            if overlap["examples"]:
                text += "; for instance " + ", ".join(map(str, overlap["examples"]))
            found.setdefault((check, text), []).append(arm)
    every = len(report.contamination)
    return [
        (f"overlap with training, {check}" + ("" if len(arms) == every else f": {', '.join(arms)}"), text)
        for (check, text), arms in found.items()
    ]


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} = {_plain(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_plain(v) for v in value)
    return f"{value:,.0f}".replace(",", "\u202f") if isinstance(value, float) and value >= 1000 else str(value)


def _reading(report: Report) -> str:
    """Definitions in words, for paper and touch screens where nothing can be pointed at."""
    columns = [c for table in t.tables(report) for c in table.columns if c.meaning]
    seen = dict.fromkeys((c.label, c.meaning) for c in columns if c.label not in {arm.name for arm in report.arms})
    terms = "".join(f"<dt>{escape(label)}</dt><dd>{escape(meaning)}</dd>" for label, meaning in seen)
    return f"<section><details><summary>What the words mean</summary><dl>{terms}</dl></details></section>"
