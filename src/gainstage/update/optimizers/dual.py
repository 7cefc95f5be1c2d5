"""Dual variables: a weight that rises while its constraint is violated and falls while it is not."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx
from gainstage.types.spaces import Box
from gainstage.update.learner import Learner, Stats


@component("update")
@dataclass
class EntropyTemperature(Learner):
    """SAC's temperature: holds the policy's entropy at `target` nats (arXiv 1812.05905, section 5).

    Without `target`: minus the number of action dimensions. Reads the log-probs of the actor's step before it.
    """

    train: list[str] = field(default_factory=lambda: ["alpha"])
    lr: float = 3e-4
    clip: float = 0.0
    target: float | None = None

    splits = False
    needs = ("fresh_logprobs",)

    def start(self, ctx: Ctx) -> None:
        super().start(ctx)
        space = ctx.task.action_space  # type: ignore[attr-defined]
        if self.target is None:
            if not isinstance(space, Box):
                raise RecipeError("update.entropy_temperature: set target (nats); actions are not continuous")
            self.target = -float(space.low.numel())

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        log_alpha = ctx.models[self.train[0]].module.log
        assert self.target is not None
        gap = -(mb["fresh_logprobs"].mean() + self.target)
        return log_alpha * gap, {"alpha": torch.exp(log_alpha.detach())}
