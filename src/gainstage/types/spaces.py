"""What an environment shows and what it takes: spaces of batched observations and actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """A named part of an observation that was laid out end to end: `obs[..., start:stop]`, in its own shape."""

    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Box:
    """Numbers within bounds. A dictionary of arrays is laid out end to end as one vector; `pieces` says which is where.

    Args:
        low, high: bounds, both of the shape of one value; infinite where there is none.
        dtype: `torch.float32`, or `torch.uint8` for pictures (channels last, as Gymnasium has them).
        pieces: name -> place in the vector, for what was a dictionary.
    """

    low: Tensor
    high: Tensor
    dtype: torch.dtype = torch.float32
    pieces: Mapping[str, Piece] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.low.shape != self.high.shape:
            raise ValueError(f"Box: low has shape {tuple(self.low.shape)}, high {tuple(self.high.shape)}")
        if bool((self.low > self.high).any()):
            raise ValueError("Box: low lies above high somewhere")

    @classmethod
    def of(cls, low: float, high: float, shape: tuple[int, ...], **more: Any) -> Box:
        """Equal bounds everywhere."""
        return cls(torch.full(shape, float(low)), torch.full(shape, float(high)), **more)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.low.shape)

    @property
    def bounded(self) -> bool:
        """All bounds are finite."""
        return bool(torch.isfinite(self.low).all() and torch.isfinite(self.high).all())


@dataclass(frozen=True)
class Discrete:
    """One of `n` choices, `Int64 "B"` from 0 (an adapter adds an environment's own start)."""

    n: int

    shape = ()
    dtype = torch.int64

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"Discrete: n must be at least 1, got {self.n}")


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once, `Int64 "B K"`, the k-th from `nvec[k]`."""

    nvec: tuple[int, ...]

    dtype = torch.int64

    def __post_init__(self) -> None:
        if not self.nvec or min(self.nvec) < 1:
            raise ValueError(f"MultiDiscrete: every entry must be at least 1, got {self.nvec}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)


@dataclass(frozen=True)
class MultiBinary:
    """`n` switches, `Int64 "B n"` of 0 and 1."""

    n: int

    dtype = torch.int64

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"MultiBinary: n must be at least 1, got {self.n}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n,)


Space = Box | Discrete | MultiDiscrete | MultiBinary


def same_space(a: Space, b: Space) -> bool:
    """Whether two spaces hold the same values."""
    if isinstance(a, Box) and isinstance(b, Box):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.low, b.low) and torch.equal(a.high, b.high)
    return type(a) is type(b) and a == b


def contains(space: Space, value: Tensor) -> bool:
    """Whether a batch of values lies in a space: shape, kind of number, bounds."""
    if tuple(value.shape[1:]) != space.shape:
        return False
    if isinstance(space, Box):
        inside = (value >= space.low.to(value.device)) & (value <= space.high.to(value.device))
        return value.dtype == space.dtype and bool(inside.all())
    if value.dtype != torch.int64:
        return False
    return bool(((value >= 0) & (value < choices(space).to(value.device))).all())


def choices(space: Discrete | MultiDiscrete | MultiBinary) -> Tensor:
    """From how many values each entry is chosen, `Int64 "*"` of the shape of one value."""
    if isinstance(space, MultiDiscrete):
        return torch.tensor(space.nvec)
    return torch.full(space.shape, 2) if isinstance(space, MultiBinary) else torch.tensor(space.n)


def random_choices(
    space: Discrete | MultiDiscrete | MultiBinary, count: int, generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:  # fmt: skip
    """`count` values of a space, each as likely."""
    if isinstance(space, MultiDiscrete):
        drawn = [torch.randint(n, (count,), generator=generator, device=device) for n in space.nvec]
        return torch.stack(drawn, 1)
    top = 2 if isinstance(space, MultiBinary) else space.n
    return torch.randint(top, (count, *space.shape), generator=generator, device=device)


def describe_space(space: Space) -> str:
    """A space as a person says it: `Box(17)`, `Discrete(2)`."""
    if isinstance(space, Box):
        kind = ", uint8" if space.dtype == torch.uint8 else ""
        return f"Box({' x '.join(map(str, space.shape)) or 'a number'}{kind})"
    if isinstance(space, MultiDiscrete):
        return f"MultiDiscrete({', '.join(map(str, space.nvec))})"
    return f"{type(space).__name__}({space.n})"
