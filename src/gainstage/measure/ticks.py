"""Axes of a chart: round ticks, their labels, limits that one spike cannot blow up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gainstage.measure.curves.learning import Curve
from gainstage.measure.metrics import Metric, number

SUPERSCRIPT = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")


@dataclass(frozen=True)
class Scale:
    """Data to pixels along one direction, linear or by powers of two."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = (math.log2(self.low), math.log2(self.high)) if self.log else (self.low, self.high)
        return self.start + ((math.log2(value) if self.log else value) - low) / (high - low) * (self.end - self.start)


@dataclass(frozen=True)
class Limits:
    """What a vertical axis shows; `below` and `above`: how far the runs go on a side that is cut off, else None."""

    low: float
    high: float
    below: float | None = None
    above: float | None = None


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that cover [low, high] (1, 2, 2.5 or 5 times a power of ten apart)."""
    if not high > low:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, low + pad
    raw = (high - low) / max(count, 1)
    exponent = math.floor(math.log10(raw))
    step = next(10.0**exponent * m for m in (1, 2, 2.5, 5, 10) if 10.0**exponent * m >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, max(0, 2 - exponent)) for index in range(first, last + 1)]


def tick_texts(ticks: Sequence[float], shown: Metric | None) -> list[str]:
    """Tick labels in one unit, with as many digits as tell them apart."""
    scale, suffix = _unit(max(abs(tick) for tick in ticks), shown)
    close = 1e-6 * (ticks[1] - ticks[0]) / scale
    digits = next((d for d in range(16) if all(abs(round(t / scale, d) - t / scale) <= close for t in ticks)), 16)
    rate = shown is not None and shown.rate
    return [number(t / scale, digits) + suffix if t or rate else "0" for t in ticks]


def _unit(largest: float, shown: Metric | None) -> tuple[float, str]:
    """What ticks are counted in: percent, thousands and the like, or a power of ten for tiny numbers."""
    if shown is not None and shown.rate:
        return 0.01, " %"
    if largest >= 9_999.5:
        power = min(int(math.log10(largest * 1.0005)) // 3, 6)
        return 1000.0**power, "_kMGTPE"[power]
    if 0 < largest < 1e-3:
        power = math.floor(math.log10(largest * 1.0005))
        return 10.0**power, "\u00b710" + str(power).translate(SUPERSCRIPT)
    return 1.0, ""


def limits(curves: Mapping[str, Curve], shown: Metric) -> Limits:
    """The range of all runs and bands, but for spikes.

    A spike goes beyond the middle nine tenths of all values, and the ends of every curve, by more than twice the
    width of these. Rates stay within 0 and 1.
    """
    runs = np.array([v for c in curves.values() for y in ([y for _, y in c.seeds.values()] or [c.mean]) for v in y])
    drawn = np.concatenate([runs, *([*c.mean, *c.low, *c.high] for c in curves.values())])
    ends = [v for c in curves.values() for line in (c.mean, c.low, c.high) if line for v in (line[0], line[-1])]
    ends += [v for c in curves.values() for _, y in c.seeds.values() for v in (y[0], y[-1])]
    core = np.array([*np.quantile(drawn, [0.05, 0.95]), *ends])
    inner, outer, width = float(core.min()), float(core.max()), float(np.ptp(core))
    low, high, below, above = float(drawn.min()), float(drawn.max()), None, None
    if width > 0 and low < inner - 2 * width:
        low, below = inner - 0.2 * width, float(runs.min())
    if width > 0 and high > outer + 2 * width:
        high, above = outer + 0.2 * width, float(runs.max())
    if shown.bounds:
        least, most = shown.bounds
        room = 0.05 if shown.rate else 0.1 * abs(high) or 1.0
        if high - low < 1e-12:  # a constant: some room around it, none where the number cannot be
            low, high = low - room, high + room
        low, high = max(least, low), min(most, high)
    return Limits(low, high, below, above)


def clipped(x: Sequence[float], y: Sequence[float], low: float, high: float) -> tuple[list[float], list[float]]:
    """A line kept within [low, high]: it runs along the edge where it is outside, and turns where it crosses."""
    out: list[tuple[float, float]] = []
    for index, (b, v) in enumerate(zip(x, y, strict=True)):
        if index:
            a, u = x[index - 1], y[index - 1]
            crossed = sorted((edge - u) / (v - u) for edge in (low, high) if (u - edge) * (v - edge) < 0)
            out += [(a + t * (b - a), min(max(u + t * (v - u), low), high)) for t in crossed]
        out.append((b, min(max(v, low), high)))
    return [a for a, _ in out], [v for _, v in out]
