"""One- and n-step targets of action values: what a reward and the value after it say that an action was worth."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx


def td_target(
    rewards: Tensor, terminated: Tensor, after: Tensor, gamma: float | Tensor, clip: tuple[float, float] | None = None
) -> Tensor:
    """`r + gamma (not terminated) V'`, cut to `clip` where the possible returns are known.

    A time limit is no end: `terminated` is false there and the value counts. What follows a real end is not read, so
    it may be anything, NaN included.

    Args:
        rewards, terminated, after: `"N"`; `after` is the value of the true next observation.
        gamma: discount, or what the value counts for each row (n-step).
    """
    target = rewards + torch.where(terminated.bool(), torch.zeros_like(after), gamma * after)
    return target if clip is None else target.clamp(*clip)


def check_discounts(ctx: Ctx, gamma: float) -> None:
    """Whether a store that adds up rewards discounts as the target does.

    Raises:
        RecipeError: it does not.
    """
    if getattr(ctx.store, "n_step", 1) > 1 and ctx.store.gamma != gamma:
        raise RecipeError(
            f"the store adds up {ctx.store.n_step} rewards at discount {ctx.store.gamma}, the target continues at "
            f"{gamma}; set store.replay.gamma={gamma}"
        )


def pessimistic(q: Tensor, how: Literal["min", "mean", "max"] = "min") -> Tensor:
    """One value of several members: `q "M N"` to `"N"`."""
    if how == "mean":
        return q.mean(0)
    return functools.reduce(torch.minimum if how == "min" else torch.maximum, q.unbind(0))


@dataclass
class Target:
    """What every target needs: rewards, ends, the value after them.

    Args:
        gamma: discount of one step.
        clip: least and largest possible return, where they are known.
    """

    gamma: float = 0.99
    clip: tuple[float, float] | None = None

    needs = ("obs", "rewards", "terminated", "discount?")
    writes = ("returns",)

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie in [0, 1], got {self.gamma}")

    def start(self, ctx: Ctx) -> None:
        check_discounts(ctx, self.gamma)

    def estimate(self, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        after = self.after(batch, batch["obs"][:, -1], ctx)
        discount = batch["discount"][:, 0] if "discount" in batch else self.gamma
        target = td_target(batch["rewards"][:, 0], batch["terminated"][:, 0], after, discount, self.clip)
        return {"returns": target.unsqueeze(1)}

    def after(self, batch: Batch, obs: Tensor, ctx: Ctx) -> Tensor:
        """Value of the observation after each row's reward, `"N"`."""
        raise NotImplementedError


@component("credit")
@dataclass
class SoftTarget(Target):
    """SAC's target: the lesser critic's value of a fresh action, plus `alpha` times its entropy (arXiv 1812.05905).

    Args:
        actor, critic, alpha: roles; `alpha` may be empty: no entropy term.
        members: how the critics' values become one.
    """

    actor: str = "policy"
    critic: str = "critic_target"
    alpha: str = "alpha"
    members: Literal["min", "mean", "max"] = "min"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.uses = tuple(role for role in (self.actor, self.critic, self.alpha) if role)

    def after(self, batch: Batch, obs: Tensor, ctx: Ctx) -> Tensor:
        action, logp = ctx.models[self.actor].sample(obs)
        value = pessimistic(ctx.models[self.critic].q(obs, action), self.members)
        return value - ctx.models[self.alpha].value * logp if self.alpha else value


@component("credit")
@dataclass
class SmoothedTarget(Target):
    """TD3's target: the lesser critic's value of the lagging actor's action under clipped noise (arXiv 1802.09477).

    Args:
        actor, critic: roles, both lagging.
        noise: std of what is added to the action, in units of half its range; 0 = DDPG's.
        noise_clip: bound of it.
        members: how the critics' values become one.
    """

    actor: str = "policy_target"
    critic: str = "critic_target"
    noise: float = 0.2
    noise_clip: float = 0.5
    members: Literal["min", "mean", "max"] = "min"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.uses = (self.actor, self.critic)

    def after(self, batch: Batch, obs: Tensor, ctx: Ctx) -> Tensor:
        action, _ = ctx.models[self.actor].sample(obs)
        if self.noise:
            shift = (self.noise * torch.randn_like(action)).clamp(-self.noise_clip, self.noise_clip)
            action = (action + shift).clamp(-1, 1)
        return pessimistic(ctx.models[self.critic].q(obs, action), self.members)


@component("credit", "q_target")
@dataclass
class QTarget(Target):
    """DQN's target: the highest value after the reward, by the lagging net.

    Args:
        policy, target: roles.
        double: the learning net picks the action, the lagging one values it (arXiv 1509.06461).
    """

    policy: str = "policy"
    target: str = "policy_target"
    double: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.uses = (self.policy, self.target)

    def after(self, batch: Batch, obs: Tensor, ctx: Ctx) -> Tensor:
        values = ctx.models[self.target].q(obs)
        if not self.double:
            return values.amax(-1)
        best = ctx.models[self.policy].q(obs).argmax(-1, keepdim=True)
        return values.gather(-1, best).squeeze(-1)
