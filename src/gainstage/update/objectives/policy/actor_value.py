"""Policies that climb a differentiable score of their own action: SAC, DDPG, TD3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gainstage.ops.members import one_value
from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx, column
from gainstage.update.learner import Learner, Stats

column(
    "fresh_logprobs", "step"
)  # log-prob of an action drawn anew in an actor's step, for the temperature that follows


@component("update")
@dataclass
class ActorValue(Learner):
    """Moves the actor up the critic's value of its reparametrised action, minus `alpha` times its log-prob.

    `critic` and `alpha` are roles (`alpha` may be empty: no entropy term); `members` says how several critics become
    one: `min` (SAC), `first` (TD3) or `mean`; `action_l2` weighs the mean square of the action in [-1, 1], which keeps
    it off the bounds.
    """

    train: list[str] = field(default_factory=lambda: ["policy"])
    lr: float = 3e-4
    clip: float = 0.0
    critic: str = "critic"
    alpha: str = ""
    members: Literal["min", "first", "mean"] = "min"
    action_l2: float = 0.0

    splits = False
    needs = ("obs",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.action_l2 >= 0:
            raise ValueError(f"action_l2 must be at least 0, got {self.action_l2}")
        if len(self.train) != 1:
            raise RecipeError(f"update.actor_value: train names one acting role, got {self.train}")
        self.uses = tuple(role for role in (self.critic, self.alpha) if role)
        self.writes = ("fresh_logprobs",) if self.alpha else ()

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        obs = mb["obs"][:, 0]
        action, logp = ctx.models[self.train[0]].sample(obs)
        critic = ctx.models[self.critic]
        with still(critic.module):  # only the action's gradient is wanted
            value = one_value(critic.q(obs, action), self.members)
        effort = self.action_l2 * action.square().mean() if self.action_l2 else 0.0
        if not self.alpha:
            return effort - value.mean(), {"actor/q": value.detach().mean()}
        assert logp is not None, "an actor with a temperature has log-probs"
        mb["fresh_logprobs"] = logp.detach().unsqueeze(1)
        alpha = ctx.models[self.alpha].value.detach()
        stats: Stats = {"actor/q": value.detach().mean(), "entropy/mean": -logp.detach().mean()}
        return (alpha * logp - value).mean() + effort, stats


@contextmanager
def still(module: torch.nn.Module) -> Iterator[None]:
    """Inside, the module's weights take no gradient."""
    moving = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in moving:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in moving:
            parameter.requires_grad_(True)
