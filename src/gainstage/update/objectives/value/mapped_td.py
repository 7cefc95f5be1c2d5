"""Regression of several heads of action values, each in a space of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from gainstage.ops.value_maps import inverse
from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx, column
from gainstage.update.learner import Learner, Stats
from gainstage.update.optimizers.build import NonFinite

column("td_error", "step")


@component("update")
@dataclass
class MappedTd(Learner):
    """Huber's loss of each channel's output to `mapped_targets`, added over channels, mean over rows.

    `delta` is where it turns linear, in the mapped space. `td_error` is the sum of the channels' distances.
    """

    train: list[str] = field(default_factory=lambda: ["policy"])
    lr: float = 1e-3
    clip: float = 0.0
    delta: float = 1.0

    splits = False
    needs = ("obs", "actions", "mapped_targets", "weight_draw?")
    writes = ("td_error",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.train) != 1:
            raise RecipeError(f"update.mapped_td: train names one role with channels, got {self.train}")

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        role = ctx.models[self.train[0]]
        rows = torch.arange(mb.rows, device=mb.device)
        out = role.mapped(mb["obs"][:, 0])[:, rows, mb["actions"][:, 0]]
        target = mb["mapped_targets"][:, 0].T
        heads = huber_loss(out, target, reduction="none", delta=self.delta)
        if not bool(torch.isfinite(heads).all()):
            raise NonFinite(f"the loss of head {int((~torch.isfinite(heads)).any(1).nonzero()[0])} is not finite")
        error = (out.detach() - target).abs().sum(0).float()
        mb["td_error"] = error.unsqueeze(1)
        weight = mb["weight_draw"] if "weight_draw" in mb else torch.ones_like(error)
        stats: Stats = {"q/mean": role.total(inverse(role.maps, out.detach())).mean(), "q/error": error.mean()}
        return (heads.sum(0) * weight).mean(), stats
