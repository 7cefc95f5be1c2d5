"""The store of on-policy training: one iteration's experience, handed out once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gainstage.registry import component
from gainstage.types import Batch, Trajectory, collate


@component("store")
@dataclass
class OnPolicy:
    """Keeps what was collected since the last update; `rounds` drains it as one batch."""

    draws = False
    """A round is the whole batch, to be split into epochs of minibatches."""

    def __post_init__(self) -> None:
        self.held: Sequence[Trajectory] | Batch = ()

    def __len__(self) -> int:
        return len(self.held)

    def add(self, experience: Sequence[Trajectory] | Batch, ctx: Any) -> None:
        self.held = experience

    def rounds(self, plan: Any, ctx: Any) -> Iterator[Batch]:
        held, self.held = self.held, ()
        if len(held):
            yield held if isinstance(held, Batch) else collate(held, ctx.device)

    def column(self, name: str) -> torch.Tensor:
        held = self.held if isinstance(self.held, Batch) else collate(self.held)
        return held[name]
