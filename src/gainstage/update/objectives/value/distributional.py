"""Regression of return distributions: towards probabilities of atoms, and towards samples by quantiles."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx, column
from gainstage.update.learner import Learner, Stats
from gainstage.update.optimizers.build import NonFinite

column("td_error", "step")


def categorical_td(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy `-sum_k m_k log p_k` of each row, `"*"`, from `logits "* K"` and probabilities `target "* K"`."""
    return -(target * log_softmax(logits, -1)).sum(-1)


def quantile_huber(quantiles: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile Huber loss of each row, `"N"`: sum over quantiles, mean over targets (arXiv 1710.10044, eq. 10).

    Args:
        quantiles: `"N K"`, the k-th at the level `(k + 1/2) / K`; gradient flows through them.
        target: `"N J"`, returns, each as likely as the others.
        kappa: error up to which the loss is quadratic; 0 = the plain quantile loss.
    """
    levels = (torch.arange(quantiles.shape[1], device=quantiles.device) + 0.5) / quantiles.shape[1]
    error = target.unsqueeze(1) - quantiles.unsqueeze(2)  # N K J
    size = error.abs()
    huber = size if kappa == 0 else torch.where(size <= kappa, error.square() / 2, kappa * (size - kappa / 2)) / kappa
    return ((levels.reshape(1, -1, 1) - (error.detach() < 0).to(error.dtype)).abs() * huber).mean(2).sum(1)


def entropy(probs: Tensor) -> Tensor:
    """`-sum p log p` over the last axis; an atom without mass adds nothing."""
    return torch.special.entr(probs).sum(-1)


@dataclass
class DistributionLearner(Learner):
    """What learners of one role's return distributions share."""

    train: list[str] = field(default_factory=lambda: ["policy"])
    lr: float = 2.5e-4
    clip: float = 10.0

    splits = False
    target = "target_probs"
    """Column of targets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.train) != 1:
            raise RecipeError(f"update: train names one role with return distributions, got {self.train}")
        self.needs = ("obs", "actions", "weight_draw?", self.target)
        self.writes = ("td_error",)

    def close(self, mb: Batch, loss: Tensor, error: Tensor, q: Tensor) -> tuple[Tensor, Stats]:
        """Mean of the rows' losses by their weights, and what replay by priority reads."""
        mb["td_error"] = error.detach().unsqueeze(1)
        if "weight_draw" in mb:
            loss = loss * mb["weight_draw"]
        return loss.mean(), {"q/mean": q.detach().mean(), "q/error": error.detach().abs().mean()}


@component("update", "categorical_td")
@dataclass
class CategoricalTd(DistributionLearner):
    """Draws the distribution of the action taken towards `target_probs` by cross-entropy (C51).

    `td_error` is the KL from the target, which is 0 where it is met: the priority of Rainbow (arXiv 1710.02298).
    """

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        role = ctx.models[self.train[0]]
        logits = role.logits(mb["obs"][:, 0])[torch.arange(mb.rows, device=mb.device), mb["actions"][:, 0]]
        target = mb["target_probs"][:, 0]
        loss = categorical_td(logits, target)
        return self.close(mb, loss, loss - entropy(target), logits.softmax(-1) @ role.support)


@component("update", "quantile_td")
@dataclass
class QuantileTd(DistributionLearner):
    """Moves the quantiles of the action taken towards `target_quantiles` (QR-DQN). `kappa` = width of the square."""

    kappa: float = 1.0

    target = "target_quantiles"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kappa >= 0:
            raise ValueError(f"kappa must be at least 0, got {self.kappa}")

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        every = ctx.models[self.train[0]].quantiles(mb["obs"][:, 0])
        quantiles = every[torch.arange(mb.rows, device=mb.device), mb["actions"][:, 0]]
        target = mb["target_quantiles"][:, 0]
        error = quantiles.mean(1) - target.mean(1)
        return self.close(mb, quantile_huber(quantiles, target, self.kappa), error, quantiles.mean(1))


@component("update", "ensemble_td")
@dataclass
class EnsembleTd(DistributionLearner):
    """Every member's cross-entropy to `target_probs` on its own block of rows; the members' losses add.

    Members share no weight, so each one's gradient is that of its own loss. `clip` would bound the norm over all of
    them together, and so tie their steps to one another.
    """

    clip: float = 0.0

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        role = ctx.models[self.train[0]]
        logits = role.own_logits(mb["obs"][:, 0])[torch.arange(mb.rows, device=mb.device), mb["actions"][:, 0]]
        target = mb["target_probs"][:, 0]
        rows = categorical_td(logits, target)
        per_member = rows.reshape(role.members, -1).detach().mean(1)
        if not bool(torch.isfinite(per_member).all()):
            raise NonFinite(f"the loss of member {int((~torch.isfinite(per_member)).nonzero()[0])} is not finite")
        loss, stats = self.close(mb, rows, rows - entropy(target), logits.softmax(-1) @ role.support)
        return loss * role.members, stats
