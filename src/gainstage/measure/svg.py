"""Charts as inline SVG: learning curves with bands, intervals around zero. Colours and type come from the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from gainstage.measure.curves.learning import Curve
from gainstage.measure.intervals import PairedDifference
from gainstage.measure.metrics import Metric, describe, number, short

STYLES = 7


@dataclass(frozen=True)
class Scale:
    """Data to pixels along one direction."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that cover [low, high] (1, 2, 2.5 or 5 times a power of ten apart)."""
    if not high > low:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, low + pad
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def tick_texts(ticks: Sequence[float], shown: Metric | None) -> list[str]:
    """Tick labels with as many digits as tell them apart."""
    if shown is not None and shown.rate:
        step = 100 * (ticks[1] - ticks[0])
        return [f"{number(100 * tick, 0 if abs(step - round(step)) < 1e-9 else 1)} %" for tick in ticks]
    largest = max(abs(tick) for tick in ticks)
    if largest >= 9_999.5:
        return [short(tick) for tick in ticks]
    digits = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9))
    digits += abs((ticks[1] - ticks[0]) * 10**digits % 1) > 1e-6
    return [number(tick, digits) for tick in ticks]


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _path(x: Sequence[float], y: Sequence[float]) -> str:
    return "M" + "L".join(f"{_n(a)} {_n(b)}" for a, b in zip(x, y, strict=True))


def _range(curves: Mapping[str, Curve], shown: Metric) -> tuple[float, float]:
    values = [v for c in curves.values() for v in (*c.mean, *c.low, *c.high)]
    values += [v for c in curves.values() for _, y in c.seeds.values() for v in y]
    low, high = min(values), max(values)
    if shown.rate:
        low, high = max(0.0, low), min(1.0, high)
    return low, high


def line_chart(
    curves: Mapping[str, Curve], order: Sequence[str], metric: str, axis: str, *, width: int, height: int, names: bool
) -> str:
    """Learning curves of several arms: mean, band, every seed; `names` writes the arms at the line ends."""
    shown = describe(metric)
    right, left, top, bottom = (150 if names else 14), 58, 12, 40
    y_ticks = nice_ticks(*_range(curves, shown), 5 if height > 260 else 4)
    x_end = max(x[-1] for c in curves.values() for x, _ in c.seeds.values())
    x_ticks = [t for t in nice_ticks(0, x_end, 6 if width > 600 else 4) if t <= x_end * 1.001]
    xs, ys = Scale(0, x_end, left, width - right), Scale(y_ticks[0], y_ticks[-1], height - bottom, top)
    label = escape(f"{shown.label} against {describe('budget/' + axis).label}")
    parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">']
    parts += _frame(xs, ys, x_ticks, y_ticks, shown, axis, width, height, bottom)
    drawn = [(index, name) for index, name in enumerate(order) if name in curves]
    parts += [_arm(curves[name], index, name, xs, ys, metric, axis) for index, name in drawn]
    if names:
        parts += _end_labels(curves, drawn, ys, width - right + 8, top, height - bottom)
    return "".join(parts) + "</svg>"


def _frame(
    xs: Scale, ys: Scale, x_ticks: Sequence[float], y_ticks: Sequence[float], shown: Metric, axis: str, width: int,
    height: int, bottom: int,
) -> list[str]:  # fmt: skip
    parts = []
    for tick, text in zip(y_ticks, tick_texts(y_ticks, shown), strict=True):
        y = _n(ys(tick))
        parts.append(f'<line class="grid" x1="{_n(xs.start)}" x2="{_n(xs.end)}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{_n(xs.start - 8)}" y="{y}" dy=".32em" text-anchor="end">{text}</text>')
    base = height - bottom
    for tick, text in zip(x_ticks, tick_texts(x_ticks, None), strict=True):
        x = _n(xs(tick))
        parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{base}" y2="{base + 4}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{base + 17}" text-anchor="middle">{text}</text>')
    about = describe(f"budget/{axis}")
    name = about.label if about.unit.lower() in about.label else f"{about.label} ({about.unit})"
    parts.append(f'<line class="base" x1="{_n(xs.start)}" x2="{_n(xs.end)}" y1="{base}" y2="{base}"/>')
    parts.append(
        f'<text class="name" x="{_n(xs.end)}" y="{base + 33}" text-anchor="end">{escape(name)}'
        f"<title>{escape(about.meaning)}</title></text>"
    )
    return parts


def _arm(curve: Curve, index: int, name: str, xs: Scale, ys: Scale, metric: str, axis: str) -> str:
    shown, about = describe(metric), describe(f"budget/{axis}")
    parts = [f'<g class="arm a{index % STYLES} d{index % STYLES}"><title>{escape(name)}</title>']
    x = [xs(v) for v in curve.x]
    if curve.low:
        band = _path(x + x[::-1], [ys(v) for v in curve.high] + [ys(v) for v in reversed(curve.low)])
        parts.append(f'<path class="band" d="{band}Z"/>')
    for seed, (sx, sy) in curve.seeds.items():
        line = _path([xs(v) for v in sx], [ys(v) for v in sy])
        kind = "seed" if len(curve.seeds) > 1 else "seed only"
        parts.append(f'<path class="{kind}" d="{line}"><title>{escape(name)}, seed {escape(str(seed))}</title></path>')
    if len(curve.seeds) > 1 and x:
        parts.append(f'<path class="mean" d="{_path(x, [ys(v) for v in curve.mean])}"/>')
    for at, value, low, high in _hits(curve):
        inside = f" [{shown.text(low)}, {shown.text(high)}]" if low is not None else ""
        text = f"{name}: {shown.label} {shown.text(value)}{inside} at {short(at)} {about.label}"
        place = f'cx="{_n(xs(at))}" cy="{_n(ys(value))}"'
        parts.append(f'<circle class="hit" {place} r="8"><title>{escape(text)}</title></circle>')
    return "".join(parts) + "</g>"


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
    wanted = sorted((ys(_last(curves[name])), index, name) for index, name in drawn)
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
