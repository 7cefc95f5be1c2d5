"""Transforms of one entry's own values, before its weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from gainstage.ops.filters import forward_filter
from gainstage.ops.moments import RunningMoments
from gainstage.registry import component
from gainstage.types import Batch, Ctx

Values = TypeVar("Values", Sequence[float | None], Tensor)


def _apply(values: Values, transform: Callable[[Tensor], Tensor]) -> Values:
    """`transform` on a tensor in which NaN means that no value applies; a list comes back as a list."""
    if isinstance(values, Tensor):
        return transform(values)
    numbers = torch.tensor([math.nan if v is None else float(v) for v in values], dtype=torch.float64)
    return [None if v is None else x for v, x in zip(values, transform(numbers).tolist(), strict=True)]


@component("then")
def clip_reward(values: Values, *, low: float = -10.0, high: float = 10.0) -> Values:
    """Rewards cut to [low, high]; a NaN stays.

    Raises:
        ValueError: low above high.
    """
    if low > high:
        raise ValueError(f"clip_reward: low must not be above high, got {low} and {high}")
    return _apply(values, lambda x: x.clamp(low, high))


@component("then")
def affine(values: Values, *, scale: float = 1.0, shift: float = 0.0) -> Values:
    """`scale r + shift`: scale 2 and shift -1 turn rewards of 0 and 1 into -1 and 1, so that failures push down."""
    return _apply(values, lambda x: scale * x + shift)


@component("then")
def power(values: Values, *, exponent: float = 2.0) -> Values:
    """`sign(r) |r|^exponent`: above 1 favours the best answers, below 1 evens them out."""
    if exponent <= 0:
        raise ValueError(f"power.exponent must be positive, got {exponent}")
    return _apply(values, lambda x: x.sign() * x.abs() ** exponent)


@component("then")
@dataclass
class Scale:
    """Divides by the running std of this entry's own values (and subtracts their running mean, if asked).

    The values of a call are taken in before they are scaled. NaN takes no part and stays.
    """

    center: bool = False
    """Subtract the running mean; it shifts every reward alike, which a group baseline removes again."""
    std: bool = True
    """Divide by the running std."""
    kind: Literal["cumulative", "ema", "window"] = "cumulative"
    """`cumulative` settles; `ema` and `window` follow rewards whose size drifts."""
    decay: float = 0.99
    """`ema`: higher forgets more slowly."""
    window: int = 100
    """`window`: number of calls that count."""
    floor: float = 1e-4
    """Least std, in units of the reward."""
    clip: float = math.inf
    """Largest size of a scaled value."""

    def __post_init__(self) -> None:
        if self.floor <= 0 or self.clip <= 0:
            raise ValueError(f"scale: floor and clip must be positive, got {self.floor} and {self.clip}")
        self.moments = RunningMoments((), self.kind, self.decay, self.window)

    def __call__(self, values: Values, mask: Tensor | None = None) -> Values:
        return _apply(values, lambda x: self._scale(x, mask))

    def _scale(self, x: Tensor, mask: Tensor | None) -> Tensor:
        present = ~torch.isnan(x) if mask is None else mask.bool() & ~torch.isnan(x)
        self.moments.update(x, present)
        mean = float(self.moments.mean) if self.center else 0.0
        std = max(float(self.moments.std), self.floor) if self.std else 1.0
        return ((x - mean) / std).clamp(-self.clip, self.clip)

    def state_dict(self) -> dict[str, Any]:
        return self.moments.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments.load_state_dict(state)


@component("reward")
@dataclass
class ReturnScale:
    """Divides the rewards of an environment by the running std of its discounted return, and cuts them.

    Each copy carries its own discounted sum of rewards, which begins anew with every episode; the std is that of all
    these sums so far, the newest included. So values stay near 1 whatever a task pays. Rewards are replaced where they
    are learned from; what is reported, and evaluation, stay as the task pays (Engstrom et al., arXiv 2005.12729).
    """

    gamma: float = 0.99
    """Discount of the sum; that of `gae`."""
    clip: float = 10.0
    """Largest size of a scaled reward."""
    eps: float = 1e-8
    """Added to the variance."""

    level = "step"
    combine = "replace"
    requires = ("simulator",)
    needs = ("rewards", "terminated", "cut", "mask")

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie in [0, 1], got {self.gamma}")
        if not (self.clip > 0 and self.eps > 0):
            raise ValueError(f"clip and eps must be positive, got {self.clip} and {self.eps}")
        self.moments = RunningMoments(())
        self.running: Tensor | None = None

    def observe(self, fresh: Batch, ctx: Ctx) -> None:
        """Take in the fragment that was just collected: one row a copy, in the order of the iteration before."""
        real, ends = fresh["mask"].bool(), fresh["terminated"] | fresh["cut"]
        sums, self.running = forward_filter(fresh["rewards"].double(), self.running, self.gamma, real, ends)
        self.moments.update(sums, real)

    def shape(self, batch: Batch, ctx: Ctx) -> Tensor:
        """`Float "B T"`: rewards over the std of now."""
        std = (self.moments.std.square() + self.eps).sqrt()
        ctx.log("reward/scale", float(std))
        return (batch["rewards"].double() / std).clamp(-self.clip, self.clip).float()

    def state_dict(self) -> dict[str, Any]:
        return {"moments": self.moments.state_dict(), "running": self.running}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.moments.load_state_dict(state["moments"])
        self.running = state["running"]
