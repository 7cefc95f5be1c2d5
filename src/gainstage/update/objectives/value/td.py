"""Regression of action values onto targets: the critic of every method that replays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx, column
from gainstage.update.learner import Learner, Stats

column("td_error", "step")


def td_loss(
    q: Tensor, target: Tensor, weight: Tensor | None = None, kind: Literal["mse", "huber"] = "mse", delta: float = 1.0
) -> Tensor:
    """Sum over members of the mean error, a scalar: `q "M N"`, `target "N"`, gradient through `q`.

    Args:
        weight: `Float "N"`, importance of each row.
        kind: `mse` is the squared error, `huber` turns linear at `delta` (half the square below it).
    """
    wanted = target.detach().expand_as(q)
    error = (q - wanted).square() if kind == "mse" else huber_loss(q, wanted, reduction="none", delta=delta)
    return (error if weight is None else error * weight).mean(-1).sum()


@component("update")
@dataclass
class Td(Learner):
    """Fits action values to the targets that credit wrote (`returns`).

    `kind` is `mse` or `huber` (`delta` = where it turns linear); `weight` scales the loss.
    """

    train: list[str] = field(default_factory=lambda: ["critic"])
    lr: float = 3e-4
    clip: float = 0.0
    kind: Literal["mse", "huber"] = "mse"
    delta: float = 1.0
    weight: float = 1.0

    splits = False
    needs = ("obs", "actions", "returns", "weight_draw?")
    writes = ("td_error",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.train) != 1:
            raise RecipeError(f"update.td: train names one role with action values, got {self.train}")

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        q = self.values(mb, ctx.models[self.train[0]])
        target = mb["returns"][:, 0]
        mb["td_error"] = (q.detach().mean(0) - target).unsqueeze(1)
        stats: Stats = {"q/mean": q.detach().mean(), "q/error": mb["td_error"].abs().mean()}
        return self.weight * td_loss(q, target, mb.columns.get("weight_draw"), self.kind, self.delta), stats

    def values(self, mb: Batch, critic: Any) -> Tensor:
        """Values of the stored actions, `"M N"`."""
        obs, actions = mb["obs"][:, 0], mb["actions"][:, 0]
        if actions.dtype == torch.int64:
            return critic.q(obs).gather(-1, actions.unsqueeze(-1)).squeeze(-1).unsqueeze(0)
        return critic.q(obs, actions)
