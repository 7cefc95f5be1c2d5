"""Recorded episodes, handed out in stretches of several steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from gainstage.ops.noise import mix
from gainstage.ops.reward_to_go import reward_to_go
from gainstage.registry import component
from gainstage.store.transitions import Offline
from gainstage.types import Batch, column

column("returns_to_go", "step")  # undiscounted reward from this step on, as it was recorded
column("step", "step")  # number of the step in its episode


@component("store")
@dataclass
class Windows(Offline):
    """The task's recorded episodes in stretches of `length` steps, for policies that look back.

    A row starts at a drawn transition and ends after `length` steps or with its episode, where the mask ends too.

    Args:
        length: steps of a row.
    """

    length: int = 20

    writes: tuple[str, ...] = field(
        default=("obs", "actions", "rewards", "terminated", "cut", "mask", "returns_to_go", "step"),
        init=False, repr=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1:
            raise ValueError(f"length must be at least 1, got {self.length}")

    def start(self, ctx: Any) -> None:
        super().start(ctx)
        self.columns["returns_to_go"] = reward_to_go(self.columns["rewards"], self.lengths, 1.0).float()
        self.columns["step"] = torch.cat([torch.arange(length) for length in self.lengths.tolist()])

    def rounds(self, plan: Any, ctx: Any) -> Iterator[Batch]:
        """The iteration's draws of `plan.minibatch` rows."""
        generator = torch.Generator().manual_seed(mix("windows", ctx.seed, ctx.iteration))
        for _ in range(plan.updates):
            count = plan.minibatch or 64
            index = ctx.choose(count) if ctx.choose is not None else self.uniform(count, generator)
            yield self.segments(index, self.length, ctx)
