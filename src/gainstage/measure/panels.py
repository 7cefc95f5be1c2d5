"""The charts of a report page: learning curves on every budget axis, what more answers bring."""

from __future__ import annotations

import math
from html import escape

from gainstage.measure import svg
from gainstage.measure.cells import BEFORE
from gainstage.measure.curves.learning import Curve
from gainstage.measure.metrics import Metric, describe
from gainstage.measure.outcome import Report

WIDE, NARROW = (1032, 390), (506, 240)
ANSWERS = Metric("k", "answers to a problem (k)", "answers", "answers that are drawn; one that is right is enough")
TOKENS = Metric("tokens", "tokens of k answers", "tokens", "answers drawn times their mean length in decisions")
RATE = Metric("rate", "a problem's share of right answers", "share", "how often a run answers one problem right", True)
PASS = Metric("pass@k", "pass@k", "", "chance that at least one of k answers is right (unbiased estimate)", True)
PROFILE = Metric("profile", "share of problems above", "", "problems answered right more often than this", True)


def _axes(report: Report) -> list[str]:
    """Axes of the curves, the budget's own first."""
    found = list(dict.fromkeys(axis for axes in report.curves.values() for axis in axes))
    return sorted(found, key=lambda axis: axis != report.axis)


def switch_rules(report: Report) -> str:
    return "".join(f"#x{i}:checked~.p{i}{{display:block}}" for i in range(len(_axes(report))))


def curves(report: Report) -> str:
    """One panel of charts per budget axis; radio buttons and style sheet alone switch between them."""
    axes, order = _axes(report), [arm.name for arm in report.arms]
    if not axes:
        return ""
    level = f"{100 * report.level:g} %"
    about = f"Thick lines: mean over seeds; bands: its {level} t interval; thin lines: single runs, not smoothed."
    parts = [f'<section class="curves"><h2>Learning curves</h2><p class="about">{about} Horizontal axis:</p>']
    for i, axis in enumerate(axes):
        spent = describe(f"budget/{axis}", report.episodes)
        checked = " checked" if i == 0 else ""
        parts.append(f'<input type="radio" name="axis" id="x{i}"{checked}>')
        parts.append(f'<label for="x{i}" title="{escape(spent.meaning)}">{escape(spent.label)}</label>')
    for i, axis in enumerate(axes):
        parts.append(f'<div class="panel p{i}">')
        small = []
        for metric, by_axis in report.curves.items():
            if axis not in by_axis:
                continue
            main = metric == report.metric
            width, height = WIDE if main else NARROW
            chart = svg.line_chart(
                by_axis[axis], order, metric, axis, width=width, height=height, names=main, episodes=report.episodes
            )
            caption = f"<figcaption>{_caption(report, metric)}</figcaption>"
            if main:
                parts.append(f'<figure class="large">{caption}<div class="wide">{chart}</div></figure>')
            else:
                small.append(f"<figure>{caption}{chart}</figure>")
        parts.append(f'{_legend(order)}<div class="small">{"".join(small)}</div></div>')
    return "".join(parts) + "</section>"


def _caption(report: Report, metric: str) -> str:
    shown = describe(metric, report.episodes)
    where = ", ".join(("held-out", *report.tasks)) if metric.startswith("eval/") else "training"
    unit = f"{shown.unit}, " if shown.unit else ""
    return (
        f'<abbr title="{escape(shown.meaning)}">{escape(shown.label)}</abbr> '
        f'<span class="quiet">{escape(unit + where)}</span>'
    )


def _legend(order: list[str]) -> str:
    items = "".join(
        f'<li><svg class="key a{i % svg.STYLES} d{i % svg.STYLES}" viewBox="0 0 30 10" aria-hidden="true">'
        f'<path class="mean" d="M1 5H29"/></svg>{escape(name)}</li>'
        for i, name in enumerate(order)
        if name
    )
    return f'<ul class="legend">{items}</ul>'


def answers(report: Report) -> str:
    """Charts: pass@k against k and against the tokens that k answers take, the performance profile over problems."""
    found, order = report.saturation, [arm.name for arm in report.arms]
    if not found.arms:
        return ""
    lines: dict[str, Curve] = dict(found.arms)
    if found.start is not None:
        order += [""] * (svg.STYLES - 1 - len(order)) + [BEFORE]
        lines[BEFORE] = found.start
    ks = max((curve.x for curve in lines.values()), key=lambda x: x[-1])
    width, height = NARROW
    crossing = "a trained line that the untrained one crosses bought certainty, not new answers"
    longer = "the same with long answers counted for what they cost"
    higher = "the line that lies higher is the better one at that rate"
    charts = [
        ("pass@k", "against the number of answers", crossing,
         svg.chart(lines, order, PASS, ANSWERS, (1, ks[-1]), ks, width=width, height=height, log=True)),
        ("pass@k", "against the tokens that so many answers take", longer, _over_tokens(report, order)),
        ("Performance profile", "share of problems above a rate", higher,
         svg.chart(found.profile, order, PROFILE, RATE, (0, 1), [0, 0.25, 0.5, 0.75, 1], width=width, height=height)),
    ]  # fmt: skip
    figures = [
        f'<figure><figcaption><abbr title="{why}">{name}</abbr> <span class="quiet">{what}</span></figcaption>'
        f"{drawn}</figure>"
        for name, what, why, drawn in charts
        if drawn
    ]
    return f'{_legend(order)}<div class="small">{"".join(figures)}</div>'


def _over_tokens(report: Report, order: list[str]) -> str:
    """pass@k against cumulative tokens; nothing where lengths are not known."""
    found = report.saturation
    lines = {name: curve for name, curve in found.tokens.items() if curve.x}
    if found.start_tokens is not None and found.start_tokens.x:
        lines[BEFORE] = found.start_tokens
    if not lines:
        return ""
    ends = min(curve.x[0] for curve in lines.values()), max(curve.x[-1] for curve in lines.values())
    ticks = [2.0**i for i in range(math.ceil(math.log2(ends[0])), math.floor(math.log2(ends[1])) + 1)]
    width, height = NARROW
    ticks = ticks if len(ticks) > 1 else list(ends)
    return svg.chart(
        lines, order, PASS, TOKENS, ends, ticks[:: 1 + len(ticks) // 9], width=width, height=height, log=True
    )
