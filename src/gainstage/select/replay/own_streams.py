"""Draws apart: every member of a group has its own minibatch, from its own copies of the environment or from all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gainstage.registry import RecipeError, component
from gainstage.types import Ctx, Index


@component("select")
@dataclass
class OwnStreams:
    """`plan.minibatch` rows for each of `members`, in blocks: the first block is the first member's, and so on.

    The first member's own copies are the first of as many equal blocks of copies, those in which it acts.

    Args:
        members: of the group; the rollout's copies must be a multiple of it.
        buffers: `own`: a member sees what it did itself; `shared`: rows of all, other rows for each.
    """

    members: int = 5
    buffers: Literal["own", "shared"] = "own"

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError(f"members must be at least 1, got {self.members}")

    def choose(self, store: Any, n: int, ctx: Ctx, inner: Callable[[int], Index] | None = None) -> Index:
        """Uniform inside each member's copies, or over all.

        Raises:
            RecipeError: copies are no equal blocks, or the store has holes.
        """
        if store.copies % self.members:
            raise RecipeError(
                f"select.own_streams: {store.copies} copies cannot be shared by {self.members} members; make "
                "env_steps.copies a multiple of members"
            )
        if store.holes:
            raise RecipeError(
                "select.own_streams: the environment spends steps on restarts of its own; use another one"
            )
        rows = n * self.members
        if self.buffers == "shared":
            copy = torch.randint(store.copies, (rows,))
        else:
            each = store.copies // self.members
            copy = torch.arange(self.members).repeat_interleave(n) * each + torch.randint(each, (rows,))
        return Index(copy, torch.randint(store.oldest, store.clock, (rows,)))
