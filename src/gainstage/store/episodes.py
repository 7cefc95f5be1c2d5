"""Replay of whole episodes: the ring of transitions, and where the episode of each begins and ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gainstage.registry import RecipeError, component
from gainstage.store.replay import Replay
from gainstage.types import Batch, Index

OPEN = -1
"""In place of the last step of an episode that still runs."""


@component("store", "episodes")
@dataclass
class EpisodeReplay(Replay):
    """A replay that knows its episodes and hands out transitions of those alone that have ended.

    Longer episodes are drawn from more often, each transition alike. An episode that was left without an end (an
    environment that cannot be resumed exactly starts a new one) is cut off there, never continued by its successor.
    `least` counts transitions of episodes that have ended.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.first = self.last = torch.zeros(0, 0, dtype=torch.int64)
        self.begun = torch.zeros(0, dtype=torch.int64)
        self._ended: Tensor | None = None

    def start(self, ctx: Any) -> None:
        """Raises RecipeError: select has an entry that chooses transitions, which knows nothing of ends."""
        if ctx.choose is not None:
            raise RecipeError(
                "store.episodes draws by itself, from episodes that have ended; take out the select entry that chooses "
                "transitions (such as prioritized or own_streams), or use store: replay"
            )
        super().start(ctx)

    # -- writing ----------------------------------------------------------------------------------------------------

    def add(self, experience: Batch, ctx: Any) -> None:
        """Write a fragment of every copy, and note which episodes have ended in it."""
        before = self.clock
        super().add(experience, ctx)
        if not self.first.numel():
            self._open_books()
        if before > self.oldest:
            self._note_cuts(before)
        self._note((experience["terminated"] | experience["cut"]).T.cpu(), before)
        self._ended = None

    def _open_books(self) -> None:
        self.first = torch.full((self.length, self.copies), OPEN)
        self.last = torch.full((self.length, self.copies), OPEN)
        self.begun = torch.full((self.copies,), self.oldest)

    def _note_cuts(self, before: int) -> None:
        """Ends of running episodes that were cut off where the last fragment stopped, after it had been noted."""
        closed = (self.begun < before) & self._done(before - 1, before)[0]
        if bool(closed.any()):
            rows = self._rows(max(int(self.begun.min()), self.oldest), before)
            self.last[rows] = torch.where((self.last[rows] == OPEN) & closed, before - 1, self.last[rows])
            self.begun = torch.where(closed, before, self.begun)

    def _done(self, start: int, stop: int) -> Tensor:
        """After which of some stored steps an episode was over, `Bool "T B"`."""
        rows = self._rows(start, stop)
        return (self.columns["terminated"][rows] | self.columns["cut"][rows]).cpu()

    def _note(self, done: Tensor, before: int) -> None:
        """First and last steps of a fragment's episodes, `done "T B"`, and the ends of those that ran before it."""
        steps = before + torch.arange(len(done)).unsqueeze(1).expand_as(done)
        never = torch.iinfo(torch.int64).max
        end = torch.where(done, steps, never).flip(0).cummin(0).values.flip(0)
        begins = torch.where(done, steps + 1, OPEN).roll(1, 0)
        begins[0] = self.begun
        first = begins.cummax(0).values
        older = self._rows(max(int(self.begun.min()), self.oldest), before)
        if len(older):
            ends_now = (self.last[older] == OPEN) & (end[0] != never)
            self.last[older] = torch.where(ends_now, end[0], self.last[older])
        rows = self._rows(before, self.clock)
        self.first[rows], self.last[rows] = first, torch.where(end == never, OPEN, end)
        self.begun = torch.where(done[-1], self.clock, first[-1])

    def _rows(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop) % self.length

    # -- looking ----------------------------------------------------------------------------------------------------

    @property
    def ended(self) -> Tensor:
        """Places in the ring of all transitions of episodes that have ended, `Int64 "N"`."""
        if self._ended is None:
            filled = min(self.clock, self.length)
            there = self.last[:filled] >= 0
            if self.holes:
                there = there & self.columns["mask"][:filled].cpu()
            self._ended = there.flatten().nonzero().squeeze(1)
        return self._ended

    def bounds(self, step: Tensor, copy: Tensor) -> tuple[Tensor, Tensor]:
        """First (still stored) and last step of the episodes that transitions belong to, both included."""
        place = step % self.length
        first = self.first[place, copy].clamp(min=self.oldest)
        if self.holes:  # the restart that an episode may begin with shows the end of the one before
            first = torch.where(self.at("mask", first, copy).cpu(), first, first + 1)
        return first, self.last[place, copy]

    # -- reading ----------------------------------------------------------------------------------------------------

    def rounds(self, plan: Any, ctx: Any) -> Iterator[Batch]:
        """The iteration's draws; none before `least` transitions of ended episodes are there."""
        if len(self.ended) >= self.least:
            yield from super().rounds(plan, ctx)

    def uniform(self, count: int, generator: torch.Generator | None = None) -> Index:
        """Every transition of an ended episode alike.

        Raises:
            RecipeError: none has ended.
        """
        ended = self.ended
        if not len(ended):
            raise RecipeError("store.episodes: no complete episode stored, collect at least one before updating")
        return self.index(ended[torch.randint(len(ended), (count,), generator=generator)])

    # -- state ------------------------------------------------------------------------------------------------------

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Fill the ring; where episodes begin and end is read off it."""
        super().load_state_dict(state)
        self._ended = None
        if self.columns:
            self._open_books()
            self._note(self._done(self.oldest, self.clock), self.oldest)
