"""Policies that climb a differentiable score of their own action: SAC, DDPG, TD3."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

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
    one: `min` (SAC), `first` (TD3) or `mean`.
    """

    train: list[str] = field(default_factory=lambda: ["policy"])
    lr: float = 3e-4
    clip: float = 0.0
    critic: str = "critic"
    alpha: str = ""
    members: Literal["min", "first", "mean"] = "min"

    splits = False
    needs = ("obs",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.train) != 1:
            raise RecipeError(f"update.actor_value: train names one acting role, got {self.train}")
        self.uses = tuple(role for role in (self.critic, self.alpha) if role)
        self.writes = ("fresh_logprobs",) if self.alpha else ()

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        obs = mb["obs"][:, 0]
        action, logp = ctx.models[self.train[0]].sample(obs)
        critic = ctx.models[self.critic]
        frozen = [p for p in critic.module.parameters() if p.requires_grad]
        for parameter in frozen:  # only the action's gradient is wanted
            parameter.requires_grad_(False)
        q = critic.q(obs, action)
        for parameter in frozen:
            parameter.requires_grad_(True)
        value = {"min": lambda: q.amin(0), "first": lambda: q[0], "mean": lambda: q.mean(0)}[self.members]()
        if not self.alpha:
            return -value.mean(), {"actor/q": value.detach().mean()}
        assert logp is not None, "an actor with a temperature has log-probs"
        mb["fresh_logprobs"] = logp.detach().unsqueeze(1)
        with torch.no_grad():
            alpha = ctx.models[self.alpha].value
        stats: Stats = {"actor/q": value.detach().mean(), "entropy/mean": -logp.detach().mean()}
        return (alpha * logp - value).mean(), stats
