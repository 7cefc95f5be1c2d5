"""Values that change over a run: pure functions of the share that is done, so resuming needs no state."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["constant", "linear", "cosine", "sigmoid", "power", "exponential", "steps"]


@dataclass(frozen=True)
class Schedule:
    """`Schedule("linear", 1.0, 0.1)(0.5) == 0.55`."""

    kind: Kind = "constant"
    """Shape of the way from `start` to `end`. `constant` stays at `start`."""
    start: float = 1.0
    """Value at fraction 0."""
    end: float = 0.0
    """Value at fraction 1. `exponential` needs both ends of one sign, not 0."""
    values: tuple[float, ...] = ()
    """`steps`: the values of equally long parts of the run."""
    power: float = 2.0
    """`power`: exponent of the fraction; above 1 starts slowly, below 1 starts fast."""
    steepness: float = 10.0
    """`sigmoid`: higher makes the change in the middle more sudden."""
    warmup: float = 0.0
    """Share of the run that rises linearly from 0 to `start`; the shape fills the rest."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"schedule kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if self.kind == "steps" and not self.values:
            raise ValueError("schedule kind 'steps' needs values")
        if self.kind == "exponential" and self.start * self.end <= 0:
            raise ValueError(
                f"exponential schedule: start and end must have one sign and not be 0, got {self.start}, {self.end}"
            )
        if not 0 <= self.warmup < 1:
            raise ValueError(f"schedule warmup must lie in [0, 1), got {self.warmup}")

    def __call__(self, fraction: float) -> float:
        """The value at `fraction` of the run; fractions outside [0, 1] count as the nearer end."""
        fraction = min(max(fraction, 0.0), 1.0)
        if fraction < self.warmup:
            return self.start * fraction / self.warmup
        return _SHAPES[self.kind](self, (fraction - self.warmup) / (1 - self.warmup))


def _mix(schedule: Schedule, share: float) -> float:
    return schedule.start + (schedule.end - schedule.start) * share


def _sigmoid(schedule: Schedule, x: float) -> float:
    def curve(y: float) -> float:
        return 1 / (1 + math.exp(-schedule.steepness * (y - 0.5)))

    return _mix(schedule, (curve(x) - curve(0)) / (curve(1) - curve(0)))


def _steps(schedule: Schedule, x: float) -> float:
    values: Sequence[float] = schedule.values
    return values[min(int(x * len(values)), len(values) - 1)]


_SHAPES: dict[str, Callable[[Schedule, float], float]] = {
    "constant": lambda s, x: s.start,
    "linear": _mix,
    "cosine": lambda s, x: _mix(s, (1 - math.cos(math.pi * x)) / 2),
    "sigmoid": _sigmoid,
    "power": lambda s, x: _mix(s, x**s.power),
    "exponential": lambda s, x: s.start * (s.end / s.start) ** x,
    "steps": _steps,
}
