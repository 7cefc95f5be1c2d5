"""One- and n-step targets of action values: what a reward and the value after it say that an action was worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gainstage.ops.members import one_value
from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx


def td_target(
    rewards: Tensor, terminated: Tensor, after: Tensor, gamma: float | Tensor, clip: tuple[float, float] | None = None
) -> Tensor:
    """`r + gamma (not terminated) V'`, cut to `clip` where the possible returns are known.

    A time limit is no end: `terminated` is false there and the value counts. What follows a real end is not read, so
    it may be anything, NaN included.

    Args:
        rewards, terminated, after: `"N"`, or shapes that broadcast; `after` is the value of the true next observation.
        gamma: discount, or what the value counts for each row (n-step).
    """
    target = rewards + torch.where(terminated.bool(), torch.zeros_like(after), gamma * after)
    return target if clip is None else target.clamp(*clip)


@dataclass
class Discounting:
    """What every target of replayed transitions reads, and what the value after one of them counts.

    Args:
        gamma: discount of one step.
    """

    gamma: float = 0.99

    needs = ("obs", "rewards", "terminated", "discount?")

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie in [0, 1], got {self.gamma}")

    def start(self, ctx: Ctx) -> None:
        """Raises RecipeError: the store adds up rewards and discounts them otherwise."""
        if getattr(ctx.store, "n_step", 1) > 1 and ctx.store.gamma != self.gamma:
            raise RecipeError(
                f"the store adds up {ctx.store.n_step} rewards at discount {ctx.store.gamma}, the target continues at "
                f"{self.gamma}; set store.replay.gamma={self.gamma}"
            )

    def discount(self, batch: Batch) -> float | Tensor:
        """Of all rows, or of each, `"N"`, where their rewards span several steps."""
        return batch["discount"][:, 0] if "discount" in batch else self.gamma


@dataclass
class Target(Discounting):
    """Returns from the reward and one value after it.

    Args:
        gamma: discount of one step.
        clip: least and largest possible return, where they are known.
    """

    clip: tuple[float, float] | None = None

    writes = ("returns",)

    def estimate(self, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        return {"returns": self.returns(batch, self.after(batch, batch["obs"][:, -1], ctx)).unsqueeze(1)}

    def returns(self, batch: Batch, after: Tensor) -> Tensor:
        """The target of each row whose reward is followed by the value `after`, `"N"`."""
        return td_target(batch["rewards"][:, 0], batch["terminated"][:, 0], after, self.discount(batch), self.clip)

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
        value = one_value(ctx.models[self.critic].q(obs, action), self.members)
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
        return one_value(ctx.models[self.critic].q(obs, self.smoothed(obs, ctx)), self.members)

    def smoothed(self, obs: Tensor, ctx: Ctx) -> Tensor:
        """The actor's action under clipped noise, inside [-1, 1]."""
        action, _ = ctx.models[self.actor].sample(obs)
        if not self.noise:
            return action
        shift = (self.noise * torch.randn_like(action)).clamp(-self.noise_clip, self.noise_clip)
        return (action + shift).clamp(-1, 1)


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
