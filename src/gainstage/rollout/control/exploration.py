"""Behaviour noise: wrappers around whoever acts. Each hands its own actor to the rollout inside it.

So the entry that stands nearest to the engine has the last word on an action: in
`[gaussian_noise, uniform_warmup, env_steps]` the warm-up's actions carry no noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gainstage.ops.masked import over
from gainstage.ops.schedules import Schedule
from gainstage.registry import component
from gainstage.types import Act, Ctx
from gainstage.types.spaces import Box, Space, describe_space, random_choices


class Acting:
    """An actor that acts by another one, with a change."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        return self.actor.act(obs, state, explore=explore)

    def to_env(self, action: Tensor) -> Tensor:
        return self.actor.to_env(action)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.actor, name)


@dataclass
class Exploration:
    """A wrapper of a rollout that replaces who acts."""

    actor: str = "policy"

    def __post_init__(self) -> None:
        self.uses = (self.actor,)

    def collect(self, requests: Sequence[Any], ctx: Ctx, inner: Any, model: Any = None) -> Any:
        return inner(requests, self.wrap(ctx.models[self.actor] if model is None else model, ctx))

    def wrap(self, actor: Any, ctx: Ctx) -> Any:
        raise NotImplementedError


class _Sometimes(Acting):
    """With probability epsilon an action at random."""

    def __init__(self, actor: Any, epsilon: float, space: Space) -> None:
        super().__init__(actor)
        self.epsilon, self.space = epsilon, space

    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        made = self.actor.act(obs, state, explore=explore)
        if not explore or self.epsilon <= 0:
            return made
        chance = torch.rand(len(obs), device=obs.device) < self.epsilon
        other = uniform_action(self.space, len(obs), obs.device)
        return Act(torch.where(over(chance, other), other, made.action), None, made.state)


@component("rollout")
@dataclass
class EpsilonGreedy(Exploration):
    """With probability epsilon a choice at random. Epsilon falls in a straight line over a share of the run.

    Args:
        start_at, end_at: epsilon at the beginning and after `share` of the run.
        share: of the run, in (0, 1], over which it falls.
    """

    start_at: float = 1.0
    end_at: float = 0.05
    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.end_at <= 1 and 0 <= self.start_at <= 1 and 0 < self.share <= 1):
            raise ValueError("start_at and end_at lie in [0, 1], share in (0, 1]")

    def epsilon(self, progress: float) -> float:
        return Schedule("linear", self.start_at, self.end_at)(progress / self.share)

    def wrap(self, actor: Any, ctx: Ctx) -> Any:
        space = ctx.task.action_space  # type: ignore[attr-defined]
        if isinstance(space, Box):
            raise ValueError(f"epsilon_greedy is for choices; actions are {describe_space(space)}: use gaussian_noise")
        epsilon = self.epsilon(ctx.progress)
        ctx.log("explore/epsilon", epsilon)
        return _Sometimes(actor, epsilon, space)


@component("rollout")
@dataclass
class RandomActions(Exploration):
    """Now and then an action at random, whatever the policy or its noise would do; for continuous actions too.

    Args:
        share: probability of it.
    """

    share: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must lie in [0, 1], got {self.share}")

    def wrap(self, actor: Any, ctx: Ctx) -> Any:
        return _Sometimes(actor, self.share, ctx.task.action_space)  # type: ignore[attr-defined]


class _Noisy(Acting):
    def __init__(self, actor: Any, noise: Any) -> None:
        super().__init__(actor)
        self.noise = noise

    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        made = self.actor.act(obs, state, explore=False)
        if not explore:
            return made
        return Act((made.action + self.noise(made.action)).clamp(-1, 1), None, made.state)


@component("rollout")
@dataclass
class GaussianNoise(Exploration):
    """Adds normal noise to a deterministic actor's action in [-1, 1] and cuts it there (TD3, arXiv 1802.09477).

    Args:
        std: of the noise, in units of half the action range.
    """

    std: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.std < math.inf:
            raise ValueError(f"std must be a finite number of at least 0, got {self.std}")

    def wrap(self, actor: Any, ctx: Ctx) -> Any:
        return _Noisy(actor, lambda action: self.std * torch.randn_like(action))


@component("rollout")
@dataclass
class OuNoise(Exploration):
    """Adds an Ornstein-Uhlenbeck process, noise that drifts back to 0 (DDPG, arXiv 1509.02971).

    It runs on through the ends of episodes.

    Args:
        std: of one step.
        theta: share of the way back to 0 in one step.
    """

    std: float = 0.2
    theta: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        self.value: Tensor | None = None

    def wrap(self, actor: Any, ctx: Ctx) -> Any:
        return _Noisy(actor, self._next)

    def _next(self, action: Tensor) -> Tensor:
        before = torch.zeros_like(action) if self.value is None else self.value
        self.value = (1 - self.theta) * before + self.std * torch.randn_like(action)
        return self.value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value = state["value"]


class _Uniform(Acting):
    def __init__(self, actor: Any, space: Space) -> None:
        super().__init__(actor)
        self.space = space

    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        """A Box is drawn in [-1, 1], the units of deterministic and squashed actors."""
        return Act(uniform_action(self.space, len(obs), obs.device), None, state)


@component("rollout")
@dataclass
class UniformWarmup(Exploration):
    """Acts at random until `steps` environment steps are spent: data to begin with for methods that replay.

    Args:
        steps: environment steps of the run.
    """

    steps: int = 5_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 0:
            raise ValueError(f"steps must be at least 0, got {self.steps}")

    def wrap(self, actor: Any, ctx: Ctx) -> Any:
        if ctx.meter.total("env_steps") >= self.steps:
            return actor
        return _Uniform(actor, ctx.task.action_space)  # type: ignore[attr-defined]


def uniform_action(space: Space, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Actions at random: choices alike, a Box uniform in [-1, 1]."""
    if isinstance(space, Box):
        return torch.rand(count, int(space.low.numel()), device=device) * 2 - 1
    return random_choices(space, count, device=device)
