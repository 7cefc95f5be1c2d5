"""Charts as inline SVG: learning curves with bands, intervals around zero. Colours and type come from the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from gainstage.measure.curves.learning import Curve
from gainstage.measure.intervals import PairedDifference
from gainstage.measure.metrics import Metric, describe, short
from gainstage.measure.ticks import Limits, Scale, clipped, limits, nice_ticks, tick_texts

STYLES = 7


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_n(a)} {_n(b)}" for a, b in points)


def line_chart(
    curves: Mapping[str, Curve], order: Sequence[str], metric: str, axis: str, *, width: int, height: int, names: bool,
    episodes: bool = False,
) -> str:  # fmt: skip
    """Learning curves of several arms against a budget axis, from nothing spent on."""
    x_end = max(x[-1] for c in curves.values() for x, _ in c.seeds.values())
    ticks = [t for t in nice_ticks(0, x_end, 6 if width > 600 else 4) if t <= x_end * 1.001]
    return chart(
        curves, order, describe(metric, episodes), describe(f"budget/{axis}", episodes), (0, x_end), ticks,
        width=width, height=height, names=names,
    )  # fmt: skip


def chart(
    curves: Mapping[str, Curve], order: Sequence[str], shown: Metric, across: Metric, ends: tuple[float, float],
    x_ticks: Sequence[float], *, width: int, height: int, names: bool = False, log: bool = False,
) -> str:  # fmt: skip
    """Lines of several arms: mean, band, every seed.

    Args:
        order: names of the arms; an arm's place is its style.
        shown, across: what stands upwards and across.
        ends, x_ticks: what the horizontal axis shows.
        names: write the arms at the line ends.
        log: powers of two across.
    """
    view = limits(curves, shown)
    y_ticks = nice_ticks(view.low, view.high, 5 if height > 260 else 4)
    low, high = y_ticks[0], y_ticks[-1]
    if view.above is not None or view.below is not None:  # what is cut off stays cut off
        low = low if view.below is None else view.low
        high = high if view.above is None else view.high
        y_ticks = [t for t in nice_ticks(low, high, 6) if low <= t <= high]
    texts = tick_texts(y_ticks, shown)
    right, left, bottom = (150 if names else 14), max(58, 18 + round(7.3 * max(map(len, texts)))), 40
    top = 12 if view.above is None else 26
    xs, ys = Scale(*ends, left, width - right, log), Scale(low, high, height - bottom, top)
    parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img"']
    parts.append(f' aria-label="{escape(f"{shown.label} against {across.label}")}">')
    parts += _frame(xs, ys, x_ticks, zip(y_ticks, texts, strict=True), across, height, bottom)
    drawn = [(index, name) for index, name in enumerate(order) if name in curves]
    parts += [_arm(curves[name], index, name, xs, ys, shown, across) for index, name in drawn]
    parts += _beyond(view, [(index, name, curves[name]) for index, name in drawn], xs, ys, shown)
    if names:
        parts += _end_labels(curves, drawn, ys, width - right + 8, top, height - bottom)
    return "".join(parts) + "</svg>"


def _frame(
    xs: Scale, ys: Scale, x_ticks: Sequence[float], y_ticks: Iterable[tuple[float, str]], across: Metric, height: int,
    bottom: int,
) -> list[str]:  # fmt: skip
    parts = []
    for tick, text in y_ticks:
        y = _n(ys(tick))
        parts.append(f'<line class="grid" x1="{_n(xs.start)}" x2="{_n(xs.end)}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{_n(xs.start - 8)}" y="{y}" dy=".32em" text-anchor="end">{text}</text>')
    base = height - bottom
    for tick, text in zip(x_ticks, tick_texts(x_ticks, across if across.rate else None), strict=True):
        x = _n(xs(tick))
        parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{base}" y2="{base + 4}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{base + 17}" text-anchor="middle">{text}</text>')
    name = across.label if across.unit.lower() in across.label else f"{across.label} ({across.unit})"
    parts.append(f'<line class="base" x1="{_n(xs.start)}" x2="{_n(xs.end)}" y1="{base}" y2="{base}"/>')
    parts.append(
        f'<text class="name" x="{_n(xs.end)}" y="{base + 33}" text-anchor="end">{escape(name)}'
        f"<title>{escape(across.meaning)}</title></text>"
    )
    return parts


def _arm(curve: Curve, index: int, name: str, xs: Scale, ys: Scale, shown: Metric, across: Metric) -> str:
    def line(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
        return [(xs(a), ys(b)) for a, b in zip(*clipped(x, y, ys.low, ys.high), strict=True)]

    parts = [f'<g class="arm a{index % STYLES} d{index % STYLES}"><title>{escape(name)}</title>']
    if curve.low:
        band = line(curve.x, curve.high) + line(curve.x, curve.low)[::-1]
        parts.append(f'<path class="band" d="{_path(band)}Z"/>')
    for seed, (sx, sy) in curve.seeds.items():
        kind = "seed" if len(curve.seeds) > 1 else "seed only"
        title = f"<title>{escape(name)}, seed {escape(str(seed))}</title>"
        parts.append(f'<path class="{kind}" d="{_path(line(sx, sy))}">{title}</path>')
    if len(curve.seeds) != 1 and curve.x:
        parts.append(f'<path class="mean" d="{_path(line(curve.x, curve.mean))}"/>')
    for at, value, low, high in _hits(curve):
        if not ys.low <= value <= ys.high:
            continue
        inside = f" [{shown.text(low)}, {shown.text(high)}]" if low is not None else ""
        text = f"{name}: {shown.label} {shown.text(value)}{inside} at {_amount(at, across)}"
        place = f'cx="{_n(xs(at))}" cy="{_n(ys(value))}"'
        parts.append(f'<circle class="hit" {place} r="8"><title>{escape(text)}</title></circle>')
    return "".join(parts) + "</g>"


def _amount(value: float, across: Metric) -> str:
    return across.text(value) if across.rate else f"{short(value)} {across.label}"


def _beyond(view: Limits, drawn: Sequence[tuple[int, str, Curve]], xs: Scale, ys: Scale, shown: Metric) -> list[str]:
    """Arrows where runs leave the axis, and one line that says how far."""
    out = []
    sides = ((view.above, ys.high, 1, "\u2191", "up"), (view.below, ys.low, -1, "\u2193", "down"))
    for limit, edge, sign, arrow, word in sides:
        if limit is None or sign * limit <= sign * edge:
            continue
        tip = ys(edge) - 8 * sign
        for index, name, curve in drawn:
            lines = list(curve.seeds.values()) or [[curve.x, curve.mean]]
            found = [(sign * v, x) for sx, sy in lines for x, v in zip(sx, sy, strict=True)]
            value, at = max(found)
            if value <= sign * edge:
                continue
            x, text = xs(at), f"{name}: {shown.label} {shown.text(sign * value)}, beyond this axis"
            corners = [(x - 4.5, tip + 7 * sign), (x, tip), (x + 4.5, tip + 7 * sign)]
            title = f"<title>{escape(text)}</title>"
            out.append(f'<path class="beyond a{index % STYLES}" d="{_path(corners)}Z">{title}</path>')
        text = f"{arrow} spikes beyond this axis, {word} to {shown.text(limit)}"
        y = ys(edge) + (-12 if sign > 0 else -6)
        out.append(f'<text class="cut" x="{_n(xs.end)}" y="{_n(y)}" text-anchor="end">{escape(text)}</text>')
    return out


def _hits(curve: Curve) -> list[tuple[float, float, float | None, float | None]]:
    """Some twenty points that tell their numbers when pointed at."""
    if not curve.x:
        return []
    step = max(1, math.ceil(len(curve.x) / 20))
    chosen = sorted({*range(0, len(curve.x), step), len(curve.x) - 1})
    return [
        (curve.x[i], curve.mean[i], curve.low[i] if curve.low else None, curve.high[i] if curve.high else None)
        for i in chosen
    ]


def _end_labels(
    curves: Mapping[str, Curve], drawn: Sequence[tuple[int, str]], ys: Scale, x: float, top: float, bottom: float
) -> list[str]:
    """Names at the line ends, pushed apart where they would touch."""
    gap = 17.0
    wanted = sorted((ys(min(max(_last(curves[name]), ys.low), ys.high)), index, name) for index, name in drawn)
    places: list[float] = []
    for y, _, _ in wanted:
        places.append(max(y, places[-1] + gap) if places else y)
    over = max(0.0, places[-1] - bottom) if places else 0.0
    for i in range(len(places) - 1, -1, -1):
        limit = places[i + 1] - gap if i + 1 < len(places) else places[i] - over
        places[i] = max(top, min(places[i], limit))
    out = []
    for (_, index, name), y in zip(wanted, places, strict=True):
        text = name if len(name) <= 18 else name[:17] + "\u2026"
        out.append(
            f'<text class="end a{index % STYLES}" x="{_n(x)}" y="{_n(y)}" dy=".32em">{escape(text)}'
            f"<title>{escape(name)}</title></text>"
        )
    return out


def _last(curve: Curve) -> float:
    return curve.mean[-1] if curve.mean else next(iter(curve.seeds.values()))[1][-1]


def difference_scale(pairs: Sequence[PairedDifference], width: int) -> tuple[Scale, list[float]]:
    """A common scale, zero included, for the intervals of all arms."""
    values = [0.0]
    for d in pairs:
        values += [*d.differences, d.value, *(v for v in (d.low, d.high) if v is not None)]
    ticks = nice_ticks(min(values), max(values), 4)
    return Scale(ticks[0], ticks[-1], 14, width - 14), ticks


def interval_plot(d: PairedDifference | None, index: int, scale: Scale, ticks: Sequence[float], shown: Metric) -> str:
    """One row: zero line, interval, mean, every seed's own difference."""
    width, height, middle = scale.end + 14, 44, 22
    parts = [f'<svg class="interval a{index % STYLES}" viewBox="0 0 {_n(width)} {height}" role="img"']
    parts.append(' aria-label="paired differences and their interval">')
    for tick in ticks:
        kind = "zero" if tick == 0 else "grid"
        parts.append(f'<line class="{kind}" x1="{_n(scale(tick))}" x2="{_n(scale(tick))}" y1="0" y2="{height}"/>')
    if d is not None:
        for value in d.differences:
            text = f"one seed: {shown.change(value)} {shown.change_unit}".rstrip()
            place = f'cx="{_n(scale(value))}" cy="{middle + 9}"'
            parts.append(f'<circle class="pair" {place} r="3"><title>{escape(text)}</title></circle>')
        if d.low is not None and d.high is not None:
            ends = f'x1="{_n(scale(d.low))}" x2="{_n(scale(d.high))}"'
            text = f"{100 * d.level:g} % interval: {shown.change(d.low)} to {shown.change(d.high)}"
            parts.append(f'<line class="whisker" {ends} y1="{middle - 4}" y2="{middle - 4}">')
            parts.append(f"<title>{escape(text)}</title></line>")
        parts.append(f'<circle class="dot" cx="{_n(scale(d.value))}" cy="{middle - 4}" r="5"/>')
    return "".join(parts) + "</svg>"


def interval_axis(scale: Scale, ticks: Sequence[float], shown: Metric) -> str:
    """The scale under the rows of `interval_plot`."""
    parts = [f'<svg class="interval" viewBox="0 0 {_n(scale.end + 14)} 20" aria-hidden="true">']
    for tick, text in zip(ticks, tick_texts(ticks, shown), strict=True):
        signed = ("+" if tick > 0 else "") + text.removesuffix(" %")
        parts.append(f'<text class="tick" x="{_n(scale(tick))}" y="13" text-anchor="middle">{signed}</text>')
    return "".join(parts) + "</svg>"
