"""The plain policy gradient: advantage times log-prob, no ratio and no clip."""

from __future__ import annotations

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.types import Batch, PolicyOut
from gainstage.update.objectives.policy.importance import log_ratio


def log_likelihood_terms(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """`-A log pi "B T"`, 0 outside the mask and where the log-prob is not finite. `A` carries no gradient."""
    usable = mask.bool() & torch.isfinite(logp.detach())
    return -torch.where(usable, advantages.detach(), 0.0) * torch.where(usable, logp, 0.0)


@component("objective", needs=("mask", "advantages", "behaviour_logprobs?"))
def policy_gradient(out: PolicyOut, mb: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """REINFORCE (Williams 1992) with whatever advantage the credit stage wrote; RGRA (arXiv 2603.18756).

    On data of the current weights its gradient equals that of the clipped ratio; the loss *values* differ. From
    the second step on the same batch the data are off-policy and nothing here corrects for it; `ratio/mean` shows
    how far. The gradient of an answer's whole likelihood is this objective under `agg: sequence_sum`.
    """
    mask = mb["mask"].bool()
    bad = (mask & ~torch.isfinite(out.logprobs.detach())).float()
    stats = {"ratio/dropped": bad}
    if "behaviour_logprobs" in mb:
        stats["ratio/mean"] = log_ratio(out.logprobs.detach(), mb["behaviour_logprobs"], mask)[0].exp()
    return log_likelihood_terms(out.logprobs, mb["advantages"], mask), stats
