"""Replay of transitions: a ring of what all copies did, drawn from again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gainstage.ops.mapped import mapped_zeros
from gainstage.ops.noise import mix
from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Index, column
from gainstage.types.history import History, Segment

column("discount", "step")  # what the value after a decision counts: gamma to the number of steps that its reward spans
column("start", "step")  # an episode begins with this decision
column("weight_draw", "row")  # importance weight of a row that was not drawn uniformly

TOGETHER = 1 << 25
"""Bytes of minibatches that are drawn at once."""
KEPT = ("obs", "next_obs", "actions", "rewards", "terminated", "cut", "mask")


@component("store")
@dataclass
class Replay:
    """Keeps the last `capacity` transitions and hands out `plan.updates` draws of `plan.minibatch` an iteration.

    Draws are uniform unless select has an entry that chooses. A row is one transition: `obs` `[N, 2, *]` is before and
    after, the true observation also where an episode ended.

    Args:
        capacity: transitions; the oldest give way.
        least: transitions that must be there before the first draw.
        n_step: rewards that a row adds up, discounted, before the value: up to the end of the episode. 1 = one.
        gamma: discount inside those; only read where `n_step` is above 1.
        keep: further columns to be kept, for instance `info/cost`.
        on_disk: the ring lies in a file of the run's folder (true), or of a folder that is named, instead of memory.
            Its room is taken at once. The file is gone when the run ends or is killed; checkpoints hold what is in it.
    """

    capacity: int = 1_000_000
    least: int = 1
    n_step: int = 1
    gamma: float = 0.99
    keep: list[str] = field(default_factory=list)
    on_disk: bool | str = False

    draws = True
    """A round is one minibatch."""
    writes: tuple[str, ...] = field(default=("obs", "actions", "rewards", "terminated", "cut", "mask"), init=False)

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.least < 1 or self.n_step < 1:
            raise ValueError("capacity, least and n_step must be at least 1")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie in [0, 1], got {self.gamma}")
        if self.least > self.capacity:
            raise ValueError(f"least ({self.least}) is more than the ring holds ({self.capacity})")
        self.columns: dict[str, Tensor] = {}
        self.copies = self.length = self.clock = 0
        self.holes = False
        self.folder = Path(self.on_disk) if isinstance(self.on_disk, str) and self.on_disk else None
        self.written: list[Segment] = []

    def start(self, ctx: Any) -> None:
        """Raises RecipeError: the ring is to lie in the run's folder, and there is none."""
        if self.on_disk is True:
            if ctx.folder is None:
                raise RecipeError("store: on_disk: true takes the folder of the run, which has none; name a folder")
            self.folder = ctx.folder

    # -- writing ----------------------------------------------------------------------------------------------------

    def add(self, experience: Batch, ctx: Any) -> None:
        """Write a fragment of every copy, `[B, T]`, behind the last one.

        Raises:
            RecipeError: the rollout brings no columns of a simulator, or another number of copies than before.
        """
        if not isinstance(experience, Batch):
            raise RecipeError("store.replay keeps steps of environments; it needs a rollout such as env_steps")
        found = {name: experience[name] for name in (*KEPT, *self.keep) if name in experience}
        copies, steps = experience["rewards"].shape[:2]
        if not self.columns:
            self._allocate(found, copies)
        if copies != self.copies:
            raise RecipeError(f"store.replay holds {self.copies} copies, the rollout brings {copies}")
        if steps > self.length:
            raise RecipeError(
                f"store.replay.capacity {self.capacity} is less than one iteration's {copies * steps} steps"
            )
        self.holes |= not bool(found["mask"].all())
        if "start" in experience:
            self._close(experience["start"][:, 0].bool().cpu())
        found["obs"] = found["obs"][:, :-1]
        self._write(self.clock, {name: value.transpose(0, 1) for name, value in found.items()})
        self.clock += steps

    def _close(self, begins: Tensor) -> None:
        """Cut off where they stopped: episodes that could not be resumed, so that copies begin others in their place.

        Args:
            begins: of each copy, whether the next step is the first of an episode, `Bool "B"`.
        """
        if not self.clock:
            return
        row = (self.clock - 1) % self.length
        left = begins & ~(self.columns["terminated"][row] | self.columns["cut"][row])
        if bool(left.any()):
            self.columns["cut"][row] |= left
            self.written[:] = [segment for segment in self.written if segment.stop < self.clock]

    def _write(self, first: int, columns: Mapping[str, Tensor]) -> None:
        """Put steps, from `first` on, into the ring: `"T B *"`."""
        places = (first + torch.arange(len(columns["rewards"]))) % self.length
        for name, ring in self.columns.items():
            ring[places] = columns[name].to(ring.device)

    def _allocate(self, found: Mapping[str, Tensor], copies: int) -> None:
        self.copies, self.length = copies, max(1, self.capacity // copies)
        if self.least > self.length * copies:
            raise RecipeError(
                f"store.replay: {copies} copies share the ring, which holds {self.length * copies} transitions, fewer "
                f"than least ({self.least}); raise capacity or lower least"
            )
        if missing := [name for name in (*KEPT, *self.keep) if name not in found]:
            raise RecipeError(f"store.replay: the rollout brings no column {missing[0]!r}")
        self._make({name: ((self.length, copies, *value.shape[2:]), value.dtype) for name, value in found.items()})

    def _make(self, layout: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        for name, (shape, dtype) in layout.items():
            self.columns[name] = self._zeros(shape, dtype)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self.folder is not None:
            try:
                return mapped_zeros(self.folder, shape, dtype)
            except OSError as error:
                raise RecipeError(
                    f"store: on_disk: {self.folder} cannot take {shape[0]} steps ({error.strerror}); lower capacity, "
                    "or name a folder with more room"
                ) from error
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        return torch.from_numpy(np.zeros(shape, kind))  # takes memory as it is written to, unlike torch's

    @property
    def nbytes(self) -> int:
        """Size of the ring: of the transitions it can hold, and of nothing else."""
        return sum(ring.nbytes for ring in self.columns.values())

    # -- looking ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return min(self.clock, self.length) * self.copies

    @property
    def row_bytes(self) -> int:
        """Memory of one transition."""
        return sum(ring[0, 0].numel() * ring.element_size() for ring in self.columns.values())

    @property
    def oldest(self) -> int:
        """Step of the oldest transition that is still there, counted from the start of the run."""
        return max(0, self.clock - self.length)

    def column(self, name: str) -> Tensor:
        """A whole column `"L B *"`: row `step % L`. Not to be changed."""
        return self.columns[name]

    def at(self, name: str, step: Tensor, copy: Tensor) -> Tensor:
        """Entries of a column at given steps (counted from the start of the run) of given copies."""
        return self.columns[name][step % self.length, copy]

    def place(self, step: Tensor, copy: Tensor) -> Tensor:
        """Where transitions lie in the ring, counted through: `step % L * B + copy`."""
        return step % self.length * self.copies + copy

    def index(self, place: Tensor, weight: Tensor | None = None) -> Index:
        """The transitions that lie at places of the ring now."""
        row, copy = place // self.copies, place % self.copies
        return Index(copy, self.oldest + (row - self.oldest) % self.length, weight)

    # -- reading ----------------------------------------------------------------------------------------------------

    def rounds(self, plan: Any, ctx: Any) -> Iterator[Batch]:
        """The iteration's draws; none before `least` transitions are there."""
        if len(self) < self.least:
            return
        count, left = plan.minibatch or 256, plan.updates
        if ctx.choose is not None:  # by what the minibatch before it has taught, perhaps
            for _ in range(left):
                yield self.draw(ctx.choose(count), ctx)
            return
        generator = torch.Generator().manual_seed(mix("replay", ctx.seed, ctx.iteration))
        together = max(1, TOGETHER // (count * self.row_bytes))
        while left:
            now = min(left, together)
            several = self.draw(self.uniform(now * count, generator), ctx)
            yield from (piece(several, slice(k * count, (k + 1) * count)) for k in range(now))
            left -= now

    def uniform(self, count: int, generator: torch.Generator) -> Index:
        """Every transition alike; what is none (a step that an environment spent on its restart) is drawn again."""
        step, copy = self._anywhere(count, generator)
        tries = 0
        while self.holes and not bool((real := self.at("mask", step, copy)).all()):
            other_step, other_copy = self._anywhere(count, generator)
            step, copy = torch.where(real, step, other_step), torch.where(real, copy, other_copy)
            if (tries := tries + 1) > 1000:
                raise RecipeError("store.replay: next to none of the stored steps is a transition")
        return Index(copy, step)

    def _anywhere(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        number = torch.randint(len(self), (count,), generator=generator)
        return self.oldest + number // self.copies, number % self.copies

    def draw(self, index: Index, ctx: Any = None) -> Batch:
        """The transitions of an index as a batch of rows with one decision each."""
        step, copy = index.step, index.row
        last, extra = step, {}
        if self.n_step > 1:
            last, reward, discount = self._sum(step, copy)
            extra = {"rewards": reward, "discount": discount}
        flat, flat_last = self.place(step, copy), self.place(last, copy)
        out: dict[str, Tensor] = {}
        for name, ring in self.columns.items():
            if name == "next_obs":
                continue
            if name == "obs":
                after = self.columns["next_obs"].flatten(0, 1).index_select(0, flat_last)
                out["obs"] = torch.stack((ring.flatten(0, 1).index_select(0, flat), after), 1)
            else:
                place = flat_last if name in ("terminated", "cut") else flat
                out[name] = ring.flatten(0, 1).index_select(0, place).unsqueeze(1)
        out |= {name: value.unsqueeze(1) for name, value in extra.items()}
        if index.weight is not None:
            out["weight_draw"] = index.weight
        device = getattr(ctx, "device", torch.device("cpu"))
        if device.type != "cpu":
            out = {name: value.to(device) for name, value in out.items()}
        return Batch(out, origin=(copy, step))

    def _sum(self, step: Tensor, copy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step of the last transition that a row spans, its discounted reward, and what the value after it counts."""
        last, running = step.clone(), torch.ones_like(step, dtype=torch.bool)
        reward, discount = torch.zeros(len(step)), torch.ones(len(step))
        for k in range(self.n_step):
            here = step + k
            running = running & (here < self.clock)
            if k:
                running = running & self.at("mask", here, copy)
            reward = reward + torch.where(running, discount * self.at("rewards", here, copy), 0.0)
            discount = torch.where(running, discount * self.gamma, discount)
            last = torch.where(running, here, last)
            running = running & ~(self.at("terminated", here, copy) | self.at("cut", here, copy))
        return last, reward, discount

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What is in the ring, not copied: to be written before the next step is added."""
        bytes_ = self.row_bytes * self.copies
        return {
            "clock": self.clock, "copies": self.copies, "length": self.length, "holes": self.holes,
            "steps": History(self.oldest, self.clock, bytes_, self._read, self.written),
        }  # fmt: skip

    def _read(self, start: int, stop: int) -> Iterator[tuple[int, Mapping[str, Tensor]]]:
        """Steps as they lie in the ring, in one piece or, around its end, in two."""
        while start < stop:
            row = start % self.length
            count = min(stop - start, self.length - row)
            yield start, {name: ring[row : row + count] for name, ring in self.columns.items()}
            start += count

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Fill the ring.

        Raises:
            RecipeError: the state was saved before replays were written in segments.
        """
        if "steps" not in state:
            raise RecipeError("store: an older version saved this replay; start the run again with --clean")
        self.clock, self.copies, self.length = int(state["clock"]), int(state["copies"]), int(state["length"])
        self.holes, history = bool(state["holes"]), state["steps"]
        for first, columns in history.read(history.start, history.stop):
            if not self.columns:
                self._make({name: ((self.length, *v.shape[1:]), v.dtype) for name, v in columns.items()})
            self._write(first, columns)
        self.written = history.written


def piece(batch: Batch, rows: slice) -> Batch:
    """Some rows in a row, without a copy."""
    assert batch.origin is not None and batch.origin[1] is not None
    return Batch(
        {name: value[rows] for name, value in batch.columns.items()},
        origin=(batch.origin[0][rows], batch.origin[1][rows]),
    )
