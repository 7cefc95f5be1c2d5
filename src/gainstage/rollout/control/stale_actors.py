"""Workers that act with weights of earlier updates, on a schedule that repeats exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.types import Act, Ctx


class Workers:
    """An actor made of several: the copies are dealt out in equal runs, each worker acts for its own.

    Args:
        actors: one a worker.

    Raises:
        ValueError: fewer copies than workers, once the first observations come.
    """

    def __init__(self, actors: Sequence[Any]) -> None:
        self.actors, self.sizes = list(actors), list[int]()

    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        if sum(self.sizes) != len(obs):
            self.sizes = shares(len(obs), len(self.actors))
        states = [None] * len(self.actors) if state is None else state.split(self.sizes)
        made = [
            actor.act(part, own, explore=explore)
            for actor, part, own in zip(self.actors, obs.split(self.sizes), states, strict=True)
        ]
        action = torch.cat([act.action for act in made])
        logprob = None if made[0].logprob is None else torch.cat([act.logprob for act in made])
        return Act(action, logprob, None if state is None else torch.cat([act.state for act in made]))

    @property
    def version(self) -> Tensor:
        """That of the weights each copy is acted for with, `Int64 "B"`."""
        return torch.tensor([actor.version for actor in self.actors]).repeat_interleave(torch.tensor(self.sizes))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["actors"][0], name)


def shares(copies: int, workers: int) -> list[int]:
    """How many copies each worker has; they differ by one at most."""
    if copies < workers:
        raise ValueError(f"stale_actors: {workers} workers need at least as many copies, env_steps has {copies}")
    return [(place + 1) * copies // workers - place * copies // workers for place in range(workers)]


def synced_at(iteration: int, worker: int, lag: int, workers: int) -> int:
    """The iteration before which a worker last fetched weights: once every `lag + 1`, the workers one after another."""
    offset = worker * (lag + 1) // workers
    return max(iteration - (iteration - offset) % (lag + 1), 0)


@component("rollout")
@dataclass
class StaleActors:
    """Deals the copies out to workers that fetch new weights every `lag + 1` iterations, one worker after another.

    This is what asynchronous workers do to the data (A3C, arXiv 1602.01783): some of it comes from weights up to `lag`
    iterations old. The schedule is fixed, so a run repeats and resumes bit for bit; lag 0 is synchronous, as if the
    entry were not there. Gradients are still those of the newest weights, on all copies at once.

    Args:
        workers: groups of copies with weights of their own.
        lag: most iterations that a worker's weights lie behind.
        actor: role that acts.
    """

    workers: int = 4
    lag: int = 3
    actor: str = "policy"
    held: list[Any] = field(default_factory=list, init=False, repr=False)
    synced: list[int] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.workers < 1 or self.lag < 0:
            raise ValueError(f"workers must be at least 1 and lag at least 0, got {self.workers} and {self.lag}")
        self.uses = (self.actor,)

    def start(self, ctx: Ctx) -> None:
        """Every worker begins with the weights of the start."""
        names = [f"{self.actor}.worker{n}" for n in range(self.workers)] if self.lag else []
        self.held = [ctx.models[self.actor].snapshot(name) for name in names]
        self.synced = [0] * len(self.held)

    def collect(self, requests: Sequence[Any], ctx: Ctx, inner: Any, model: Any = None) -> Any:
        """The fragment of this iteration, each copy's by its worker.

        Raises:
            ValueError: a wrapper around this one has changed the actor.
        """
        if not self.lag:
            return inner(requests, model)
        if model is not None:
            raise ValueError("stale_actors: put it first under rollout; it cannot copy what another entry has changed")
        source = ctx.models[self.actor]
        for worker, actor in enumerate(self.held):
            due = synced_at(ctx.iteration, worker, self.lag, self.workers)
            if due == ctx.iteration and self.synced[worker] != due:
                actor.module.load_state_dict(source.module.state_dict())
                actor.version, self.synced[worker] = source.version, due
        ctx.log("actors/lag", sum(ctx.iteration - at for at in self.synced) / self.workers)
        return inner(requests, Workers(self.held))

    def state_dict(self) -> dict[str, Any]:
        return {
            "synced": list(self.synced), "versions": [actor.version for actor in self.held],
            "weights": [dict(actor.module.state_dict()) for actor in self.held],
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.synced = [int(at) for at in state["synced"]]
        for actor, version, weights in zip(self.held, state["versions"], state["weights"], strict=True):
            actor.module.load_state_dict(weights)
            actor.version = int(version)
