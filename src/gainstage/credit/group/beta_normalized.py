"""BNPO: centred rewards over a Beta density that follows the batch's success rates (arXiv 2506.02864)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gainstage.credit import ROW_REWARDS
from gainstage.credit.group.group_relative import greedy_rows
from gainstage.ops.groups import finite_or_absent, group_rows
from gainstage.registry import component
from gainstage.types import Batch

FEW = 8
"""Problems a batch below which the fit jumps from one batch to the next."""


def fit_beta(mean: float, var: float) -> tuple[float, float, float, float]:
    """Moment fit `(a, b)` of the success rates and the variance-minimising normaliser `(alpha, beta)`.

    k = mean (1 - mean) / var - 1, a = k mean, b = k (1 - mean); alpha = max(1, 1 + a / 3), beta likewise.
    Without spread the normaliser is flat, (1, 1): the group-mean baseline alone.
    """
    if var <= 1e-12:
        return math.inf, math.inf, 1.0, 1.0
    k = mean * (1 - mean) / var - 1
    a, b = k * mean, k * (1 - mean)
    return a, b, max(1.0, 1 + a / 3), max(1.0, 1 + b / 3)


def beta_weight(p: Tensor, alpha: float, beta: float, max_weight: float = 1e6) -> Tensor:
    """`min(1 / f(p), max_weight)` for the density f of Beta(alpha, beta); the ends p = 0 and 1 are safe."""
    p = p.double()
    log_norm = math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta)
    log_f = torch.xlogy(torch.tensor(alpha - 1, dtype=p.dtype), p) if alpha == 1 else (alpha - 1) * p.log()
    log_f = log_f + (torch.zeros_like(p) if beta == 1 else (beta - 1) * torch.log1p(-p)) - log_norm
    return (-log_f).clamp(max=math.log(max_weight)).exp()


def beta_normalized(
    r: Tensor,
    keys: Tensor,
    max_weight: float = 1e6,
    past: tuple[float, float] | None = None,
    ema: float = 0.0,
    greedy: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """`c(p) (r - p)` with p the group's mean reward and c the inverse density of the fitted Beta, `Float "N"`.

    Args:
        r: rewards in [0, 1], `Float "N"`; NaN takes no part and gets 0.
        keys: group of each row.
        max_weight: largest c.
        past: smoothed (mean, variance) of earlier batches.
        ema: weight of the past; 0 uses this batch alone.
        greedy: Bool "N", rows that take no part.

    Returns:
        advantages and `mu, v` (mean and unbiased variance of the success rates, smoothed), `a, b, alpha, beta`.

    Raises:
        ValueError: a reward outside [0, 1].
    """
    member = finite_or_absent(r, "beta_normalized") & (~greedy.bool() if greedy is not None else True)
    inside = r[member]
    if bool(((inside < -1e-6) | (inside > 1 + 1e-6)).any()):
        raise ValueError(
            f"beta_normalized needs rewards in [0, 1], got {float(inside.min()):g} to {float(inside.max()):g}: "
            "set low and high, or list the reward parts under parts"
        )
    groups = group_rows(keys, member)
    present = groups.size() > 0
    p = groups.mean(r).clamp(0, 1)
    rates = p[present]
    mu, v = float(rates.mean()) if len(rates) else 0.0, float(rates.var()) if len(rates) > 1 else 0.0
    if past is not None and ema > 0:
        mu, v = ema * past[0] + (1 - ema) * mu, ema * past[1] + (1 - ema) * v
    a, b, alpha, beta = fit_beta(mu, v)
    centred = torch.where(
        member & ~groups.constant(r)[groups.index], r.double() - p[groups.index], torch.zeros((), dtype=torch.float64)
    )
    weight = beta_weight(p, alpha, beta, max_weight)[groups.index]
    advantage = torch.where(centred == 0, centred, centred * weight).to(torch.float32)
    return advantage, {"mu": mu, "v": v, "a": a, "b": b, "alpha": alpha, "beta": beta}


@component("credit")
@dataclass
class BetaNormalized:
    """Centred reward over a Beta density re-fitted to every batch; with several parts, one fit a part."""

    parts: list[str] = field(default_factory=list)
    """Reward parts that are normalised one by one and then added; empty: the total reward."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Part -> weight; equal weights that sum to 1 where absent."""
    low: float = 0.0
    """Reward that maps to 0."""
    high: float = 1.0
    """Reward that maps to 1."""
    max_weight: float = 1e6
    """Largest weight of a group; lower bounds the pull of rare success rates."""
    ema: float = 0.0
    """Share of the past in the fitted moments; above 0 steadies batches of few problems (fewer than 8)."""

    writes = ("advantage",)

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"beta_normalized: low must be below high, got {self.low} and {self.high}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"beta_normalized.ema must lie in [0, 1), got {self.ema}")
        if unknown := set(self.weights) - set(self.parts):
            raise ValueError(f"beta_normalized.weights names {sorted(unknown)}, which parts does not list")
        self._past: dict[str, list[float]] = {}

    @property
    def needs(self) -> tuple[str, ...]:
        sources = [f"parts/{name}" for name in self.parts] or ROW_REWARDS
        return ("group", "greedy?", *sources)

    def check_plan(self, samples: int) -> None:
        if samples < 2:
            raise ValueError(
                f"beta_normalized needs a success rate per problem: select's samples must be 2 or more, got {samples}"
            )

    def estimate(self, batch: Batch, ctx: Any) -> dict[str, Tensor]:
        if not self.ema and len(batch["group"].unique()) < FEW:
            warnings.warn(
                f"beta_normalized fits a density to fewer than {FEW} problems: raise plan.groups, "
                "or set credit.beta_normalized.ema (0.9 for instance)",
                stacklevel=2,
            )
        sources = {name: batch[f"parts/{name}"] for name in self.parts} or {"reward": batch.rewards_at("row")}
        total = torch.zeros(batch.rows, device=batch.device)
        for name, values in sources.items():
            scaled = (values - self.low) / (self.high - self.low)
            past = self._past.get(name)
            advantage, fit = beta_normalized(
                scaled,
                batch["group"],
                self.max_weight,
                (past[0], past[1]) if past else None,
                self.ema,
                greedy_rows(batch),
            )
            self._past[name] = [fit["mu"], fit["v"]]
            total = total + self.weights.get(name, 1 / len(sources)) * advantage
            for key in ("mu", "v", "alpha", "beta"):
                ctx.log(f"beta_normalized/{name}/{key}", fit[key])
        return {"advantage": total}

    def state_dict(self) -> dict[str, Any]:
        return {"past": dict(self._past)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._past = dict(state["past"])
