"""Maximum likelihood of given decisions, and its opposite."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from gainstage.registry import RecipeError, component
from gainstage.types import Batch, PolicyOut


def likelihood_terms(logp: Tensor, mask: Tensor, weight: Tensor | None = None) -> Tensor:
    """`-w log pi "B T"`, 0 outside the mask. `weight` is `"B T"` or `"B 1"`, no gradient, 1 where absent.

    A log-prob of minus infinity at a decision gives an infinite term: the data hold what the policy cannot say.
    """
    mask = mask.bool()
    safe = -torch.where(mask, logp, 0.0)
    if weight is None:
        return safe
    factor = torch.where(mask, weight.detach().expand_as(logp), 0.0)
    return torch.where(factor == 0, 0.0, factor * torch.where(factor == 0, 0.0, safe))


def unlikelihood_terms(logp: Tensor, mask: Tensor, eps: float = 1e-4) -> Tensor:
    """`-log(1 - min(p, 1 - eps)) "B T"`, 0 outside the mask: minimising it makes the tokens less probable.

    The cap is straight-through: a token with `p > 1 - eps` keeps the gradient it has at `1 - eps`, so that the most
    dominant tokens are not exempt. d/d log p = p / (1 - p): strong on confident tokens, mild on rare ones
    (unlikelihood training, arXiv 1908.04319).
    """
    usable = mask.bool() & torch.isfinite(logp.detach())
    safe = torch.where(usable, logp, -1.0)
    capped = safe + (safe.clamp(max=float(torch.tensor(-eps).log1p())) - safe).detach()
    return torch.where(usable, -torch.log(-torch.expm1(capped)), 0.0)


@component("objective", needs=("mask",))
def likelihood(out: PolicyOut, mb: Batch) -> Tensor:
    """Negative log-likelihood of the trained decisions: SFT, cloning, rejection fine-tuning on kept answers."""
    return likelihood_terms(out.logprobs, mb["mask"])


@component("objective", needs=("mask", "actions"), wants=("mean",))
def action_error(out: PolicyOut, mb: Batch) -> Tensor:
    """Squared distance of the policy's action from the recorded one, mean over its dimensions.

    Raises:
        RecipeError: the policy names no action of its own; choices have likelihoods.
    """
    mean = out.extras.get("mean")
    if mean is None:
        raise RecipeError("action_error needs a policy with continuous actions; use the objective likelihood")
    mask = mb["mask"].bool().unsqueeze(-1)
    gap = torch.where(mask, mean - torch.where(mask, mb["actions"], 0.0), 0.0)
    return gap.square().mean(-1)


@component("objective", needs=("mask", "advantages"))
def weighted_likelihood(out: PolicyOut, mb: Batch) -> Tensor:
    """Negative log-likelihood weighted by non-negative advantages: RAFT (arXiv 2304.06767) with the reward as weight.

    Raises:
        ValueError: a negative weight; its term has no lower bound, `policy_gradient` is meant for those.
    """
    mask, weight = mb["mask"].bool(), mb["advantages"]
    if bool((mask & (weight < 0)).any()):
        raise ValueError(
            "weighted_likelihood: an advantage is negative; use the objective policy_gradient, or clip it under credit"
        )
    return likelihood_terms(out.logprobs, mask, weight)


@component("objective", needs=("mask",))
def unlikelihood(out: PolicyOut, mb: Batch, *, eps: Annotated[float, Field(gt=0, lt=1)] = 1e-4) -> Tensor:
    """`-log(1 - p)` of the trained decisions: pushes them down. A smaller `eps` pushes near-certain tokens harder."""
    return unlikelihood_terms(out.logprobs, mb["mask"], eps)
