"""Hard keep / drop masks that stand in for the clip: a dropped decision has no gradient but stays in the denominator.

The masks see detached numbers only. An update that moves a token back towards the policy that wrote it is always kept.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from gainstage.registry import component
from gainstage.types import Batch, PolicyOut
from gainstage.update.objectives.policy.importance import dropped, log_ratio

Denominator = Literal["behaviour_logprobs", "old_logprobs"]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


def ratio_terms(logp: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, keep: Tensor) -> Tensor:
    """`-keep r A "B T"`: the ratio surrogate without clip, gradient through the ratio of kept decisions."""
    difference, usable = log_ratio(logp, old, mask)
    return -torch.where(keep & usable, difference.exp() * torch.where(usable, advantages.detach(), 0.0), 0.0)


def binary_tv(logp: Tensor, old: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """`|p_new - p_old|` of the sampled token: total variation over "this token" and "any other"; and `usable`."""
    _, usable = log_ratio(logp, old, mask)
    new, before = torch.where(usable, logp, -torch.inf), torch.where(usable, old, -torch.inf)
    return (new.detach().float().exp() - before.detach().float().exp()).abs(), usable


def towards(logp: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Decisions whose update leads back to the old policy, or nowhere: `A (r - 1) <= 0`, Bool `"B T"`."""
    difference, usable = log_ratio(logp.detach(), old, mask)
    return usable & (torch.where(usable, advantages, 0.0).sign() * difference.sign() <= 0)


def uniform_divergence_keep(logp: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, delta: float) -> Tensor:
    """Keep where the update leads back or the binary TV is at most `delta`: one threshold for every token.

    DPPO with Binary-TV (arXiv 2602.04879). Bool `"B T"`, false outside the mask.
    """
    divergence, usable = binary_tv(logp, old, mask)
    return usable & (towards(logp, old, advantages, mask) | (divergence <= delta))


def prefix_divergence_keep(
    logp: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    delta: float = 0.15,
    w_min: float = 0.8,
    d: float = 0.02,
    q: float = 0.9,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Position-weighted threshold with a budget that the prefix uses up (arXiv 2606.10968, equations 8-11 and 22).

    With D the binary TV, the weight falls from 1 at the first decision to `w_min` at the last, so that early
    tokens, which alter all that follows, are judged more strictly: Z = w D. A token passes if Z is at most
    `min(delta, delta + rate * W - S)`, where W and S sum w and Z over the decisions *before* it and `rate` is the
    row's `q` quantile of D within `[d, 2 d]`.

    Args:
        logp, old, advantages: `Float "B T"`; mask: `Bool "B T"`. Only a row's own decisions count as its prefix.
        delta: largest weighted divergence of one token; larger = more is kept.
        w_min: weight of the last decision, in [0, 1]; 1 = no position weighting.
        d: least budget per decision. A huge finite `d` with `w_min` 1 is the uniform mask.
        q: quantile of the row's divergences that sets its budget.

    Returns:
        keep `Bool "B T"` and statistics: `ratio/masked` and its two causes, `tv/mean`.
    """
    divergence, usable = binary_tv(logp, old, mask)
    trained = mask.bool()
    order = trained.cumsum(1).float()
    last = (trained.sum(1, keepdim=True).float() - 1).clamp(min=1)
    weight = torch.where(trained, 1 - (1 - w_min) * (order - 1) / last, 0.0)
    weighted = weight * divergence
    spent, room = weighted.cumsum(1) - weighted, weight.cumsum(1) - weight
    quantile = torch.nanquantile(torch.where(usable, divergence, torch.nan), q, dim=1, keepdim=True)
    rate = torch.nan_to_num(quantile, nan=d).clamp(d, 2 * d)
    budget = delta + rate * room - spent
    back = towards(logp, old, advantages, mask)
    keep = usable & (back | (weighted <= budget.clamp(max=delta)))
    by_threshold = usable & ~back & (weighted > delta)
    stats = {
        "ratio/masked": (usable & ~keep).float(),
        "ratio/masked_threshold": by_threshold.float(),
        "ratio/masked_budget": (usable & ~keep & ~by_threshold).float(),
        "tv/mean": divergence,
    }
    return keep, stats


def one_side_keep(ratio: Tensor, advantages: Tensor, low: float = 0.2, high: float = 0.2) -> Tensor:
    """Keep what the PPO clip leaves a gradient: `A >= 0` and `r <= 1 + high`, or `A <= 0` and `r >= 1 - low`."""
    return ((advantages >= 0) & (ratio <= 1 + high)) | ((advantages <= 0) & (ratio >= 1 - low))


def two_side_keep(ratio: Tensor, advantages: Tensor, low: float = 0.2, high: float = 0.2) -> Tensor:
    """Keep ratios within `[1 - low, 1 + high]`, whatever the advantage's sign."""
    return (ratio >= 1 - low) & (ratio <= 1 + high)


def ring_keep(
    ratio: Tensor,
    advantages: Tensor,
    low: float = 0.2,
    high: float = 0.2,
    outer_low: float = 0.6,
    outer_high: float = 2.0,
) -> Tensor:
    """`two_side_keep`, and what has drifted far (`1 - outer_low`, `1 + outer_high`) where the update leads back."""
    back = ((advantages >= 0) & (ratio <= 1 - outer_low)) | ((advantages <= 0) & (ratio >= 1 + outer_high))
    return two_side_keep(ratio, advantages, low, high) | back


@component("objective", needs=("mask", "advantages", "{denominator}"))
def uniform_divergence(
    out: PolicyOut, mb: Batch, *, delta: Positive = 0.15, denominator: Denominator = "behaviour_logprobs"
) -> tuple[Tensor, dict[str, Tensor]]:
    """Ratio surrogate masked where the token's probability has moved by more than `delta` (DPPO, arXiv 2602.04879)."""
    logp, old, advantages, mask = out.logprobs, mb[denominator], mb["advantages"], mb["mask"].bool()
    keep = uniform_divergence_keep(logp, old, advantages, mask, delta)
    divergence, usable = binary_tv(logp, old, mask)
    stats = {"ratio/masked": (usable & ~keep).float(), "tv/mean": divergence, **dropped(mask, usable)}
    return ratio_terms(logp, old, advantages, mask, keep), stats


@component("objective", needs=("mask", "advantages", "{denominator}"))
def prefix_divergence(
    out: PolicyOut,
    mb: Batch,
    *,
    delta: Positive = 0.15,
    w_min: Share = 0.8,
    d: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.02,
    q: Share = 0.9,
    denominator: Denominator = "behaviour_logprobs",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Ratio surrogate masked by a position-weighted threshold and a prefix budget (arXiv 2606.10968).

    `delta` bounds one token, `w_min` how much later tokens are excused, `d` the budget per token; smaller values
    mask more. The paper's values are the defaults (`delta` 0.20 for mixtures of experts); use `agg: token_mean`.
    """
    logp, old, advantages, mask = out.logprobs, mb[denominator], mb["advantages"], mb["mask"].bool()
    keep, stats = prefix_divergence_keep(logp, old, advantages, mask, delta, w_min, d, q)
    return ratio_terms(logp, old, advantages, mask, keep), stats | dropped(mask, log_ratio(logp.detach(), old, mask)[1])


def _reinforce_kept(
    out: PolicyOut, mb: Batch, denominator: Denominator, importance: bool, keep: object, **bounds: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """`-c A log pi` on kept decisions; c is the detached ratio or 1."""
    mask = mb["mask"].bool()
    difference, usable = log_ratio(out.logprobs, mb[denominator], mask)
    ratio = difference.detach().exp()
    advantages = torch.where(usable, mb["advantages"], 0.0)
    kept = usable & keep(ratio, advantages, **bounds)  # type: ignore[operator]
    weight = ratio if importance else torch.ones_like(ratio)
    terms = -torch.where(kept, weight * advantages, 0.0) * torch.where(usable, out.logprobs, 0.0)
    return terms, {"ratio/mean": ratio, "ratio/masked": (usable & ~kept).float(), **dropped(mask, usable)}


@component("objective", needs=("mask", "advantages", "{denominator}"))
def one_side(
    out: PolicyOut,
    mb: Batch,
    *,
    low: Positive = 0.2,
    high: Positive = 0.2,
    importance: bool = True,
    denominator: Denominator = "behaviour_logprobs",
) -> tuple[Tensor, dict[str, Tensor]]:
    """REINFORCE masked like the PPO clip (REC-OneSide, arXiv 2509.24203); with `importance` its gradient is PPO's."""
    return _reinforce_kept(out, mb, denominator, importance, one_side_keep, low=low, high=high)


@component("objective", needs=("mask", "advantages", "{denominator}"))
def two_side(
    out: PolicyOut,
    mb: Batch,
    *,
    low: Positive = 0.2,
    high: Positive = 0.2,
    importance: bool = True,
    denominator: Denominator = "behaviour_logprobs",
) -> tuple[Tensor, dict[str, Tensor]]:
    """REINFORCE on tokens whose ratio lies in the band, whatever the sign (REC-TwoSide, arXiv 2509.24203)."""
    return _reinforce_kept(out, mb, denominator, importance, two_side_keep, low=low, high=high)


@component("objective", needs=("mask", "advantages", "{denominator}"))
def ring(
    out: PolicyOut,
    mb: Batch,
    *,
    low: Positive = 0.2,
    high: Positive = 0.2,
    outer_low: Positive = 0.6,
    outer_high: Positive = 2.0,
    importance: bool = True,
    denominator: Denominator = "behaviour_logprobs",
) -> tuple[Tensor, dict[str, Tensor]]:
    """`two_side`, plus far-drifted tokens whose update leads back (REC-Ring, arXiv 2509.24203)."""
    bounds = {"low": low, "high": high, "outer_low": outer_low, "outer_high": outer_high}
    return _reinforce_kept(out, mb, denominator, importance, ring_keep, **bounds)
