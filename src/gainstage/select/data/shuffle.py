"""The plain sampler: every problem once per pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gainstage.ops.noise import mix
from gainstage.registry import component
from gainstage.types import Problem, Request, Sampling


def pass_order(size: int, seed: int, number: int) -> list[int]:
    """The order of pass `number`: a permutation of `range(size)` that depends on (seed, number) alone."""
    generator = torch.Generator().manual_seed(mix("shuffle", seed, number))
    return torch.randperm(size, generator=generator).tolist()


def train_problems(ctx: Any) -> Sequence[Problem]:
    """The problems to train on.

    Raises:
        ValueError: there is none.
    """
    problems = ctx.task.problems("train")
    if not len(problems):
        raise ValueError(f"task {getattr(ctx.task, 'name', '?')!r} has no problem in its train split")
    return problems


def requests_for(problem: Problem, samples: int, ctx: Any, greedy: bool = False) -> list[Request]:
    """One group of `samples` answers; with `greedy`, one more member that is decoded greedily."""
    group = ctx.new_group()
    asked = [Request(problem, samples, group)]
    return asked + [Request(problem, 1, group, first=samples, sampling=Sampling(temperature=0.0))] if greedy else asked


@component("select")
@dataclass
class Shuffle:
    """Every problem once per pass, in an order that depends on the seed and the pass alone."""

    samples: int = 8
    """Answers to each problem (one group); more give a better baseline and cost more tokens."""
    order: Literal["random", "given"] = "random"
    """`given`: the order of the data set, in every pass."""
    greedy: bool = False
    """One more, greedily decoded answer a group: the baseline of ReMax. It is paid for but not trained."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"shuffle.samples must be at least 1, got {self.samples}")
        self._pass = 0
        self._position = 0
        self._known: tuple[int, int, int] | None = None
        self._order: list[int] = []

    def next(self, n: int, ctx: Any, inner: Any = None) -> list[Request]:
        problems = train_problems(ctx)
        return [
            request
            for _ in range(n)
            for request in requests_for(problems[self._step(len(problems), ctx.seed)], self.samples, ctx, self.greedy)
        ]

    def _step(self, size: int, seed: int) -> int:
        """Index of the next problem; the cursor moves on."""
        if self._position >= size:
            self._pass, self._position = self._pass + 1, 0
        index = self._position
        if self.order == "random":
            if self._known != (size, seed, self._pass):
                self._known, self._order = (size, seed, self._pass), pass_order(size, seed, self._pass)
            index = self._order[self._position]
        self._position += 1
        return index

    def state_dict(self) -> dict[str, Any]:
        return {"pass": self._pass, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pass, self._position = int(state["pass"]), int(state["position"])
