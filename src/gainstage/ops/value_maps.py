"""Spaces in which values are learned: increasing maps with their inverses, all in float64.

Sources: logarithmic Q-learning (van Seijen et al., arXiv 1906.00572), orchestrated value mapping (Fatemi and Tavakoli,
arXiv 2203.07171).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SMALLEST = 1e-300
"""Below this a floor is lost in float64."""


@dataclass(frozen=True)
class ValueMap:
    """An increasing function of values at least `floor`; a subclass says which. None: every value has an image."""

    @property
    def floor(self) -> float | None:
        return None

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def check(self, high: float, points: int = 257) -> None:
        """Whether it rises and comes back on `[floor, high]` (from 0 where there is no floor).

        Raises:
            ValueError: it does not, or is not finite there.
        """
        low = self.floor or 0.0
        x = torch.linspace(low, high, points, dtype=torch.float64)
        y = self.forward(x)
        name = type(self).__name__
        if not bool(torch.isfinite(y).all() and (y.diff() > 0).all()):
            raise ValueError(f"map {name}: not finite and strictly increasing on [{low:g}, {high:g}]")
        back = (self.inverse(y) - x).abs()
        if not bool((back <= 1e-6 * x.abs().clamp(min=1.0)).all()):
            raise ValueError(f"map {name}: its inverse does not bring values on [{low:g}, {high:g}] back")


@dataclass(frozen=True)
class Identity(ValueMap):
    """`f(x) = x`."""

    def forward(self, x: Tensor) -> Tensor:
        return x.double()

    def inverse(self, y: Tensor) -> Tensor:
        return y.double()


@dataclass(frozen=True)
class Log(ValueMap):
    """`f(x) = c log x + d` for x of at least eps.

    Args:
        c: scale, positive.
        d: offset; `exp(-d / c)` is the value that an output of 0 stands for.
        eps: least value that can be told, positive.
    """

    c: float = 0.5
    d: float = 0.0
    eps: float = 0.01687

    def __post_init__(self) -> None:
        _check(self.c, self.eps)

    @property
    def floor(self) -> float:
        return self.eps

    def forward(self, x: Tensor) -> Tensor:
        return self.c * x.double().log() + self.d

    def inverse(self, y: Tensor) -> Tensor:
        return ((y.double() - self.d) / self.c).exp()


@dataclass(frozen=True)
class LogLin(Log):
    """`c log x + d` up to `x0 = exp(-d / c)`, from there the line `c exp(d / c) x - c`: equal value and slope there."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.double()
        small = x <= math.exp(-self.d / self.c)
        log = super().forward(torch.where(small, x, torch.ones_like(x)))
        return torch.where(small, log, self.c * math.exp(self.d / self.c) * x - self.c)

    def inverse(self, y: Tensor) -> Tensor:
        y = y.double()
        log = super().inverse(y.clamp(max=0.0))
        return torch.where(y <= 0, log, (y + self.c) * math.exp(-self.d / self.c) / self.c)


@dataclass(frozen=True)
class OffsetLog(ValueMap):
    """`f(x) = c log(x + offset) + d` with `d = -c log(start + offset)`, so that 0 stands for the value `start`.

    Args:
        c: scale, positive.
        offset: keeps 0 inside, positive: gamma to the number of steps that are to be told apart.
        start: value of an output of 0.
    """

    c: float = 1.0
    offset: float = 1e-9
    start: float = 0.0

    def __post_init__(self) -> None:
        _check(self.c, self.offset)
        if self.start < 0:
            raise ValueError(f"start must be at least 0, got {self.start}")

    @property
    def d(self) -> float:
        return -self.c * math.log(self.start + self.offset)

    @property
    def floor(self) -> float:
        return 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.c * (x.double() + self.offset).log() + self.d

    def inverse(self, y: Tensor) -> Tensor:
        return ((y.double() - self.d) / self.c).exp() - self.offset


def _check(c: float, eps: float) -> None:
    if not c > 0:
        raise ValueError(f"c must be positive, got {c}")
    if not eps >= SMALLEST:
        raise ValueError(
            f"eps must be at least {SMALLEST:g} to be told from 0, got {eps:g}: fewer steps, or more discount"
        )


MAPS: dict[str, Callable[..., ValueMap]] = {
    "identity": Identity, "log": Log, "loglin": LogLin, "offset_log": OffsetLog
}  # fmt: skip
"""Maps by name. A plugin adds its own: `MAPS["mine"] = Mine`."""


def value_map(spec: str | Mapping[str, Any]) -> ValueMap:
    """A map by its name, or by one `name: settings` pair.

    Raises:
        ValueError: no such map or setting.
    """
    name, settings = (spec, {}) if isinstance(spec, str) else next(iter(spec.items()))
    if name not in MAPS:
        raise ValueError(f"maps: no map {name!r}; known: {', '.join(sorted(MAPS))}")
    try:
        return MAPS[name](**(settings or {}))
    except TypeError as error:
        raise ValueError(f"maps.{name}: {str(error).split('__init__() ')[-1]}") from None


def steps_floor(gamma: float, steps: int) -> float:
    """`gamma ^ steps`: a reward of 1 that is so many steps away.

    Raises:
        ValueError: gamma outside (0, 1), or the number is lost in float64.
    """
    if not 0 < gamma < 1:
        raise ValueError(f"gamma must be > 0 and < 1, got {gamma}")
    if (eps := gamma**steps) < SMALLEST:
        raise ValueError(f"gamma {gamma} to the power of {steps} steps is {eps:g}, lost in float64; take fewer steps")
    return eps


def forward(maps: Sequence[ValueMap], x: Tensor) -> Tensor:
    """Each channel's values in its own space: `"L *"` to `"L *"`."""
    return torch.stack([f.forward(row) for f, row in zip(maps, x, strict=True)])


def inverse(maps: Sequence[ValueMap], y: Tensor) -> Tensor:
    """Each channel's outputs as values: `"L *"` to `"L *"`."""
    return torch.stack([f.inverse(row) for f, row in zip(maps, y, strict=True)])
