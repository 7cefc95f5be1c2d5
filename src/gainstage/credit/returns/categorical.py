"""Targets that are distributions of the return: on fixed atoms, of one net or of a group of them, and as quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.credit.returns.td_targets import Discounting, td_target
from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx, column

column("target_probs", "step", dims="K")  # distribution over a net's atoms that its choice is drawn towards
column("target_quantiles", "step", dims="K")  # returns, each as likely as the others

PATIENCE = 10_000
"""Draws in a row with most of the target outside the support, after which a run is stopped."""


def project(
    probs: Tensor, rewards: Tensor, terminated: Tensor, gamma: float | Tensor, support: Tensor
) -> tuple[Tensor, Tensor]:
    """The distribution of `r + gamma Z'` back on the atoms of Z, `"N K"`, and the mass that fell outside, `"N"`.

    Each atom moves to `r + gamma z`, is cut at the bounds, and gives its mass to the two atoms around it in linear
    shares (arXiv 1707.06887, algorithm 1); one that hits an atom gives it all. A real end leaves one atom at r, and
    `probs` is not read there.

    Args:
        probs: `"N K"`, of the true next observation.
        gamma: discount, or what the value counts for each row.
        support: `"K"`, evenly spaced, rising.
    """
    low, high, last = support[0], support[-1], len(support) - 1
    ends = terminated.bool().unsqueeze(1)
    first = torch.zeros_like(probs).index_fill_(1, torch.zeros(1, dtype=torch.long, device=probs.device), 1.0)
    probs = torch.where(ends, first, probs)
    keep = torch.as_tensor(gamma, dtype=probs.dtype, device=probs.device).expand(len(probs)).unsqueeze(1)
    moved = rewards.unsqueeze(1) + torch.where(ends, torch.zeros_like(probs), keep * support)
    outside = (probs * ((moved < low) | (moved > high))).sum(1)
    place = ((moved.clamp(low, high) - low) / (high - low) * last).clamp(0, last)
    below = place.floor()
    above = place - below  # share of the upper neighbour; 0 where an atom is hit, and then the lower one gets all
    out = torch.zeros_like(probs).scatter_add_(1, below.long(), probs * (1 - above))
    return out.scatter_add_(1, place.ceil().long(), probs * above), outside


def cramer(p: Tensor, q: Tensor, step: float | Tensor) -> Tensor:
    """Squared Cramer distance of distributions on atoms `step` apart, `"*"`: `sum (F_p - F_q)^2 step` of `"* K"`."""
    return ((p.cumsum(-1) - q.cumsum(-1)).square() * step).sum(-1)


class OnAtoms(Discounting):
    """A target on fixed atoms, which watches how much of it falls outside of them."""

    writes = ("target_probs",)
    outside = 0
    """Draws in a row with most of the mass outside."""

    def target_of(self, after: Tensor, support: Tensor, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        """The column, from the distribution after each row's reward, `"N K"`.

        Raises:
            RecipeError: more than half of the mass lay outside for `PATIENCE` draws in a row.
        """
        target, outside = project(
            after, batch["rewards"][:, 0], batch["terminated"][:, 0], self.discount(batch), support
        )
        share = float(outside.mean())
        ctx.log("target/outside_support", share)
        self.outside = self.outside + 1 if share > 0.5 else 0
        if self.outside >= PATIENCE:
            raise RecipeError(
                f"more than half of the target's mass lay outside the atoms for {PATIENCE} draws in a row; "
                "widen models.policy.low and models.policy.high, or scale the rewards"
            )
        return {"target_probs": target.unsqueeze(1)}

    def state_dict(self) -> dict[str, Any]:
        return {"outside": self.outside}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.outside = int(state["outside"])


@dataclass
class DistributionTarget(Discounting):
    """The distribution of the best choice after the reward.

    Args:
        gamma: discount of one step.
        policy, target: roles.
        double: the learning net picks the action, the lagging one says how its return is distributed.
    """

    policy: str = "policy"
    target: str = "policy_target"
    double: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.uses = (self.policy, self.target)

    def pick(self, found: Tensor, own: Tensor, obs: Tensor, ctx: Ctx) -> Tensor:
        """What `found "N A K"` says of the best action: by `own "N A"`, or by the learning net's values."""
        best = ctx.models[self.policy].q(obs).argmax(-1) if self.double else own.argmax(-1)
        return found[torch.arange(len(found), device=found.device), best]


@component("credit", "categorical_target")
@dataclass
class CategoricalTarget(DistributionTarget, OnAtoms):
    """C51's target: the distribution of the best choice after the reward, moved, cut and spread on the atoms again."""

    def estimate(self, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        obs, role = batch["obs"][:, -1], ctx.models[self.target]
        probs = role.probs(obs)
        picked = self.pick(probs, probs @ role.support, obs, ctx)
        return self.target_of(picked, role.support, batch, ctx)


@component("credit", "quantile_target")
@dataclass
class QuantileTarget(DistributionTarget):
    """QR-DQN's target: every quantile of the best choice after the reward (arXiv 1710.10044)."""

    writes = ("target_quantiles",)

    def estimate(self, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        obs = batch["obs"][:, -1]
        quantiles = ctx.models[self.target].quantiles(obs)
        after = self.pick(quantiles, quantiles.mean(-1), obs, ctx)
        discount = batch.columns.get("discount", self.gamma)
        target = td_target(batch["rewards"], batch["terminated"], after, discount)
        return {"target_quantiles": target.unsqueeze(1)}


@component("credit", "ensemble_target")
@dataclass
class EnsembleTarget(OnAtoms):
    """Every member learns towards the return distribution of the whole group (arXiv 2003.10903).

    Rows come in as many equal blocks as there are members, the first block is the first member's. A row's member reads
    `(1 - mix) p_member + mix p_average` after its reward, for the action as for the target. Probabilities are averaged,
    so that disagreement stays as spread.

    Args:
        gamma: discount of one step.
        target: role of the lagging group.
        mix: 1 = the average of all, 0 = every member by itself, which is C51.
        greedy: who picks the action: the `mixed` distribution, or the member's `own`.
    """

    target: str = "policy_target"
    mix: float = 1.0
    greedy: Literal["mixed", "own"] = "mixed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mix <= 1:
            raise ValueError(f"mix must lie in [0, 1], got {self.mix}")
        self.uses = (self.target,)

    def estimate(self, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        role = ctx.models[self.target]
        probs, support = role.probs(batch["obs"][:, -1]), role.support
        mean = probs.mean(0)
        ctx.log("ensemble/disagreement", float(cramer(probs, mean.expand_as(probs), support[1] - support[0]).mean()))
        member = role.member_of(batch.rows)
        rows = torch.arange(batch.rows, device=member.device)
        own = probs[member, rows]
        mixed = own.lerp(mean, self.mix)
        best = ((own if self.greedy == "own" else mixed) @ support).argmax(-1)
        return self.target_of(mixed[rows, best], support, batch, ctx)
