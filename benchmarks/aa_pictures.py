"""The pictures and tables of docs/explanation/fair-comparison.md, from the result of `benchmarks/aa.py --out FILE`.

./gs python benchmarks/aa_pictures.py docs/explanation/img/aa.json docs/explanation/img
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 58, 190, 44, 46
INK, PALE, GRID = "#1f2430", "#6b7280", "#e5e7eb"
COLOURS = {"good": "#0f766e", "bad": "#c2410c", "third": "#1d4ed8"}


@dataclass(frozen=True)
class Line:
    """One line: its name, colour and points."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False


@dataclass(frozen=True)
class Frame:
    """Axes: `places` maps x values to positions 0..1, so that 3, 5, 10 may stand evenly."""

    title: str
    x_name: str
    places: dict[float, float]
    ticks: Sequence[float]
    top: float
    bottom: float = 0.0
    unit: str = " %"

    def x(self, value: float) -> float:
        return LEFT + 16 + self.places[value] * (WIDTH - LEFT - RIGHT - 32)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.bottom) / (self.top - self.bottom) * (HEIGHT - TOP - BOTTOM)


def picture(frame: Frame, lines: Sequence[Line], band: tuple[float, float, str] | None = None, more: str = "") -> str:
    """A chart with named lines. `band`: low, high and what it means."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="{escape(frame.title)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        text(LEFT - 40, 24, frame.title, INK, 14, "start", "600"),
    ]
    right = WIDTH - RIGHT
    if band:
        low, high, meaning = band
        parts.append(
            f'<rect x="{LEFT}" y="{frame.y(high):.1f}" width="{right - LEFT}" '
            f'height="{frame.y(low) - frame.y(high):.1f}" fill="#ccfbf1"/>'
        )
        parts.append(text(LEFT + 6, frame.y(low) + 13, meaning, PALE, 10, "start"))
    for tick in frame.ticks:
        parts.append(
            f'<line x1="{LEFT}" x2="{right}" y1="{frame.y(tick):.1f}" y2="{frame.y(tick):.1f}" stroke="{GRID}"/>'
        )
        parts.append(text(LEFT - 8, frame.y(tick) + 4, f"{tick:g}{frame.unit}", PALE, 11, "end"))
    for value in frame.places:
        parts.append(text(frame.x(value), HEIGHT - BOTTOM + 18, f"{value:g}", PALE, 11, "middle"))
    parts.append(text(right, HEIGHT - 10, frame.x_name, PALE, 11, "end"))
    parts.append(more)
    parts += [drawn(frame, line) for line in lines]
    parts += end_labels(frame, lines)
    return "".join(parts) + "</svg>\n"


def drawn(frame: Frame, line: Line) -> str:
    points = " ".join(f"{frame.x(a):.1f},{frame.y(b):.1f}" for a, b in zip(line.x, line.y, strict=True))
    dash = ' stroke-dasharray="5 4"' if line.dashed else ""
    out = f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}/>'
    if len(line.x) <= 6 and not line.dashed:
        dots = zip(line.x, line.y, strict=True)
        out += "".join(
            f'<circle cx="{frame.x(a):.1f}" cy="{frame.y(b):.1f}" r="3.5" fill="{line.colour}"/>' for a, b in dots
        )
    return out


def end_labels(frame: Frame, lines: Sequence[Line]) -> list[str]:
    """Names at the ends of the lines, pushed apart where they would overlap."""
    out, last = [], -math.inf
    for line in sorted(lines, key=lambda line: frame.y(line.y[-1])):
        last = max(frame.y(line.y[-1]), last + 15)
        out.append(
            text(WIDTH - RIGHT + 8, last + 4, f"{line.name} {line.y[-1]:.3g}{frame.unit}", line.colour, 11, "start")
        )
    return out


def text(x: float, y: float, words: str, colour: str, size: int, anchor: str, weight: str = "400") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )


def rows_of(result: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [row for row in result["rows"] if row["row"] == name]


def coverage(result: dict[str, Any]) -> str:
    """How often the interval holds the truth, by number of seeds."""
    rows = rows_of(result, "A/A, two arms")
    seeds = [row["seeds"] for row in rows]
    frame = Frame("How often a 95 % interval holds the truth", "seeds of each arm", even(seeds),
                  (60, 70, 80, 90, 100), 100, 60)  # fmt: skip
    kinds = (("paired t (the verdict)", "coverage", "good"),
             ("percentile bootstrap", "coverage of the bootstrap", "bad"))  # fmt: skip
    lines = [Line(name, COLOURS[colour], seeds, [100 * row[key] for row in rows]) for name, key, colour in kinds]
    return picture(frame, lines, (93, 97, "shaded: 93 to 97 %"))


def width(result: dict[str, Any]) -> str:
    """How wide the interval is, with and without pairing."""
    rows = rows_of(result, "A/A, two arms")
    seeds = [row["seeds"] for row in rows]
    top = 5 * (int(100 * max(row["width without pairing"] for row in rows)) // 5 + 1)
    frame = Frame("Width of the 95 % interval of the difference", "seeds of each arm", even(seeds),
                  range(0, top + 1, 5), top, unit=" points")  # fmt: skip
    kinds = (("not paired", "width without pairing", "third"), ("paired", "width", "good"),
             ("bootstrap", "width of the bootstrap", "bad"))  # fmt: skip
    return picture(frame, [Line(n, COLOURS[c], seeds, [100 * row[k] for row in rows]) for n, k, c in kinds])


def p_values(result: dict[str, Any]) -> str:
    """p values of comparisons of a method with itself: flat, if the test is honest."""
    row = next(row for row in rows_of(result, "A/A, two arms") if row["seeds"] == 5)
    shares = [100 * share for share in row["p"]]
    frame = Frame("p values of 2,000 comparisons of a method with itself, 5 seeds", "p value",
                  {0.0: 0.0, 0.25: 0.25, 0.5: 0.5, 0.75: 0.75, 1.0: 1.0}, (0, 2, 4, 6, 8), 8)  # fmt: skip
    step = (frame.x(1.0) - frame.x(0.0)) / len(shares)
    bars = "".join(
        f'<rect x="{frame.x(0.0) + i * step + 1:.1f}" y="{frame.y(share):.1f}" width="{step - 2:.1f}" '
        f'height="{frame.y(0) - frame.y(share):.1f}" fill="{COLOURS["bad" if i == 0 else "good"]}"/>'
        for i, share in enumerate(shares)
    )
    return picture(frame, [Line("expected", INK, (0.0, 1.0), (5.0, 5.0), dashed=True)], more=bars)


def stopping(result: dict[str, Any]) -> str:
    """False claims of those who look after every seed and stop when something shows."""
    row = next(row for row in result["looks"] if row["row"] == "A/A, two arms")
    seeds = row["seeds"]
    ends = {float(n): (n - seeds[0]) / (seeds[-1] - seeds[0]) for n in seeds}
    shown = {n: place for n, place in ends.items() if n in (3, 5, 10, 15, 20)}
    frame = Frame("False claims when one looks after every seed", "seeds so far", shown, range(0, 26, 5), 25)
    whole = Frame(**{**vars(frame), "places": ends})
    lines = [Line("fixed t interval", COLOURS["bad"], seeds, [100 * v for v in row["claims of the fixed interval"]]),
             Line("--until-decided", COLOURS["good"], seeds, [100 * v for v in row["claims"]]),
             Line("allowed", INK, (seeds[0], seeds[-1]), (5, 5), dashed=True)]  # fmt: skip
    return picture(frame, [], more="".join(drawn(whole, line) for line in lines) + "".join(end_labels(whole, lines)))


def tables(result: dict[str, Any]) -> str:
    """Both tables as Markdown."""
    out = ["| | seeds | comparisons | coverage | of bootstrap | not paired | gain | claim | power said |",
           "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for row in result["rows"]:
        shares = [row["coverage"], row["coverage of the bootstrap"], row["coverage without pairing"], row["gain"],
                  row["claim"], row["power"]]  # fmt: skip
        texts = ["" if share is None else f"{100 * share:.1f} %" for share in shares]
        cells = [row["row"], str(row["seeds"]), f"{row['comparisons']:,}", *texts]
        out.append("| " + " | ".join(cells) + " |")
    out += ["", "| | claims, fixed interval | claims, `--until-decided` | coverage | mean seeds |"]
    out += ["|---|---:|---:|---:|---:|"]
    for row in result["looks"]:
        shares = [row["claims of the fixed interval"][-1], row["claims"][-1], row["coverage"]]
        cells = [row["row"], *(f"{100 * s:.1f} %" for s in shares), f"{row['mean seeds']:.1f}"]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def even(values: Sequence[float]) -> dict[float, float]:
    return {float(v): i / (len(values) - 1) for i, v in enumerate(values)}


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    result = json.loads(source.read_text())
    for name, made in (("coverage", coverage), ("width", width), ("p-values", p_values), ("stopping", stopping)):
        (folder / f"{name}.svg").write_text(made(result))
    print(tables(result))


if __name__ == "__main__":
    main()
