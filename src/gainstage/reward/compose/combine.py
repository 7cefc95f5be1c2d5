"""Total rewards from parts: weighted sum, gates, replacement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

How = Literal["sum", "gate", "replace"]


@dataclass(frozen=True)
class Part:
    """What one reward entry says of every row. A value None does not apply to its row.

    `how`: `sum` adds weight x value; `gate` does too, and where its value is 0 or below every `sum` part of
    that row counts nothing; `replace` stands alone where it applies.
    """

    name: str
    values: Sequence[float | None]
    weight: float = 1.0
    how: How = "sum"

    def __post_init__(self) -> None:
        if self.how not in ("sum", "gate", "replace"):
            raise ValueError(f"reward {self.name!r}: combine must be sum, gate or replace, got {self.how!r}")
        if not math.isfinite(self.weight):
            raise ValueError(f"reward {self.name!r}: weight must be a finite number, got {self.weight}")


@dataclass(frozen=True)
class Totals:
    """`values`: a total for each row, None where no part applies or one failed; `failed`: row -> part not finite."""

    values: list[float | None]
    failed: dict[int, str] = field(default_factory=dict)


def combine(parts: Sequence[Part]) -> Totals:
    """Sum of weight x value over the parts that apply, whatever their order.

    A part that is None adds nothing. A part of weight 0 is a metric: it makes no row apply, unless every
    part has weight 0 (the reward is then shaped later). NaN or infinity fails the row, named.

    Raises:
        ValueError: no parts, or parts with different numbers of rows.
    """
    if not parts:
        raise ValueError("reward: there is no part to combine")
    if len({len(part.values) for part in parts}) > 1:
        raise ValueError("reward parts differ in rows: " + ", ".join(f"{p.name} {len(p.values)}" for p in parts))
    totals: list[float | None] = []
    failed: dict[int, str] = {}
    metrics_only = all(part.weight == 0 for part in parts)
    for row in range(len(parts[0].values)):
        present = [(part, value) for part in parts if (value := part.values[row]) is not None]
        if wrong := next((part.name for part, value in present if not math.isfinite(value)), None):
            failed[row] = wrong
            totals.append(None)
            continue
        totals.append(_total([(p, v) for p, v in present if p.weight or p.how == "gate" or metrics_only]))
    return Totals(totals, failed)


def _total(present: Sequence[tuple[Part, float]]) -> float | None:
    """One row: replacements alone, else gates and, while all of them are open, sums."""
    alone = [part.weight * value for part, value in present if part.how == "replace"]
    if alone:
        return math.fsum(alone)
    closed = any(part.how == "gate" and value <= 0 for part, value in present)
    if all(part.how == "gate" and not part.weight for part, _ in present) and not closed:
        return None
    return math.fsum(part.weight * value for part, value in present if part.how == "gate" or not closed)
