"""Values that do not trust what the data never tried: CQL's penalty, IQL's expectile, the lower value of A2PR."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx
from gainstage.update.learner import Learner, Stats
from gainstage.update.objectives.value.td import Td, td_loss


def cql_penalty(q: Tensor, q_data: Tensor, log_density: Tensor | None = None) -> Tensor:
    """Log-sum-exp over actions less the recorded action's value, mean over rows, sum over members: a scalar.

    CQL(H) (arXiv 2006.04779, equation 4). Over drawn actions each counts by one over its density, so that the
    mean over draws estimates the integral.

    Args:
        q: `"M N K"`, values of K actions: all choices, or K draws.
        q_data: `"M N"`.
        log_density: `"N K"` of the draws; None for an enumeration.
    """
    if log_density is None:
        soft = q.logsumexp(-1)
    else:
        soft = (q - log_density.detach()).logsumexp(-1) - math.log(q.shape[-1])
    return (soft - q_data).mean(-1).sum()


def expectile_loss(q: Tensor, v: Tensor, tau: float) -> Tensor:
    """Mean of `|tau - 1(q < v)| (q - v)^2`, a scalar, gradient through `v`: tau 0.5 is half the squared error, 1 the
    maximum (IQL, arXiv 2110.06169, equation 5)."""
    gap = q.detach() - v
    return (torch.where(gap < 0, 1 - tau, tau) * gap.square()).mean()


@component("update")
@dataclass
class ConservativeTd(Td):
    """The regression of `td`, and a penalty on actions that the policy likes better than the recorded ones (CQL).

    `penalty` is its weight (0 = plain TD); for continuous actions `draws` are taken from each of: uniform, the policy
    (`actor`) here, the policy at the next observation. Choices are enumerated.
    """

    penalty: float = 5.0
    draws: int = 10
    actor: str = "policy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty < 0 or self.draws < 1:
            raise ValueError(f"penalty must be at least 0 and draws at least 1, got {self.penalty} and {self.draws}")
        self.uses = (self.actor,)

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        critic = ctx.models[self.train[0]]
        if mb["actions"].dtype == torch.int64:
            every = critic.q(mb["obs"][:, 0])
            q = every.gather(-1, mb["actions"][:, 0].unsqueeze(-1)).squeeze(-1).unsqueeze(0)
            gap = cql_penalty(every.unsqueeze(0), q)
        else:
            q = self.values(mb, critic)
            gap = cql_penalty(*self._drawn(mb, critic, ctx.models[self.actor], q))
        target = mb["returns"][:, 0]
        mb["td_error"] = (q.detach().mean(0) - target).unsqueeze(1)
        stats: Stats = {
            "q/mean": q.detach().mean(), "q/error": mb["td_error"].abs().mean(), "q/gap": gap.detach() / len(q),
        }  # fmt: skip
        loss = td_loss(q, target, mb.columns.get("weight_draw"), self.kind, self.delta)
        return self.weight * loss + self.penalty * gap, stats

    def _drawn(self, mb: Batch, critic: Any, actor: Any, q_data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values of the drawn actions, of the recorded ones, and the draws' log-densities."""
        here, after = mb["obs"][:, 0], mb["obs"][:, -1]
        rows, size = len(here), mb["actions"].shape[-1]
        many = here.repeat_interleave(self.draws, 0)
        actions = [torch.rand(rows * self.draws, size, device=here.device) * 2 - 1]
        logs = [torch.full((rows * self.draws,), -size * math.log(2.0), device=here.device)]
        with torch.no_grad():
            for seen in (many, after.repeat_interleave(self.draws, 0)):
                action, logp = actor.sample(seen)
                if logp is None:
                    raise RecipeError(
                        f"update.conservative_td: {self.actor!r} has no log-probs; use the net tanh_gaussian"
                    )
                actions.append(action)
                logs.append(logp)
        q = torch.stack([critic.q(many, action).reshape(-1, rows, self.draws) for action in actions], 2)
        density = torch.stack([log.reshape(rows, self.draws) for log in logs], 1)
        return q.flatten(2), q_data, density.flatten(1)


@component("update")
@dataclass
class Expectile(Learner):
    """IQL's state values: an upper expectile of the recorded actions' values (arXiv 2110.06169).

    `tau` in (0, 1): 0.5 = their mean, nearer to 1 = nearer to the best recorded action; `critic` is the role whose
    lesser value is followed.
    """

    train: list[str] = field(default_factory=lambda: ["value"])
    lr: float = 3e-4
    clip: float = 0.0
    tau: float = 0.7
    critic: str = "critic_target"

    splits = False
    needs = ("obs", "actions")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.tau < 1:
            raise ValueError(f"tau must lie in (0, 1), got {self.tau}")
        self.uses = (self.critic,)

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        obs = mb["obs"][:, 0]
        with torch.no_grad():
            q = ctx.models[self.critic].q(obs, mb["actions"][:, 0]).amin(0)
        v = ctx.models[self.train[0]].v(obs)
        return expectile_loss(q, v, self.tau), {
            "value/mean": v.detach().mean(),
            "advantage/mean": (q - v.detach()).mean(),
        }


@component("update")
@dataclass
class StateRegression(Learner):
    """Fits state values to a column of targets (`source`): returns of the data, or what credit wrote."""

    train: list[str] = field(default_factory=lambda: ["value"])
    lr: float = 3e-4
    clip: float = 0.0
    source: str = "returns"

    splits = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.needs = ("obs", self.source)

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        v = ctx.models[self.train[0]].v(mb["obs"][:, 0])
        error = (v - mb[self.source][:, 0].detach()).square().mean()
        return error, {"value/mean": v.detach().mean()}
