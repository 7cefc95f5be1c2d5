"""Terms that hold a policy near another one, or keep it from collapsing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from gainstage.ops.divergences import kl_estimate
from gainstage.registry import component
from gainstage.types import Batch, PolicyOut
from gainstage.update.objectives.policy.importance import dropped, log_ratio

K1_REFUSED = (
    "k1 cannot be a loss: the gradient of log pi - log ref has mean zero, so it adds noise and no pull. "
    "Use k2 (its gradient is that of KL(pi || ref)) or k3 here, or put k1 into the reward"
)


def _loss_kind(kind: str) -> Literal["k2", "k3"]:
    if kind == "k1":
        raise ValueError(K1_REFUSED)
    if kind not in ("k2", "k3"):
        raise ValueError(f"kind must be k2 or k3, got {kind!r}")
    return "k2" if kind == "k2" else "k3"


def reference_kl_terms(logp: Tensor, ref: Tensor, mask: Tensor, kind: str = "k3") -> Tensor:
    """Estimate of KL(pi || ref) at every decision, `"B T"`, 0 outside the mask; gradient through `logp` only.

    With d = log ref - log pi within +-20 nats: k2 = d^2 / 2, k3 = exp(d) - d - 1 (GRPO, arXiv 2402.03300,
    equation 4). Samples must come from the current policy: on older data neither is an estimate of the KL.

    Raises:
        ValueError: kind is k1 (the message explains) or unknown.
    """
    difference, usable = log_ratio(logp, ref.detach(), mask)
    return torch.where(usable, kl_estimate(difference, torch.zeros_like(difference), _loss_kind(kind)), 0.0)


@component("objective", needs=("mask", "ref_logprobs"))
def reference_kl(
    out: PolicyOut,
    mb: Batch,
    *,
    kind: Annotated[str, AfterValidator(_loss_kind)] = "k3",
    weight: Annotated[float, Field(ge=0)] = 0.001,
) -> tuple[Tensor, dict[str, Any]]:
    """`weight` times a per-token KL to the reference; raise `weight` if the policy drifts, lower it if it won't learn.

    Needs the column that the `reference_logprobs` credit entry writes. 0.001 suits small models, 0.04 is GRPO's.
    """
    mask = mb["mask"].bool()
    terms = reference_kl_terms(out.logprobs, mb["ref_logprobs"], mask, kind)
    _, usable = log_ratio(out.logprobs.detach(), mb["ref_logprobs"], mask)
    missing = dropped(mask, usable)["ratio/dropped"]
    return weight * terms, {"kl/ref": terms.detach(), "kl/ref_dropped": missing}


@component("objective", needs=("mask",), wants=("entropy",))
def entropy_bonus(out: PolicyOut, mb: Batch, *, weight: float = 0.001) -> tuple[Tensor, dict[str, Any]]:
    """`-weight` times each decision's entropy: a larger weight keeps the policy more random, a negative sharpens it.

    Raises:
        ValueError: the policy reports no entropy.
    """
    if out.entropy is None:
        raise ValueError("entropy_bonus: this policy reports no entropy; leave the objective out")
    entropy = torch.where(mb["mask"].bool(), out.entropy, 0.0)
    return -weight * entropy, {"entropy/mean": entropy.detach()}
