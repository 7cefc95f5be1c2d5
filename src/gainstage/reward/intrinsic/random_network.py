"""Random network distillation: the error of a net that learns to predict a random one is a bonus for what is new.

Burda et al., "Exploration by random network distillation" (arXiv 1810.12894), with the constants of its code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.ops.filters import forward_filter
from gainstage.ops.moments import RunningMoments
from gainstage.registry import component
from gainstage.reward.intrinsic.fitting import descend, passes
from gainstage.reward.intrinsic.inputs import net, numbers, random_actions, shape_of
from gainstage.types import Batch, Ctx, column

column("bonus", "step")

FIRST = 1e-4
"""Weight of the moments that everything starts from (mean 0, variance 1)."""
CLIP = 5.0
"""Bound of a standardised observation."""
FLOOR = 1e-4
"""Least std of observations and of filtered bonuses."""
PARALLEL = 32
"""Copies whose steps train the predictor in full; of more, as many steps are drawn."""


def prediction_error(target: Tensor, predicted: Tensor) -> Tensor:
    """Mean squared difference over the features, `"N K" -> "N"`."""
    return (target - predicted).square().mean(-1)


@component("reward")
@dataclass
class NoveltyBonus:
    """A bonus for observations unlike those seen: the error of a predictor of a frozen random net (RND).

    The bonus of a step looks at what the action led to, and is divided by the running std of its own discounted sum. It
    is a stream of its own (column `bonus`, for `gae.streams`) unless `into` adds it to the rewards. What is reported,
    and evaluation, stay as the task pays.

    Args:
        into: `bonus`, or `rewards` to add it to what the task pays.
        features: outputs of the random net.
        hidden: widths of its hidden layers; the predictor has two more.
        gamma: discount of the sum whose std divides the bonus; that of the stream.
        lr: of the predictor's Adam; too high, and the bonus is gone before the policy has moved.
        epochs, minibatches: passes of the predictor over each rollout, and parts of one.
        share: of the steps that it learns from; null = all of 32 copies, as many steps where there are more.
        warmup: environment steps of a random policy that the statistics of observations start from.
    """

    into: Literal["bonus", "rewards"] = "bonus"
    features: int = 32
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    gamma: float = 0.99
    lr: float = 1e-3
    epochs: int = 4
    minibatches: int = 4
    share: float | None = None
    warmup: int = 6_400

    level = "step"
    requires = ("simulator",)
    needs = ("next_obs", "mask")
    fit_at = "after_update"

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie in [0, 1], got {self.gamma}")
        for name in ("features", "epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.hidden or self.lr <= 0 or self.warmup < 0:
            raise ValueError(
                f"hidden needs a width, lr > 0 and warmup >= 0, got {self.hidden}, {self.lr}, {self.warmup}"
            )
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {self.share}")
        self.column = self.into
        self.writes = (self.into,)

    # -- nets ---------------------------------------------------------------------------------------------------------

    def start(self, ctx: Ctx) -> None:
        """Draw both nets, and let a random policy fill the statistics of observations."""
        self.space = ctx.task.observation_space  # type: ignore[attr-defined]
        shape = shape_of(self.space)
        self.target = net(shape, self.hidden, self.features).to(ctx.device).requires_grad_(False)
        wider = [*self.hidden, *self.hidden[-1:] * 2]
        self.predictor = net(shape, wider, self.features).to(ctx.device)
        self.opt = torch.optim.Adam(self.predictor.parameters(), lr=self.lr)
        self.seen, self.sums = RunningMoments(shape, prior=FIRST), RunningMoments(prior=FIRST)
        self.carry: Tensor | None = None
        if self.warmup:
            self._warm_up(ctx)

    def _warm_up(self, ctx: Ctx) -> None:
        env = ctx.task.make(PARALLEL, ctx.device)  # type: ignore[attr-defined]
        env.reset([int(seed) for seed in torch.randint(2**31, (PARALLEL,))])
        for _ in range(math.ceil(self.warmup / PARALLEL)):
            stepped = env.step(random_actions(env.action_space, PARALLEL, ctx.device))
            self.seen.update(numbers(self.space, stepped.next_obs))
        env.close()
        ctx.meter.charge("env_steps", float(PARALLEL * math.ceil(self.warmup / PARALLEL)))

    def standardised(self, obs: Tensor) -> Tensor:
        """What both nets read: `clip((o - mean) / std, -5, 5)`."""
        x = numbers(self.space, obs)
        mean, std = (m.to(x.device, torch.float32) for m in (self.seen.mean, self.seen.std.clamp(min=FLOOR)))
        return ((x - mean) / std).clamp(-CLIP, CLIP)

    @property
    def scale(self) -> float:
        """What a bonus is divided by: the std of its discounted sum."""
        return float(self.sums.std.clamp(min=FLOOR))

    @torch.no_grad()
    def raw(self, next_obs: Tensor) -> Tensor:
        """The prediction error at `"B T *"`, `"B T"`.

        Raises:
            FloatingPointError: it is not finite; the message names the copy.
        """
        x = self.standardised(next_obs.flatten(0, 1))
        error = prediction_error(self.target(x), self.predictor(x)).reshape(next_obs.shape[:2])
        if not bool(torch.isfinite(error).all()):
            copy, step = torch.nonzero(~torch.isfinite(error))[0].tolist()
            raise FloatingPointError(
                f"novelty_bonus: the bonus of copy {copy} at step {step} is {float(error[copy, step])}; "
                "lower reward.novelty_bonus.lr, or mend the environment's observations"
            )
        return error

    # -- hooks --------------------------------------------------------------------------------------------------------

    def observe(self, fresh: Batch, ctx: Ctx) -> None:
        """Follow the discounted sums of the bonus through the fragment that was just collected, a row a copy."""
        bonus, real = self.raw(fresh["next_obs"]).double(), fresh["mask"].bool()
        sums, self.carry = forward_filter(bonus, self.carry, self.gamma, real)
        self.sums.update(sums, real)
        ctx.log("bonus/raw", float(bonus[real].mean()) if bool(real.any()) else 0.0)
        ctx.log("bonus/scale", self.scale)

    def shape(self, batch: Batch, ctx: Ctx) -> Tensor:
        """`Float "B T"`: the error over the std of its discounted sum."""
        bonus = torch.where(batch["mask"].bool(), self.raw(batch["next_obs"]), 0.0) / self.scale
        ctx.log("bonus/mean", float(bonus.mean()))
        return bonus

    def fit(self, ctx: Ctx) -> None:
        """Take the rollout's observations into the statistics, and let the predictor learn from them."""
        fresh: Any = ctx.fresh
        if not isinstance(fresh, Batch):
            return
        real = fresh["mask"].bool()
        self.seen.update(numbers(self.space, fresh["next_obs"][real]))
        x = self.standardised(fresh["next_obs"][real])
        with torch.no_grad():
            wanted = self.target(x)
        share = min(1.0, PARALLEL / fresh.rows) if self.share is None else self.share
        losses = []
        for rows in passes(len(x), self.epochs, self.minibatches, x.device):
            kept = (torch.rand(len(rows), device=x.device) < share).float()
            losses.append(self._learn(x[rows], wanted[rows], kept))
        sizes = [sum(p.numel() for p in module.parameters()) for module in (self.target, self.predictor)]
        ctx.meter.charge("gradient_steps", len(losses))
        ctx.meter.charge("flops", (4 * sum(sizes) + 6 * self.epochs * sizes[1]) * float(len(x)))
        ctx.log("bonus/loss", sum(losses) / max(len(losses), 1))

    @torch.enable_grad()
    def _learn(self, x: Tensor, wanted: Tensor, kept: Tensor) -> float:
        loss = (kept * prediction_error(wanted, self.predictor(x))).sum() / kept.sum().clamp(min=1)
        return descend(self.opt, loss, "novelty_bonus: the predictor's")

    def state_dict(self) -> dict[str, Any]:
        """Both nets: a new random target after a restart would make everything new again."""
        return {
            "target": self.target.state_dict(), "predictor": self.predictor.state_dict(),
            "optimizer": self.opt.state_dict(), "seen": self.seen.state_dict(), "sums": self.sums.state_dict(),
            "carry": self.carry,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.target.load_state_dict(state["target"])
        self.predictor.load_state_dict(state["predictor"])
        self.opt.load_state_dict(state["optimizer"])
        self.seen.load_state_dict(state["seen"])
        self.sums.load_state_dict(state["sums"])
        self.carry = state["carry"]
