"""Columns that grow at one end and are forgotten at the other: what a checkpoint writes once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor


@dataclass(frozen=True)
class Segment:
    """A file that holds steps `start .. stop - 1` of a history, and how it is known again."""

    start: int
    stop: int
    file: Path
    size: int
    sha256: str


@dataclass(frozen=True)
class History:
    """Steps `start .. stop - 1` of columns `"T *"`, counted from the start of a run. A step that is recorded stays.

    Part of a component's state: what a checkpoint has written of it, later ones refer to.

    Args:
        step_bytes: size of one step of all columns.
        read: `read(a, b)` gives the steps `a .. b - 1` in order, in pieces: the first step of each, and its columns.
        written: files that hold steps of it. The component keeps this list for the next state that it gives; whoever
            has written files puts them in, and the component takes out those whose steps it had to change after all.
    """

    start: int
    stop: int
    step_bytes: int
    read: Callable[[int, int], Iterator[tuple[int, Mapping[str, Tensor]]]]
    written: list[Segment] = field(default_factory=list)
