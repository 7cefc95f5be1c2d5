"""Policies that climb a critic and stay near what the data do: TD3+BC, and the gated pull of A2PR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gainstage.models.autoencoder import kl_to_normal
from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx
from gainstage.update.learner import Learner, Stats
from gainstage.update.objectives.policy.actor_value import still

SMALLEST = 1e-6
"""Floor of the mean absolute value that the critic's term is divided by."""


def behaviour_term(action: Tensor, target: Tensor, gate: Tensor | None = None) -> Tensor:
    """Mean over rows and dimensions of the squared distance, a scalar: `action`, `target "N A"`, `gate "N"`.

    A closed gate takes a row's pull away; the row still counts in the mean. Gradient through `target` where it has one.
    """
    square = (action - target).square()
    return (square if gate is None else square * gate.detach().unsqueeze(-1)).mean()


def guided_target(
    q_data: Tensor, q_other: Tensor, v: Tensor, a_data: Tensor, a_other: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Which action the policy is pulled to, whether at all, and where the other was taken (arXiv 2405.19909).

    The better of the recorded and the generated action by the critic, ties to the generated one; the pull is on where
    the generated one is worth at least the state's value, or the recorded one more than it. Both true count once.

    Args:
        q_data, q_other, v: `"N"`.
        a_data, a_other: `"N A"`.
    """
    other = q_other >= q_data
    gate = (q_other >= v) | (q_data > v)
    return torch.where(other.unsqueeze(-1), a_other, a_data), gate.to(a_data.dtype), other


@component("update")
@dataclass
class BehaviourTerm(Learner):
    """TD3+BC's actor: up the critic, scaled to the size of its values, and towards the recorded action.

    `-alpha / mean|Q| * mean Q1(s, pi(s)) + weight * mean (pi(s) - a)^2`, actions in [-1, 1] (arXiv 2106.06860).
    `alpha` weighs the critic against the pull: larger trusts it more, 0 is cloning; `critic` is a role.
    """

    train: list[str] = field(default_factory=lambda: ["policy"])
    lr: float = 3e-4
    clip: float = 0.0
    every: int = 2
    critic: str = "critic"
    alpha: float = 2.5
    weight: float = 1.0

    splits = False
    needs = ("obs", "actions")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.train) != 1:
            raise RecipeError(f"update: train names one acting role, got {self.train}")
        for name in ("alpha", "weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        self.uses: tuple[str, ...] = (self.critic,)

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        obs, data = mb["obs"][:, 0], mb["actions"][:, 0]
        action, _ = ctx.models[self.train[0]].sample(obs)
        critic = ctx.models[self.critic]
        with still(critic.module):  # only the action's gradient is wanted
            q = critic.q(obs, action)[0]
        scale = self.alpha / q.detach().abs().mean().clamp(min=SMALLEST)
        target, gate, stats = self.target(obs, data, action, ctx)
        pull = behaviour_term(action, target, gate)
        stats |= {"actor/q": q.detach().mean(), "actor/scale": scale, "actor/pull": pull.detach()}
        return -scale * q.mean() + self.weight * pull, stats

    def target(self, obs: Tensor, data: Tensor, action: Tensor, ctx: Ctx) -> tuple[Tensor, Tensor | None, Stats]:
        """What the policy is pulled to, `"N A"`, and how much, `"N"` or None for all alike."""
        return data, None, {}


@component("update")
@dataclass
class GuidedTerm(BehaviourTerm):
    """A2PR's actor: as TD3+BC's, but pulled only to actions that are better than the state's value (arXiv 2405.19909).

    The candidates are the recorded action and what the model of the data (`model`) makes of the policy's own one.
    `value` is the role with state values; `pick: false` leaves the model out (only the recorded action), `gate: false`
    always pulls. `detach_target: false` lets the gradient of a generated target flow back into the policy, as the
    authors' program does. `warmup_updates` pulls to the recorded action everywhere for so many updates of the actor,
    while the advantages are noise.
    """

    value: str = "value"
    model: str = "vae"
    pick: bool = True
    gate: bool = True
    detach_target: bool = True
    warmup_updates: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_updates < 0:
            raise ValueError(f"warmup_updates must be at least 0, got {self.warmup_updates}")
        self.uses = (self.critic, self.value, self.model)
        self.updates = 0

    def target(self, obs: Tensor, data: Tensor, action: Tensor, ctx: Ctx) -> tuple[Tensor, Tensor | None, Stats]:
        self.updates += 1
        if self.updates <= self.warmup_updates:
            return data, None, {"gate/rate": 1.0, "gate/other": 0.0}
        critic = ctx.models[self.critic]
        other = self._generated(obs, action, ctx) if self.pick else data
        with torch.no_grad():
            v, q_data = ctx.models[self.value].v(obs), critic.q(obs, data)[0]
            q_other = critic.q(obs, other)[0] if self.pick else q_data
        target, gate, picked = guided_target(q_data, q_other, v, data, other)
        gate = gate if self.gate else torch.ones_like(gate)
        share = picked.float().mean() if self.pick else 0.0
        return target, gate, {"gate/rate": gate.mean(), "gate/other": share, "value/mean": v.mean()}

    def _generated(self, obs: Tensor, action: Tensor, ctx: Ctx) -> Tensor:
        """What the model of the data makes of the policy's action, `"N A"`; its own weights take no gradient."""
        model = ctx.models[self.model]
        with still(model.module), torch.set_grad_enabled(not self.detach_target):
            return model.reconstruct(obs, action)[0]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.updates = int(state["updates"])


def reconstruction_loss(recon: Tensor, action: Tensor, kl: Tensor, gate: Tensor, weight: float = 1.0) -> Tensor:
    """`weight * mean gate (recon - a)^2 + 0.5 * mean KL`, a scalar; the gate does not act on the KL."""
    square = (recon - action.detach()).square() * gate.detach().unsqueeze(-1)
    return weight * square.mean() + 0.5 * kl.mean()


@component("update")
@dataclass
class BehaviourModel(Learner):
    """Fits a model of the data's actions, of those alone that are worth more than the state by `critic` and `value`.

    With `gated: false` it models all of them. `weight` is that of the reconstruction beside half the KL.
    """

    train: list[str] = field(default_factory=lambda: ["vae"])
    lr: float = 1e-3
    clip: float = 10.0
    critic: str = "critic"
    value: str = "value"
    gated: bool = True
    weight: float = 1.0

    splits = False
    needs = ("obs", "actions")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.uses = (self.critic, self.value) if self.gated else ()

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        obs, data = mb["obs"][:, 0], mb["actions"][:, 0]
        gate = torch.ones(len(obs), device=obs.device)
        if self.gated:
            with torch.no_grad():
                gate = (ctx.models[self.critic].q(obs, data)[0] > ctx.models[self.value].v(obs)).to(data.dtype)
        recon, mean, log_std = ctx.models[self.train[0]].reconstruct(obs, data)
        kl = kl_to_normal(mean, log_std)
        return reconstruction_loss(recon, data, kl, gate, self.weight), {
            "gate/rate": gate.mean(),
            "kl": kl.detach().mean(),
        }
