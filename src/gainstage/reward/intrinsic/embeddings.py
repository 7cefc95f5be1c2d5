"""Bonuses from a learned embedding: for what an action changed (RIDE), and for what was not foretold (ICM)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.models.representation import TransitionEmbedding, forward_error
from gainstage.registry import RecipeError, component
from gainstage.reward.intrinsic.counts import Counting, Scope, count_bonus, impact
from gainstage.reward.intrinsic.fitting import descend, passes
from gainstage.reward.intrinsic.inputs import net, numbers, shape_of
from gainstage.types import Batch, Ctx
from gainstage.types.spaces import Box, Discrete, describe_space

FLAT = 1e-3
"""Std of the embedding below which it tells states apart no longer."""


@dataclass
class Embedded:
    """Embedding, inverse and forward model with an Adam of their own, apart from the policy's nets.

    Args:
        features: width of the embedding.
        hidden: widths of its hidden layers.
        lr: of their Adam.
        epochs, minibatches: passes over each rollout, and parts of one.
        forward_weight, inverse_weight: of the two losses.
    """

    features: int = 128
    hidden: list[int] = field(default_factory=lambda: [128])
    lr: float = 3e-4
    epochs: int = 1
    minibatches: int = 8
    forward_weight: float = 10.0
    inverse_weight: float = 0.1

    level = "step"
    requires = ("simulator",)
    fit_at = "after_update"

    def __post_init__(self) -> None:
        for name in ("features", "epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.hidden or self.lr <= 0 or self.forward_weight < 0 or self.inverse_weight < 0:
            raise ValueError("hidden needs a width, lr must be positive and the weights of losses at least 0")

    def start(self, ctx: Ctx) -> None:
        """Raises RecipeError: actions that are neither choices nor vectors."""
        self.space, actions = ctx.task.observation_space, ctx.task.action_space  # type: ignore[attr-defined]
        if not isinstance(actions, Discrete | Box):
            raise RecipeError(f"an embedding is learned from choices or vectors; actions are {describe_space(actions)}")
        trunk = net(shape_of(self.space), self.hidden, self.features)
        self.nets = TransitionEmbedding(trunk, self.features, actions).to(ctx.device)
        self.opt = torch.optim.Adam(self.nets.parameters(), lr=self.lr)
        self.warned = False

    @torch.no_grad()
    def embed(self, obs: Tensor) -> Tensor:
        """`"B T *"` to `"B T D"`."""
        return self.nets(numbers(self.space, obs.flatten(0, 1))).unflatten(0, obs.shape[:2])

    def fit(self, ctx: Ctx) -> None:
        """Learn from the rollout to tell actions from embeddings, and embeddings from actions."""
        fresh: Any = ctx.fresh
        if not isinstance(fresh, Batch):
            return
        real = fresh["mask"].bool()
        obs, after = (numbers(self.space, x[real]) for x in (fresh["obs"][:, :-1], fresh["next_obs"]))
        actions = fresh["actions"][real]
        parts = passes(len(obs), self.epochs, self.minibatches, obs.device)
        losses = [self._learn(obs[rows], after[rows], actions[rows]) for rows in parts]
        with torch.no_grad():
            spread = self.nets(obs).std(0, unbiased=False) if len(obs) else torch.ones(1)
        size = sum(p.numel() for p in self.nets.parameters())
        ctx.meter.charge("gradient_steps", len(losses))
        ctx.meter.charge("flops", 6.0 * self.epochs * size * len(obs))
        ctx.log("bonus/loss", sum(losses) / max(len(losses), 1))
        ctx.log("bonus/feature_std", float(spread.mean()))
        if float(spread.max()) < FLAT and not self.warned:
            self.warned = True
            warnings.warn(f"the embedding's std is below {FLAT} in every dimension, so it tells no states apart; lower "
                          "forward_weight", stacklevel=2)  # fmt: skip

    @torch.enable_grad()
    def _learn(self, obs: Tensor, after: Tensor, actions: Tensor) -> float:
        ahead, back = self.nets.errors(obs, after, actions)
        loss = self.forward_weight * ahead.mean() + self.inverse_weight * back.mean()
        return descend(self.opt, loss, "the embedding's")

    def state_dict(self) -> dict[str, Any]:
        return {"nets": self.nets.state_dict(), "optimizer": self.opt.state_dict(), "warned": self.warned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.nets.load_state_dict(state["nets"])
        self.opt.load_state_dict(state["optimizer"])
        self.warned = bool(state["warned"])


def reverts(obs: Tensor, next_obs: Tensor, start: Tensor) -> Tensor:
    """Steps that lead back to where the step before had come from, `Bool "B T"`; not where nothing had changed.

    Args:
        obs: `"B T+1 *"`.
        next_obs: `"B T *"`.
        start: `Bool "B T"`, first steps of episodes, which have none before.
    """
    before, now, after = (x.flatten(2) for x in (obs[:, :-2], obs[:, 1:-1], next_obs[:, 1:]))
    back = (before == after).all(-1) & (before != now).any(-1) & ~start[:, 1:].bool()
    return torch.cat((torch.zeros_like(start[:, :1]).bool(), back), 1)


@component("reward", "impact_bonus")
@dataclass
class ImpactBonus(Embedded):
    """Pays for what an action changed: how far a learned embedding moved, over the root of the episode's count (RIDE).

    The rewards are replaced by `clip(reward + bonus_weight x bonus, -clip, clip)` where they are learned from. The
    embedding keeps what actions can change; the count stops the policy from going to and fro between two states
    (Raileanu and Rocktaschel, arXiv 2002.12292).

    Args:
        bonus_weight: of the bonus beside the task's reward.
        clip: bound of the sum; 0 = none.
        most_clipped: share of steps that may be cut; more would hide the task's rewards.
        use_counts: divide by the root of the count.
        use_impact: false leaves the count alone.
        key, cell: what is counted, as `count_bonus` has them.
        features, hidden, lr, epochs, minibatches: of the nets, their Adam and its passes over each rollout.
        forward_weight, inverse_weight: of their losses.
    """

    bonus_weight: float = 0.1
    clip: float = 1.0
    most_clipped: float = 0.2
    use_counts: bool = True
    use_impact: bool = True
    key: str = "next_obs"
    cell: float | list[float] | Literal["exact", "auto"] = "auto"

    combine = "replace"
    needs = ("obs", "next_obs", "actions", "mask", "start", "rewards")
    writes = ("visit_counts",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip < 0 or not 0 <= self.most_clipped <= 1:
            raise ValueError(f"clip must be at least 0, most_clipped in [0, 1]; got {self.clip}, {self.most_clipped}")
        if not (self.use_counts or self.use_impact):
            raise ValueError("use_counts and use_impact are both off, so there is no bonus; set one of them")
        scope: Scope = "episode"
        self.counting = Counting(scope, self.key, self.cell)

    def observe(self, fresh: Batch, ctx: Ctx) -> None:
        """Count, and say how often a step led back to the state before, and how much more deeds change than moves."""
        self.counting.observe(fresh, ctx)
        real = fresh["mask"].bool()
        if bool(real.any()):
            ctx.log(
                "bonus/reverts", float(reverts(fresh["obs"], fresh["next_obs"], fresh["start"])[real].float().mean())
            )
        deeds = torch.zeros_like(real)
        for fact in ("info/opened", "info/picked"):
            deeds |= fresh[fact].bool() if fact in fresh else False
        if bool((deeds & real).any()):
            change = impact(self.embed(fresh["obs"][:, :-1]), self.embed(fresh["next_obs"]), torch.ones_like(real))
            ctx.log("bonus/deeds", float(change[deeds & real].mean() / change[real & ~deeds].mean().clamp(min=1e-12)))

    def bonus(self, batch: Batch) -> Tensor:
        """`Float "B T"`, 0 where nothing was decided."""
        n = batch["visit_counts"] if self.use_counts else torch.ones_like(batch["visit_counts"])
        if self.use_impact:
            paid = impact(self.embed(batch["obs"][:, :-1]), self.embed(batch["next_obs"]), n)
        else:
            paid = count_bonus(n)
        return torch.where(batch["mask"].bool(), paid, 0.0)

    def shape(self, batch: Batch, ctx: Ctx) -> Tensor:
        """`Float "B T"`.

        Raises:
            ValueError: the clip cuts more steps than `most_clipped`.
        """
        bonus = self.bonus(batch)
        total = batch["rewards"] + self.bonus_weight * bonus
        ctx.log("bonus/raw", float(bonus.mean()))
        ctx.log("bonus/mean", self.bonus_weight * float(bonus.mean()))
        if not self.clip:
            return total
        cut = float((total.abs() > self.clip).float().mean())
        ctx.log("bonus/clipped", cut)
        if cut > self.most_clipped:
            raise ValueError(
                f"impact_bonus: {cut:.0%} of the rewards are cut at {self.clip}, which hides what the task pays; lower "
                "reward.impact_bonus.bonus_weight (or raise clip or most_clipped)"
            )
        return total.clamp(-self.clip, self.clip)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "counting": self.counting.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.counting.load_state_dict(state["counting"])


@component("reward", "curiosity_bonus")
@dataclass
class CuriosityBonus(Embedded):
    """Adds half the squared error of a forward model in a learned embedding (ICM, Pathak et al., arXiv 1705.05363).

    What cannot be foretold, as noise on a screen, keeps its bonus for ever.

    Args:
        features, hidden, lr, epochs, minibatches: of the nets, their Adam and its passes over each rollout.
        forward_weight, inverse_weight: of their losses.
    """

    needs = ("obs", "next_obs", "actions", "mask")

    @torch.no_grad()
    def shape(self, batch: Batch, ctx: Ctx) -> Tensor:
        """`Float "B T"`."""
        obs, after = batch["obs"][:, :-1], batch["next_obs"]
        ahead = self.nets.predict(self.embed(obs).flatten(0, 1), batch["actions"].flatten(0, 1))
        error = 0.5 * forward_error(ahead, self.embed(after).flatten(0, 1)).square().unflatten(0, obs.shape[:2])
        bonus = torch.where(batch["mask"].bool(), error, 0.0)
        ctx.log("bonus/mean", float(bonus.mean()))
        return bonus
