"""Learners: who is trained, by which loss, with which optimizer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.ops.masked import masked_sum
from gainstage.registry import RecipeError, build, component
from gainstage.types import Batch, Ctx
from gainstage.update.objectives.policy.aggregation import token_weights
from gainstage.update.optimizers.build import NonFinite, build_optimizer, clip_and_check, scheduled_lr

Stats = dict[str, "float | Tensor"]
IDLE = 50
"""Optimizer steps in a row without a masked token, after which a mask is said to be idle."""


@dataclass
class Learner:
    """Owns an optimizer over the parameters of the roles it trains; `loss` is a subclass's.

    `lr` is the learning rate at its height, `schedule` and `warmup` (share of the run) shape it, `clip`
    bounds the gradient norm (0 = off; the norm is always checked for NaN), `every` skips calls: 2 = each
    second minibatch.
    """

    train: list[str] = field(default_factory=lambda: ["policy"])
    lr: float = 1e-3
    optimizer: str | dict[str, Any] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: float = 0.0
    every: int = 1

    splits = True
    """Whether the loss of a minibatch is the sum of its micro-batches' losses."""
    needs: tuple[str, ...] = field(default=(), init=False)
    writes: tuple[str, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train names no role; give the role whose weights move, for instance [policy]")
        if not (math.isfinite(self.lr) and self.lr >= 0):
            raise ValueError(f"lr must be a finite number of at least 0, got {self.lr}")
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup is a share of the run in [0, 1], got {self.warmup}")
        if not self.clip >= 0:
            raise ValueError(f"clip must be at least 0 (0 = off), got {self.clip}")
        if self.every < 1:
            raise ValueError(f"every must be at least 1 (2 = each second minibatch), got {self.every}")
        # on a stand-in, so that a wrong name, setting or torch is said when the recipe is built
        self._optimizer([("weight", torch.nn.Parameter(torch.zeros(2, 2)))], None)

    def start(self, ctx: Ctx) -> None:
        """Build the optimizer over the trained roles' parameters."""
        named = list(self.parameters(ctx))
        if not named:
            raise RecipeError(f"update: nothing to train in roles {self.train}")
        self.opt = self._optimizer(named, getattr(ctx.models[self.train[0].split(".")[0]], "module", None))
        self.named = named

    def _optimizer(self, named: list[tuple[str, torch.nn.Parameter]], module: torch.nn.Module | None) -> Any:
        """Raises RecipeError or ValueError: no such optimizer, or a setting that it refuses."""
        kind, settings = _one(self.optimizer)
        if "lr" in settings:
            raise RecipeError(f"update: set the learner's own `lr`, not optimizer.{kind}.lr: the schedule works on it")
        own: dict[str, Any] = {"lr": self.lr, "betas": self.betas, "eps": self.eps, "weight_decay": self.weight_decay}
        return build_optimizer(named, kind=kind, module=module, **(own | settings))

    def parameters(self, ctx: Ctx) -> Iterable[tuple[str, torch.nn.Parameter]]:
        for role in self.train:
            name, _, part = role.partition(".")
            module = ctx.models[name].module
            for key, parameter in (module.get_submodule(part) if part else module).named_parameters():
                if parameter.requires_grad:
                    yield f"{role}.{key}", parameter

    def partition(self, ctx: Ctx) -> str:
        """How the optimizer cuts the weights into blocks, as a table; empty where it does not."""
        module = getattr(ctx.models[self.train[0].split(".")[0]], "module", None)
        made = self._optimizer(list(self.parameters(ctx)), module)
        return made.table(fold=True) if hasattr(made, "table") else ""

    def watch(self, numbers: Mapping[str, float]) -> None:
        """Look at the numbers of an optimizer step."""

    def prepare(self, minibatch: Batch, ctx: Ctx) -> bool:
        """Write what depends on the whole minibatch, before it is split; False where nothing in it can be learned."""
        return True

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.opt.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.opt.load_state_dict(state["optimizer"])


def optimise(learner: Learner, minibatch: Batch, ctx: Ctx, microbatch: int | None = None) -> dict[str, float]:
    """One optimizer step on a minibatch. Nothing non-finite reaches the weights.

    Args:
        microbatch: real tokens that go through the model at once; changes memory, no number.

    Raises:
        NonFinite: loss or gradient is not finite; the weights are as before.
    """
    if not learner.prepare(minibatch, ctx):
        return {"skipped": 1.0}
    for _, parameter in learner.named:
        parameter.grad = None
    tally = Tally()
    total = 0.0
    for micro in minibatch.chunks(microbatch if learner.splits else None):
        with torch.enable_grad():  # a reward function may have switched gradients off for the whole process
            loss, stats = learner.loss(micro, ctx)
        value = loss.item()
        if not math.isfinite(value):
            raise NonFinite(f"the loss is {value}")
        if loss.requires_grad:
            loss.backward()
        total += value
        tally.add(stats, micro)
    norm = clip_and_check(learner.named, learner.clip)
    rate = scheduled_lr(learner.lr, ctx.progress, learner.schedule, learner.warmup)
    if ctx.lr_scale:
        rate *= min(ctx.lr_scale.get(role.split(".")[0], 1.0) for role in learner.train)
    for group in learner.opt.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)
    learner.opt.step()
    for role in {name.split(".")[0] for name in learner.train}:
        ctx.models.updated(role)
    ctx.meter.charge("gradient_steps", 1)
    numbers = {"loss": total, "grad/norm": norm, "lr": rate, **tally.means()}
    learner.watch(numbers)
    return numbers


class Tally:
    """Means of statistics over the real decisions of a minibatch, whatever its split."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.counts: dict[str, float] = {}

    def add(self, stats: Stats, mb: Batch) -> None:
        mask = mb.columns.get("mask")
        decisions = 1.0 if mask is None else float(mask.sum())
        tables = [name for name, value in stats.items() if isinstance(value, Tensor) and value.dim() == 2]
        sums = {name: float(value) * decisions for name, value in stats.items() if name not in tables}
        if tables:  # all at once: a small net's step is made of many small calls
            stacked = torch.stack([stats[name].detach().float() for name in tables])  # type: ignore[union-attr]
            sums |= dict(zip(tables, masked_sum(stacked, mb["mask"], (1, 2)).tolist(), strict=True))
        for name in stats:
            self.sums[name] = self.sums.get(name, 0.0) + sums[name]
            self.counts[name] = self.counts.get(name, 0.0) + decisions

    def means(self) -> dict[str, float]:
        return {name: self.sums[name] / self.counts[name] if self.counts[name] else 0.0 for name in self.sums}


@component("update", "policy")
@dataclass
class PolicyLearner(Learner):
    """Trains a policy by objectives that add: each gives a term per decision, `agg` says how terms become one number.

    `agg`: `sequence_mean` (mean of per-sequence means), `token_mean`, `sequence_sum`,
    `sequence_sum_over_constant` (with `constant`, in tokens; absent = the longest answer the recipe allows).
    """

    objectives: list[str | dict[str, Any]] = field(default_factory=lambda: ["clipped"])
    agg: Literal["sequence_mean", "token_mean", "sequence_sum", "sequence_sum_over_constant"] = "sequence_mean"
    constant: float | None = None
    denominator: Literal["kept", "all"] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.objectives:
            raise ValueError("objectives is empty, so nothing would be learned; name one, for instance [clipped]")
        self.terms = [
            (name, build("objective", name, s, f"update.policy.objectives.{name}"))
            for name, s in map(_one, self.objectives)
        ]
        self.needs = tuple(dict.fromkeys(c for _, term in self.terms for c in needs_of(term)))
        self.wants = tuple(dict.fromkeys(w for _, term in self.terms for w in getattr(term, "wants", ())))
        self.writes = ("weight",)
        self.splits = all(getattr(term, "splits", True) for _, term in self.terms)
        self.idle = 0

    def allow(self, longest: int | None) -> None:
        """Told the most tokens of an answer, when the recipe is built.

        Raises:
            ValueError: the aggregation divides by a constant that nobody gave.
        """
        if self.agg == "sequence_sum_over_constant" and self.constant is None:
            if longest is None:
                raise ValueError("agg sequence_sum_over_constant needs the setting `constant` (tokens)")
            self.constant = float(longest)

    def watch(self, numbers: Mapping[str, float]) -> None:
        """Say it once where a mask that stands in for the clip has had nothing to do for long."""
        masked = numbers.get("ratio/masked")
        self.idle = self.idle + 1 if masked == 0 else 0
        if self.idle == IDLE:
            warnings.warn(
                f"update.policy: the mask kept every token for {IDLE} optimizer steps (ratio/masked 0), so it changes "
                "nothing; take more steps on each batch (plan.minibatch, plan.epochs) or larger ones (lr)",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "idle": self.idle}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.idle = int(state.get("idle", 0))

    def prepare(self, minibatch: Batch, ctx: Ctx) -> bool:
        kept = None
        if self.denominator == "kept":
            kept = (minibatch["advantages"] * minibatch["mask"]).abs().sum(1) > 0
        minibatch["weight"] = token_weights(minibatch["mask"], self.agg, constant=self.constant, kept=kept)
        return bool((minibatch["weight"] != 0).any())

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        rows = [i for i, info in enumerate(mb.info) if info.get("actor", self.train[0]) == self.train[0]]
        if mb.info and len(rows) < mb.rows:
            mb = mb.take(rows)
        if not mb.rows or not bool(mb["mask"].any()):
            return torch.zeros(()), {}
        out = ctx.models[self.train[0]].evaluate(mb, want=("entropy", *self.wants))
        ctx.meter.charge("trained_tokens", float(mb["mask"].sum()))
        total = torch.zeros((), device=mb.device)
        stats: Stats = {"entropy/mean": out.entropy} if out.entropy is not None else {}
        weight, mask = mb["weight"], mb["mask"]
        for _, term in self.terms:
            value = term(out, mb)
            if isinstance(value, tuple):
                value, extra = value
                stats.update(extra)
            total = total + torch.where(mask, value * weight, 0.0).sum()
        if "behaviour_logprobs" in mb and bool((mb["version"] == ctx.models[self.train[0]].version).all()):
            # weights as they sampled: what is left is the gap between sampler and trainer
            stats["kl/sampler"] = torch.where(mask, mb["behaviour_logprobs"] - out.logprobs.detach(), 0.0)
        return total, stats


def needs_of(term: Any) -> tuple[str, ...]:
    """The columns an objective reads; one that depends on a setting names the setting in braces."""
    settings = getattr(term, "keywords", {})
    return tuple(
        str(settings.get(c[1:-1], "behaviour_logprobs")) if c.startswith("{") else c for c in getattr(term, "needs", ())
    )


def _one(entry: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    if len(entry) != 1:
        raise RecipeError(f"an entry is a name or one `name: settings` pair, got {dict(entry)}")
    name, settings = next(iter(entry.items()))
    return name, dict(settings or {})
