"""The charts of a report page: learning curves on every budget axis, what more answers bring."""

from __future__ import annotations

from html import escape

from gainstage.measure import svg
from gainstage.measure.curves.learning import Curve
from gainstage.measure.metrics import Metric, describe
from gainstage.measure.outcome import Report
from gainstage.measure.tables import BEFORE

WIDE, NARROW = (1032, 390), (506, 240)
ANSWERS = Metric("k", "answers to a problem (k)", "answers", "answers that are drawn; one that is right is enough")
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
        spent = describe(f"budget/{axis}")
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
            chart = svg.line_chart(by_axis[axis], order, metric, axis, width=width, height=height, names=main)
            caption = f"<figcaption>{_caption(report, metric)}</figcaption>"
            if main:
                parts.append(f'<figure class="large">{caption}<div class="wide">{chart}</div></figure>')
            else:
                small.append(f"<figure>{caption}{chart}</figure>")
        parts.append(f'{_legend(order)}<div class="small">{"".join(small)}</div></div>')
    return "".join(parts) + "</section>"


def _caption(report: Report, metric: str) -> str:
    shown = describe(metric)
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
    """Two charts: pass@k against k, and the performance profile over problems."""
    found, order = report.saturation, [arm.name for arm in report.arms]
    if not found.arms:
        return ""
    lines: dict[str, Curve] = dict(found.arms)
    if found.start is not None:
        order += [""] * (svg.STYLES - 1 - len(order)) + [BEFORE]
        lines[BEFORE] = found.start
    ks = max((curve.x for curve in lines.values()), key=lambda x: x[-1])
    width, height = NARROW
    parts = [
        svg.chart(lines, order, PASS, ANSWERS, (1, ks[-1]), ks, width=width, height=height, log=True),
        svg.chart(found.profile, order, PROFILE, RATE, (0, 1), [0, 0.25, 0.5, 0.75, 1], width=width, height=height),
    ]
    captions = [
        '<abbr title="a trained line that the untrained one crosses bought certainty, not new answers">pass@k</abbr> '
        '<span class="quiet">against the number of answers</span>',
        '<abbr title="the line that lies higher is the better one at that rate">Performance profile</abbr> '
        '<span class="quiet">share of problems above a rate</span>',
    ]
    figures = [f"<figure><figcaption>{c}</figcaption>{p}</figure>" for c, p in zip(captions, parts, strict=True)]
    return f'{_legend(order)}<div class="small">{"".join(figures)}</div>'
