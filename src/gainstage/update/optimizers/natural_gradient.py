"""A step of the policy that stays within a KL divergence of the one that collected (TRPO, arXiv 1502.05477)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gainstage.ops.distributions import held
from gainstage.ops.masked import masked_mean
from gainstage.ops.solvers import conjugate_gradient, flatten, hessian_product, shift
from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx
from gainstage.update.optimizers.build import NonFinite

Scalar = Callable[[], Tensor]
FLAT = 1e-6
"""Advantages whose range is below this share of the largest one are equal: there is nothing to follow."""


@dataclass(frozen=True)
class Trust:
    """How far a step may go, and how it is found.

    Args:
        delta: largest KL divergence, nats.
        damping: added to the curvature's diagonal; more makes steps shorter and safer.
        iters: of conjugate gradient.
        tol: squared residual at which it stops.
        shrink: factor of one backtrack.
        backtracks: lengths that are tried, the full one included.
    """

    delta: float = 0.01
    damping: float = 0.1
    iters: int = 10
    tol: float = 1e-10
    shrink: float = 0.8
    backtracks: int = 10

    def __post_init__(self) -> None:
        if not (self.delta > 0 and self.damping >= 0 and self.iters >= 1 and self.backtracks >= 1):
            raise ValueError(f"delta must be > 0, damping >= 0, iters and backtracks >= 1, got {self}")
        if not 0 < self.shrink < 1:
            raise ValueError(f"shrink must lie in (0, 1), got {self.shrink}")


@dataclass(frozen=True)
class Taken:
    """What became of a step: whether it was taken, its KL, what the surrogate gained, the share of the length."""

    accepted: bool
    kl: float = 0.0
    improvement: float = 0.0
    length: float = 0.0
    why: str = ""


def natural_step(parameters: Sequence[nn.Parameter], surrogate: Scalar, kl: Scalar, trust: Trust) -> Taken:
    """Move `parameters` along `F^-1 g`, as far as `kl <= delta` and the surrogate rises; else leave them as they are.

    Those that the surrogate does not depend on stay where they are.

    The full step is `sqrt(2 delta / x F x) x` with `F x = g`, F the Hessian of `kl` where the parameters are, damped.

    Args:
        surrogate: what is to rise.
        kl: divergence from the policy before, 0 with zero gradient where the parameters are (the old distribution
            must be detached).

    Raises:
        NonFinite: surrogate or gradient is not finite.
    """
    before = surrogate()
    found = torch.autograd.grad(before, parameters, allow_unused=True)
    parameters = [p for p, gradient in zip(parameters, found, strict=True) if gradient is not None]
    g, start = flatten([gradient for gradient in found if gradient is not None]), float(before.detach())
    if not (math.isfinite(start) and bool(torch.isfinite(g).all())):
        raise NonFinite("the surrogate of the trust region or its gradient is not finite")
    if float(g @ g) <= trust.tol:  # the solver would stop before its first product
        return Taken(False, why="flat")
    product = hessian_product(torch.autograd.grad(kl(), parameters, create_graph=True), parameters, trust.damping)
    x = conjugate_gradient(product, g, trust.iters, trust.tol)
    curve = float(x @ product(x))
    if not (math.isfinite(curve) and curve > 0):
        return Taken(False, why="curvature")
    full = math.sqrt(2 * trust.delta / curve) * x
    origin = flatten([p.detach() for p in parameters])
    for number in range(trust.backtracks):
        length = trust.shrink**number
        shift(parameters, origin, length * full)
        with torch.no_grad():
            gain, moved = float(surrogate()) - start, float(kl())
        if gain > 0 and moved <= trust.delta:
            return Taken(True, moved, gain, length)
    shift(parameters, origin, torch.zeros_like(full))
    return Taken(False, why="linesearch")


@component("update")
@dataclass
class NaturalGradient:
    """One trust-region step of a policy on the whole batch, before it is cut into minibatches for others.

    The surrogate is the mean of `ratio x advantage` over decisions, weighted by `importance` where credit wrote it.
    Only parameters that the actions depend on move; values have a learner of their own after it (`value`).

    Args:
        train: the policy.
        delta: largest mean KL(before || after), nats. Lower is safer and slower.
        damping: added to the curvature's diagonal.
        iters: of conjugate gradient.
        backtracks: step lengths tried, each 0.8 of the one before.
        entropy: weight of the mean entropy in the surrogate.
        every: 2 = each second batch.
    """

    train: list[str] = field(default_factory=lambda: ["policy"])
    delta: float = 0.01
    damping: float = 0.1
    iters: int = 10
    backtracks: int = 10
    entropy: float = 0.0
    every: int = 1

    needs = ("mask", "advantages", "behaviour_logprobs", "importance?")

    def __post_init__(self) -> None:
        if len(self.train) != 1:
            raise ValueError(f"train names one policy, got {self.train}")
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}")
        self.trust = Trust(self.delta, self.damping, self.iters, backtracks=self.backtracks)

    def start(self, ctx: Ctx) -> None:
        policy = ctx.models[self.train[0]]
        if not hasattr(policy, "distribution"):
            raise RecipeError(
                f"update.natural_gradient: the role {self.train[0]!r} gives no distributions to measure a divergence "
                "between; it is for nets that act (actor_critic), not for language models"
            )

    def solve(self, batch: Batch, ctx: Ctx) -> dict[str, float]:
        """The step. Its numbers: `kl/step`, `surrogate/gain`, `step/length`, and why none was taken."""
        mask, advantages = batch["mask"].bool(), batch["advantages"]
        if not bool(mask.any()) or _flat(advantages[mask]):
            return _numbers(Taken(False, why="flat"))
        policy = ctx.models[self.train[0]]
        weight = batch.columns.get("importance")
        with torch.no_grad():
            old = held(policy.distribution(batch))  # a log-std that is a parameter would move along
            old_logprobs = old.log_prob(batch["actions"])

        def surrogate() -> Tensor:
            new = policy.distribution(batch)
            gain = (new.log_prob(batch["actions"]) - old_logprobs).exp() * advantages
            mean = masked_mean(gain if weight is None else weight * gain, mask)
            return mean + self.entropy * masked_mean(new.entropy(), mask) if self.entropy else mean

        def kl() -> Tensor:
            return masked_mean(old.kl(policy.distribution(batch)), mask)

        with torch.enable_grad():
            trained = [p for p in policy.module.parameters() if p.requires_grad]
            taken = natural_step(trained, surrogate, kl, self.trust)
        ctx.meter.charge("trained_tokens", float(mask.sum()))
        policy.charge((3 + 4 * (self.iters + 1)) * mask.numel(), grad=False)
        if taken.accepted:
            ctx.models.updated(self.train[0])
            ctx.meter.charge("gradient_steps", 1)
        if taken.why == "curvature":
            warnings.warn(
                "update.natural_gradient: curvature not positive, no step was taken; raise damping", stacklevel=2
            )
        return {**_numbers(taken), "entropy/mean": float(masked_mean(old.entropy(), mask))}


def _flat(advantages: Tensor) -> bool:
    if not bool(torch.isfinite(advantages).all()):
        raise NonFinite("an advantage is not finite")
    return float(advantages.max() - advantages.min()) <= FLAT * float(advantages.abs().max())


def _numbers(taken: Taken) -> dict[str, float]:
    return {
        "kl/step": taken.kl, "surrogate/gain": taken.improvement, "step/length": taken.length,
        "step/taken": float(taken.accepted), **({f"step/{taken.why}": 1.0} if taken.why else {}),
    }  # fmt: skip
