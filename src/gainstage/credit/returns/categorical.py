"""Targets that are distributions of the return: on fixed atoms, of one net or of a group of them, and as quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.credit.returns.td_targets import check_discounts
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


def ensemble_mixture(probs: Tensor, mix: float) -> Tensor:
    """Each member's distribution drawn towards that of all: `(1 - mix) p_m + mix mean_m p`, `"M N A K"` as `probs`.

    Probabilities are averaged, so that disagreement stays as spread (arXiv 2003.10903).
    """
    return probs.lerp(probs.mean(0, keepdim=True).expand_as(probs), mix)


def cramer(p: Tensor, q: Tensor, step: float | Tensor) -> Tensor:
    """Squared Cramer distance of distributions on atoms `step` apart, `"*"`: `sum (F_p - F_q)^2 step` of `"* K"`."""
    return ((p.cumsum(-1) - q.cumsum(-1)).square() * step).sum(-1)


class Outside:
    """Watches how much of the targets falls outside the support."""

    def __init__(self) -> None:
        self.draws = 0

    def see(self, share: float, ctx: Ctx) -> None:
        """Raises RecipeError: more than half for `PATIENCE` draws in a row."""
        ctx.log("target/outside_support", share)
        self.draws = self.draws + 1 if share > 0.5 else 0
        if self.draws >= PATIENCE:
            raise RecipeError(
                f"more than half of the target's mass lay outside the atoms for {PATIENCE} draws in a row; "
                "widen models.policy.low and models.policy.high, or scale the rewards"
            )


@dataclass
class DistributionTarget:
    """What every such target needs: rewards, ends, the distribution after them.

    Args:
        gamma: discount of one step.
        policy, target: roles.
        double: the learning net picks the action, the lagging one says how its return is distributed.
    """

    gamma: float = 0.99
    policy: str = "policy"
    target: str = "policy_target"
    double: bool = False

    needs = ("obs", "rewards", "terminated", "discount?")

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie in [0, 1], got {self.gamma}")
        self.uses = (self.policy, self.target)

    def start(self, ctx: Ctx) -> None:
        check_discounts(ctx, self.gamma)

    def discount(self, batch: Batch) -> float | Tensor:
        return batch["discount"][:, 0] if "discount" in batch else self.gamma

    def pick(self, found: Tensor, own: Tensor, obs: Tensor, ctx: Ctx) -> Tensor:
        """What `found "N A K"` says of the best action: by `own "N A"`, or by the learning net's values."""
        best = ctx.models[self.policy].q(obs).argmax(-1) if self.double else own.argmax(-1)
        return found[torch.arange(len(found), device=found.device), best]


@component("credit", "categorical_target")
@dataclass
class CategoricalTarget(DistributionTarget):
    """C51's target: the distribution of the best choice after the reward, moved, cut and spread on the atoms again."""

    writes = ("target_probs",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.outside = Outside()

    def estimate(self, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        obs, role = batch["obs"][:, -1], ctx.models[self.target]
        probs = role.probs(obs)
        picked = self.pick(probs, probs @ role.support, obs, ctx)
        target, outside = project(
            picked, batch["rewards"][:, 0], batch["terminated"][:, 0], self.discount(batch), role.support
        )
        self.outside.see(float(outside.mean()), ctx)
        return {"target_probs": target.unsqueeze(1)}

    def state_dict(self) -> dict[str, Any]:
        return {"outside": self.outside.draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.outside.draws = int(state["outside"])


@component("credit", "quantile_target")
@dataclass
class QuantileTarget(DistributionTarget):
    """QR-DQN's target: every quantile of the best choice after the reward (arXiv 1710.10044)."""

    writes = ("target_quantiles",)

    def estimate(self, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        obs = batch["obs"][:, -1]
        quantiles = ctx.models[self.target].quantiles(obs)
        after = self.pick(quantiles, quantiles.mean(-1), obs, ctx)
        discount = (
            torch.as_tensor(self.discount(batch), dtype=after.dtype, device=after.device)
            .expand(len(after))
            .unsqueeze(1)
        )
        ends = batch["terminated"][:, 0].bool().unsqueeze(1)
        target = batch["rewards"][:, :1] + torch.where(ends, torch.zeros_like(after), discount * after)
        return {"target_quantiles": target.unsqueeze(1)}


@component("credit", "ensemble_target")
@dataclass
class EnsembleTarget:
    """Every member learns towards the return distribution of the whole group (arXiv 2003.10903).

    Rows come in as many equal blocks as there are members, the first block is the first member's. A row's member reads
    `(1 - mix) p_member + mix p_average` after its reward, for the action as for the target.

    Args:
        gamma: discount of one step.
        target: role of the lagging group.
        mix: 1 = the average of all, 0 = every member by itself, which is C51.
        greedy: who picks the action: the `mixed` distribution, or the member's `own`.
    """

    gamma: float = 0.99
    target: str = "policy_target"
    mix: float = 1.0
    greedy: Literal["mixed", "own"] = "mixed"

    needs = ("obs", "rewards", "terminated", "discount?")
    writes = ("target_probs",)

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1 or not 0 <= self.mix <= 1:
            raise ValueError(f"gamma and mix must lie in [0, 1], got {self.gamma} and {self.mix}")
        self.uses = (self.target,)
        self.outside = Outside()

    def start(self, ctx: Ctx) -> None:
        check_discounts(ctx, self.gamma)

    def estimate(self, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        role = ctx.models[self.target]
        probs, support = role.probs(batch["obs"][:, -1]), role.support
        mean = probs.mean(0)
        ctx.log("ensemble/disagreement", float(cramer(probs, mean.expand_as(probs), support[1] - support[0]).mean()))
        member = role.member_of(batch.rows)
        rows = torch.arange(batch.rows, device=member.device)
        mixed = ensemble_mixture(probs, self.mix)[member, rows]
        best = ((probs[member, rows] if self.greedy == "own" else mixed) @ support).argmax(-1)
        discount = batch["discount"][:, 0] if "discount" in batch else self.gamma
        target, outside = project(
            mixed[rows, best], batch["rewards"][:, 0], batch["terminated"][:, 0], discount, support
        )
        self.outside.see(float(outside.mean()), ctx)
        return {"target_probs": target.unsqueeze(1)}

    def state_dict(self) -> dict[str, Any]:
        return {"outside": self.outside.draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.outside.draws = int(state["outside"])
