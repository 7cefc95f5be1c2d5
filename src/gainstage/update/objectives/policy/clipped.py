"""The clipped ratio surrogate of PPO and its relatives."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from gainstage.ops.divergences import kl_estimate
from gainstage.registry import component
from gainstage.types import Batch, PolicyOut
from gainstage.update.objectives.policy.importance import dropped, log_ratio, truncated_weight

Level = Literal["token", "sequence", "sequence_token"]
Bound = Annotated[float, Field(ge=0)]
Dual = Annotated[float, Field(gt=1)] | None


def ratio_at(logp: Tensor, old: Tensor, mask: Tensor, level: Level = "token") -> tuple[Tensor, Tensor]:
    """Probability ratio new / old and where it is usable, both `"B T"`.

    - `token`: each token's own ratio.
    - `sequence`: `exp(mean of the log-ratios of the row)` on every token of the row (GSPO, arXiv 2507.18071);
      the gradient reaches all tokens of the row.
    - `sequence_token`: the same number, while its gradient is that of the token's own log-prob (GSPO-token,
      same paper), so that advantages may differ inside a row.
    """
    difference, usable = log_ratio(logp, old, mask)
    return _at_level(difference, usable, level), usable


def _at_level(difference: Tensor, usable: Tensor, level: Level) -> Tensor:
    if level == "token":
        return difference.exp()
    count = usable.sum(1, keepdim=True).clamp(min=1)
    ratio = (difference.sum(1, keepdim=True) / count).exp()
    if level == "sequence":
        return ratio.expand_as(difference)
    if level == "sequence_token":
        return ratio.detach() * (difference - difference.detach()).exp()
    raise ValueError(f"clipped.level must be token, sequence or sequence_token, got {level!r}")


def clipped_surrogate(
    logp: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
    level: Level = "token",
) -> tuple[Tensor, dict[str, Tensor]]:
    """`-min(r A, clip(r, 1 - low, 1 + high) A) "B T"` and statistics (PPO, arXiv 1707.06347, equation 7).

    Args:
        logp, old: `Float "B T"`, the same tokens under the trained and under the earlier policy.
        advantages: `Float "B T"`, no gradient.
        mask: `Bool "B T"`; what stands outside (NaN included) is not read.
        low, high: how far the ratio may fall or rise before its gradient stops; infinity = no bound. `high > low`
            lets rare tokens rise further (DAPO's clip-higher, arXiv 2503.14476).
        dual: for negative advantages the term is bounded by `-dual * A`, so that a huge ratio cannot dominate
            (dual-clip PPO, arXiv 1912.09729); None = off.
        level: see `ratio_at`.

    Returns:
        Terms to be minimised, 0 outside the mask, and `ratio/mean`, `ratio/clipped_low`, `ratio/clipped_high`
        (decisions whose gradient is silenced), `kl/behaviour` (k3 estimate of KL(old || new), nats), `ratio/dropped`.

    Raises:
        ValueError: a negative bound, `dual` not above 1.
    """
    if not (low >= 0 and high >= 0):
        raise ValueError(f"clipped.low and clipped.high must be >= 0, got {low} and {high}")
    if dual is not None and not dual > 1:
        raise ValueError(f"clipped.dual must be above 1 (or null for none), got {dual}")
    difference, usable = log_ratio(logp, old, mask)
    ratio = _at_level(difference, usable, level)
    signal = torch.where(usable, advantages.detach(), 0.0)
    gain = torch.minimum(ratio * signal, ratio.clamp(1 - low, 1 + high) * signal)
    value = ratio.detach()
    too_low, too_high = (signal < 0) & (value < 1 - low), (signal > 0) & (value > 1 + high)
    stats = {"ratio/mean": value, "ratio/clipped_low": too_low.float(), "ratio/clipped_high": too_high.float()}
    if dual is not None:
        gain = torch.where(signal < 0, torch.maximum(gain, dual * signal), gain)
        stats["ratio/clipped_dual"] = ((signal < 0) & (value > dual)).float()
    stats["kl/behaviour"] = kl_estimate(torch.zeros_like(difference), difference.detach(), "k3")
    return -gain, stats | dropped(mask, usable)


@component("objective", needs=("mask", "advantages", "{denominator}"))
def clipped(
    out: PolicyOut,
    mb: Batch,
    *,
    low: Bound = 0.2,
    high: Bound = 0.2,
    dual: Dual = None,
    level: Level = "token",
    denominator: Literal["behaviour_logprobs", "old_logprobs"] = "behaviour_logprobs",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Ratio surrogate with asymmetric and dual clip at token or sequence level (PPO, GRPO, DAPO, GSPO).

    `denominator` names the log-probs that the ratio divides by: those that the sampler recorded, or those that the
    weights at the start of the update give (`old_logprobs`, written by a `reference_logprobs` credit entry with
    `role: policy, out: old_logprobs`). `level: sequence` wants `agg: sequence_mean` and bounds around 3e-4.
    """
    return clipped_surrogate(out.logprobs, mb[denominator], mb["advantages"], mb["mask"], low, high, dual, level)


@component("objective", needs=("mask", "advantages", "old_logprobs", "behaviour_logprobs"))
def truncated_importance(
    out: PolicyOut,
    mb: Batch,
    *,
    cap: Annotated[float, Field(gt=0)] = 2.0,
    low: Bound = 0.2,
    high: Bound = 0.2,
    dual: Dual = None,
    level: Level = "token",
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate around `old_logprobs`, weighted by `min(old / sampler, cap)` for an inexact sampler.

    The clip bounds how far this update moves; the weight, without gradient, corrects for the gap between the
    trainer's and the sampler's probabilities (truncated importance sampling). `cap` bounds that correction.
    """
    old, mask = mb["old_logprobs"], mb["mask"].bool()
    weight = truncated_weight(old, mb["behaviour_logprobs"], mask, cap)
    known = mask & torch.isfinite(mb["behaviour_logprobs"])
    terms, stats = clipped_surrogate(out.logprobs, old, mb["advantages"], known, low, high, dual, level)
    stats["ratio/dropped"] = stats["ratio/dropped"] + (mask & ~known).float()
    return terms * weight, stats | {"importance/weight": weight}
