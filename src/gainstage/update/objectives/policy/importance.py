"""Importance weights between two policies that scored the same tokens.

`log_ratio` is the one place where two log-probs meet: padding leaves before the exponential, so that whatever
stands there (NaN, infinities) reaches neither loss nor gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from gainstage.registry import component
from gainstage.types import Batch, PolicyOut

LIMIT = 20.0
"""Bound of a log-ratio, nats. exp(20) is 4.9e8: beyond it the ratio is constant and carries no gradient."""


def log_ratio(logp: Tensor, other: Tensor, mask: Tensor, limit: float = LIMIT) -> tuple[Tensor, Tensor]:
    """`logp - other` within `[-limit, limit]`, 0 where unusable, and `usable` itself (both `"B T"`).

    A decision is usable where the mask is true and both log-probs are finite. Unusable decisions have ratio 1
    and no gradient; callers take them out of their terms (`dropped` counts them).
    """
    usable = mask.bool() & torch.isfinite(logp.detach()) & torch.isfinite(other.detach())
    difference = torch.where(usable, logp, 0.0) - torch.where(usable, other, 0.0)
    return difference.clamp(-limit, limit), usable


def dropped(mask: Tensor, usable: Tensor) -> dict[str, Tensor]:
    """The statistic `ratio/dropped`: share of decisions left out because a log-prob is not finite."""
    return {"ratio/dropped": (mask.bool() & ~usable).float()}


def truncated_weight(logp: Tensor, other: Tensor, mask: Tensor, cap: float = 2.0) -> Tensor:
    """`min(ratio, cap) "B T"` (truncated importance sampling; V-trace's rho and c, arXiv 1802.01561)."""
    return torch.where(mask.bool(), log_ratio(logp, other, mask)[0].exp().clamp(max=cap), 0.0)


def clipped_weight(logp: Tensor, other: Tensor, mask: Tensor, low: float = 1.0, high: float = 2.0) -> Tensor:
    """The ratio within `[1 - low, 1 + high]`, `"B T"` (CISPO, arXiv 2506.13585)."""
    return torch.where(mask.bool(), log_ratio(logp, other, mask)[0].exp().clamp(1 - low, 1 + high), 0.0)


def shaped_weight(logp: Tensor, other: Tensor, mask: Tensor, shape: float = 0.1) -> Tensor:
    """`ratio / (ratio + shape) "B T"`: bounded by 1, steep near 0, so that rare tokens still learn (LUFFY,
    arXiv 2504.14945). With `other` zero the ratio is the policy's own probability."""
    return torch.where(mask.bool(), torch.sigmoid(log_ratio(logp, other, mask)[0] - torch.tensor(shape).log()), 0.0)


def cumulative_weight(logp: Tensor, other: Tensor, mask: Tensor, cap: float = 2.0) -> Tensor:
    """`min(product of the ratios up to and including t, cap) "B T"`: the weight of the prefix, per row."""
    running = log_ratio(logp, other, mask)[0].cumsum(1).clamp(-LIMIT, LIMIT)
    return torch.where(mask.bool(), running.exp().clamp(max=cap), 0.0)


KINDS: dict[str, Callable[..., Tensor]] = {
    "truncated": truncated_weight,
    "clipped": clipped_weight,
    "shaped": shaped_weight,
    "cumulative": cumulative_weight,
}


def importance(logp_a: Tensor, logp_b: Tensor, mask: Tensor, kind: str = "truncated", **settings: float) -> Tensor:
    """Weights of the policy of `logp_a` on tokens that the policy of `logp_b` wrote, `"B T"`, 0 outside the mask.

    Not detached: a caller who wants weights without gradient detaches. Settings are those of the kind's function.

    Raises:
        ValueError: unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"importance kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return KINDS[kind](logp_a, logp_b, mask, **settings)


@component("objective", needs=("mask", "advantages", "{denominator}"))
def importance_weighted(
    out: PolicyOut,
    mb: Batch,
    *,
    kind: Literal["truncated", "cumulative"] = "truncated",
    cap: Annotated[float, Field(gt=0)] = 2.0,
    denominator: Literal["behaviour_logprobs", "old_logprobs"] = "behaviour_logprobs",
) -> tuple[Tensor, dict[str, Tensor]]:
    """REINFORCE with capped importance weights: `-w A log pi`, w without gradient, no token is silenced.

    `kind: truncated` weighs each token by its own ratio, `cumulative` by that of the prefix up to it. A smaller
    `cap` trades variance for bias towards the sampler. IMPALA (arXiv 1802.01561); CISPO (arXiv 2506.13585) in its
    usual setting without a lower bound.
    """
    mask, advantages = mb["mask"].bool(), mb["advantages"]
    _, usable = log_ratio(out.logprobs, mb[denominator], mask)
    weight = importance(out.logprobs.detach(), mb[denominator], usable, kind, cap=cap)
    logp = torch.where(usable, out.logprobs, 0.0)
    terms = -weight * torch.where(usable, advantages, 0.0) * logp
    return terms, {"importance/weight": weight, **dropped(mask, usable)}
