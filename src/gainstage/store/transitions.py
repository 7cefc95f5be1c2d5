"""A fixed set of recorded episodes, drawn from transition by transition."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gainstage.ops.masked import over
from gainstage.ops.noise import mix
from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Index, column

column("weight_draw", "row")
column("info/", "step", dims="*")


@component("store")
@dataclass
class Offline:
    """The task's recorded episodes; hands out `plan.updates` draws of `plan.minibatch` transitions an iteration.

    Draws are uniform unless select has an entry that chooses. A row is one transition: `obs` `[N, 2, *]` is before and
    after, `origin` says of which episode and step. `cut` marks where an episode was cut off, or its record ends.

    Args:
        role: policy whose actions are meant: where it acts in [-1, 1], the recorded ones are brought there.
    """

    role: str = "policy"

    fixed = True
    """Takes no experience."""
    draws = True
    """A round is one minibatch."""
    requires = ("transitions",)
    writes: tuple[str, ...] = field(
        default=("obs", "actions", "rewards", "terminated", "cut", "mask"), init=False, repr=False
    )

    def __post_init__(self) -> None:
        self.columns: dict[str, Tensor] = {}
        self.lengths = self.offsets = torch.zeros(0, dtype=torch.int64)
        self.partial = 0
        """Episodes whose record stops before they do: they count with what was recorded."""

    def start(self, ctx: Any) -> None:
        """Read the episodes.

        Raises:
            RecipeError: they cannot be read, or there is none.
        """
        try:
            found = ctx.task.transitions()
        except ValueError as error:
            raise RecipeError(f"store.offline: {error}") from None
        self.lengths = found.lengths
        self.offsets = torch.cumsum(self.lengths, 0) - self.lengths
        last = torch.zeros(len(found.rewards), dtype=torch.bool)
        last[self.offsets + self.lengths - 1] = True
        self.partial = int((last & ~found.truncated & ~found.terminated).sum())
        actions = found.actions.flatten(1) if found.actions.dim() > 1 else found.actions
        if self.role in ctx.models and hasattr(ctx.models[self.role], "from_env"):
            actions = ctx.models[self.role].from_env(actions).cpu()
        self.columns = {
            "obs": found.obs,
            "actions": actions,
            "rewards": found.rewards,
            "terminated": found.terminated,
            "cut": (found.truncated | last) & ~found.terminated,
            "mask": torch.ones_like(last),
            **{f"info/{name}": value for name, value in found.info.items()},
        }

    def __len__(self) -> int:
        return int(self.lengths.sum())

    # -- looking ----------------------------------------------------------------------------------------------------

    def column(self, name: str) -> Tensor:
        """A whole column, episodes end to end: `"N *"`, `obs` `"N+E *"` with one more an episode. Not to be changed."""
        return self.columns[name]

    def at(self, name: str, step: Tensor, row: Tensor) -> Tensor:
        """Entries of a column at given steps of given episodes; `next_obs` is the observation after a step."""
        if name in ("obs", "next_obs"):
            return self.columns["obs"][self.offsets[row] + row + step + (name == "next_obs")]
        return self.columns[name][self.offsets[row] + step]

    def index(self, number: Tensor) -> Index:
        """Episode and step of transitions that are counted through, `Int64 "N"`."""
        row = torch.searchsorted(self.offsets, number, right=True) - 1
        return Index(row, number - self.offsets[row])

    def returns(self, gamma: float = 1.0) -> Tensor:
        """The discounted sum of each episode's rewards, `Float32 "E"`."""
        row = torch.repeat_interleave(torch.arange(len(self.lengths)), self.lengths)
        step = torch.arange(len(self)) - self.offsets[row]
        weighted = self.columns["rewards"].double() * torch.tensor(gamma, dtype=torch.float64) ** step
        return torch.zeros(len(self.lengths), dtype=torch.float64).index_add_(0, row, weighted).float()

    # -- reading ----------------------------------------------------------------------------------------------------

    def add(self, experience: Any, ctx: Any) -> None:
        """A fixed set takes nothing."""

    def rounds(self, plan: Any, ctx: Any) -> Iterator[Batch]:
        """The iteration's draws."""
        generator = torch.Generator().manual_seed(mix("offline", ctx.seed, ctx.iteration))
        for _ in range(plan.updates):
            count = plan.minibatch or 256
            yield self.draw(ctx.choose(count) if ctx.choose is not None else self.uniform(count, generator), ctx)

    def uniform(self, count: int, generator: torch.Generator) -> Index:
        """Every transition alike."""
        return self.index(torch.randint(len(self), (count,), generator=generator))

    def draw(self, index: Index, ctx: Any = None) -> Batch:
        """The transitions of an index as a batch of rows with one decision each."""
        step, row = index.step, index.row
        out = {name: self.at(name, step, row).unsqueeze(1) for name in self.columns if name != "obs"}
        out["obs"] = torch.stack((self.at("obs", step, row), self.at("next_obs", step, row)), 1)
        return self._batch(out, index, ctx)

    def segments(self, index: Index, length: int, ctx: Any = None) -> Batch:
        """Up to `length` decisions from each step of an index on, within its episode, `[N, length]` with a mask."""
        reach = torch.arange(length)
        there = index.step.unsqueeze(1) + reach
        real = there < self.lengths[index.row].unsqueeze(1)
        place = torch.where(real, there, self.lengths[index.row].unsqueeze(1) - 1)
        rows = index.row.unsqueeze(1).expand_as(place)
        out = {}
        for name in self.columns:
            if name != "obs":
                value = self.at(name, place, rows)
                out[name] = torch.where(over(real, value), value, torch.zeros_like(value))
        edges = torch.minimum(index.step.unsqueeze(1) + torch.arange(length + 1), self.lengths[index.row].unsqueeze(1))
        out["obs"] = self.at("obs", edges, index.row.unsqueeze(1).expand_as(edges))
        return self._batch(out, index, ctx)

    def _batch(self, out: dict[str, Tensor], index: Index, ctx: Any) -> Batch:
        if index.weight is not None:
            out["weight_draw"] = index.weight
        if ctx is not None:
            ctx.meter.charge("transitions", float(out["mask"].sum()))
        device = getattr(ctx, "device", torch.device("cpu"))
        if device.type != "cpu":
            out = {name: value.to(device) for name, value in out.items()}
        return Batch(out, origin=(index.row, index.step))

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What the data was, so that a run is not resumed on other data."""
        digest = hashlib.blake2b(digest_size=8)
        for name in ("rewards", "actions"):
            digest.update(self.columns[name].contiguous().numpy().tobytes())
        return {"steps": len(self), "digest": digest.hexdigest()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compare.

        Raises:
            RecipeError: the recorded episodes are not those that the run began with.
        """
        if dict(state) != self.state_dict():
            raise RecipeError(
                f"store.offline: the recorded episodes changed since the run began ({state['steps']} transitions then, "
                f"{len(self)} now); resume with the same data set"
            )
