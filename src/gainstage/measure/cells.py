"""What the tables of a report are made of: columns, rows, and numbers as texts."""

from __future__ import annotations

from dataclasses import dataclass, field

from gainstage.measure.intervals import Estimate
from gainstage.measure.metrics import NONE, Metric


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


BEFORE = "before training"


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


def percent(level: float) -> str:
    return f"{100 * level:g} %"


def minus(baseline: str) -> str:
    return f"\u2212 {baseline}"
