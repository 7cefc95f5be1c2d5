"""Regression of values onto returns: the critic of PPO and A2C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from gainstage.ops.masked import masked_var, over
from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx, PolicyOut
from gainstage.update.learner import Learner, Stats
from gainstage.update.objectives.policy.aggregation import Aggregation, token_weights


def value_loss(
    values: Tensor,
    returns: Tensor,
    mask: Tensor,
    old: Tensor | None = None,
    clip: float | None = None,
    kind: Literal["mse", "huber"] = "mse",
    delta: float = 1.0,
) -> Tensor:
    """Half the squared error (or Huber's) at every decision, `"B T"`, 0 outside the mask; gradient through `values`.

    With `clip` the error is the larger of that of `values` and that of `old + clip(values - old, -clip, clip)`, so
    that a critic gains nothing by moving further than `clip` in one update (PPO, arXiv 1707.06347; the reference
    implementation's value clipping).

    Args:
        values, returns, old: `Float "B T"` (or `"B T S"` for S streams of rewards); what stands outside the mask is not
            read.
        clip: in units of the return; None = off.
        delta: where Huber's loss turns from quadratic to linear.

    Raises:
        ValueError: unknown kind, `clip` without `old`.
    """
    if kind not in ("mse", "huber"):
        raise ValueError(f"value.kind must be mse or huber, got {kind!r}")
    if clip is not None and old is None:
        raise ValueError("value_loss: clip needs the old values")
    mask = over(mask.bool(), values).expand_as(values)
    target = torch.where(mask, returns.detach(), 0.0)
    safe = torch.where(mask, values, 0.0)

    def error(prediction: Tensor) -> Tensor:
        if kind == "huber":
            return torch.nn.functional.huber_loss(prediction, target, reduction="none", delta=delta)
        return 0.5 * (prediction - target) ** 2

    if clip is None or old is None:
        return error(safe)
    before = torch.where(mask, old.detach(), 0.0)
    return torch.maximum(error(safe), error(before + (safe - before).clamp(-clip, clip)))


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """`1 - Var(returns - values) / Var(returns)` over the mask: 1 = perfect; 0 = a constant, or returns don't vary."""
    mask = over(mask, returns)
    spread = masked_var(returns, mask)
    return float(1 - masked_var(returns - values, mask) / spread) if spread > 0 else 0.0


def _added(x: Tensor) -> Tensor:
    """Several streams `"B T S"` added up, `"B T"`."""
    return x.sum(-1) if x.dim() == 3 else x


Weight = Annotated[float, Field(ge=0)]


@component("objective", needs=("mask", "returns", "values?"), wants=("values",))
def value_error(
    out: PolicyOut,
    mb: Batch,
    *,
    weight: Weight | list[Weight] = 0.5,
    clip: Annotated[float, Field(gt=0)] | None = None,
) -> tuple[Tensor, Stats]:
    """`weight` times the squared error of a policy's own values, for nets that are actor and critic in one.

    The error itself is `(V - R)^2`; `clip` bounds how far a value may move in one update, in units of the return. The
    errors of several streams are added, each with a weight of its own where `weight` is a list.

    Raises:
        RecipeError: the policy gives no values, or not one for each weight.
    """
    if out.values is None:
        raise RecipeError("objective value_error: the policy gives no values; use a net that does (actor_critic)")
    terms = 2 * value_loss(out.values, mb["returns"], mb["mask"], mb.columns.get("values"), clip)
    values = out.values.detach()
    if terms.dim() == 2 and isinstance(weight, float):
        return weight * terms, {"value/loss": terms.detach(), "value/mean": values}
    streams = terms.shape[2] if terms.dim() == 3 else 1
    weights = weight if isinstance(weight, list) else [weight] * streams
    if len(weights) != streams:
        raise RecipeError(f"objective value_error: {len(weights)} weights for {streams} streams of values")
    terms = terms.reshape(*mb["mask"].shape, streams)
    stats: Stats = {"value/loss": _added(terms.detach()), "value/mean": _added(values.reshape(terms.shape))}
    return (terms * torch.tensor(weights, device=terms.device)).sum(-1), stats


@component("update", "value")
@dataclass
class ValueLearner(Learner):
    """Fits the values of a role (`train`, one critic or a policy's value head) to the returns that credit wrote.

    `value_clip` bounds how far a value may move in one update (units of the return, null = off); `kind` is `mse` or
    `huber` (`delta` = where it turns linear: smaller shrugs off outliers); `agg` as for a policy; `weight` scales
    the loss.
    """

    value_clip: float | None = None
    kind: Literal["mse", "huber"] = "mse"
    delta: float = 1.0
    agg: Aggregation = "token_mean"
    constant: float | None = None
    weight: float = 1.0

    needs = ("mask", "returns", "values")
    writes = ("weight",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.train) != 1:
            raise RecipeError(f"update.value: train names one role with values, got {self.train}")
        if self.value_clip is not None and not self.value_clip > 0:
            raise RecipeError(f"update.value: value_clip must be > 0 (or null for none), got {self.value_clip}")

    def prepare(self, minibatch: Batch, ctx: Ctx) -> bool:
        minibatch["weight"] = token_weights(minibatch["mask"], self.agg, constant=self.constant)
        self.explained = explained_variance(minibatch["values"], minibatch["returns"], minibatch["mask"])
        return bool(minibatch["mask"].any())

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        values = ctx.models[self.train[0].split(".")[0]].evaluate(mb, want=("values",)).values
        if values is None:
            raise RecipeError(f"update.value: the role {self.train[0]!r} gives no values; add a value head")
        mask = mb["mask"].bool()
        ctx.meter.charge("trained_tokens", float(mask.sum()))
        terms = _added(value_loss(values, mb["returns"], mask, mb["values"], self.value_clip, self.kind, self.delta))
        stats: Stats = {
            "value/loss": terms.detach(),
            "value/mean": _added(values.detach()),
            "value/explained_variance": self.explained,
        }
        if self.value_clip is not None:
            stats["value/clipped"] = _added(((values.detach() - mb["values"]).abs() > self.value_clip).float())
        return self.weight * (terms * mb["weight"]).sum(), stats
