"""Divergences: from sampled log-probs, and over a whole vocabulary. 0 ln 0 is 0."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


def kl_estimate(logp: Tensor, logq: Tensor, kind: Literal["k1", "k2", "k3"] = "k3") -> Tensor:
    """Estimate of KL(p || q) at each sampled decision, `Float "B T"`, for samples drawn from p.

    With d = log q - log p: k1 = -d (unbiased, may be negative), k2 = d^2 / 2 (biased, small variance),
    k3 = exp(d) - d - 1 (unbiased, never negative). Schulman, "Approximating KL divergence" (2020).
    The gradient of k1 has mean 0: it belongs into a reward, not into a loss.

    Raises:
        ValueError: unknown kind.
    """
    d = logq - logp
    if kind == "k1":
        return -d
    if kind == "k2":
        return 0.5 * d**2
    if kind == "k3":
        return torch.expm1(d) - d
    raise ValueError(f"kl kind must be k1, k2 or k3, got {kind!r}")


def full_kl(logp: Tensor, logq: Tensor) -> Tensor:
    """KL(p || q) over the last axis, `"... V" -> "..."`, from normalised log-probs; `logp` may hold -inf."""
    possible = torch.isfinite(logp)
    safe = torch.where(possible, logp, torch.zeros_like(logp))
    other = torch.where(possible, logq, torch.zeros_like(logq))
    return torch.where(possible, safe.exp() * (safe - other), torch.zeros_like(safe)).sum(-1)


def jsd(logp: Tensor, logq: Tensor, beta: float = 0.5) -> Tensor:
    """Generalised Jensen-Shannon divergence `beta KL(p || m) + (1 - beta) KL(q || m)`, m = beta p + (1 - beta) q.

    `"... V" -> "..."`. beta = 1/2 lies in [0, ln 2]. Agarwal et al., arXiv 2306.13649, eq. 1.

    Raises:
        ValueError: beta outside (0, 1).
    """
    if not 0 < beta < 1:
        raise ValueError(f"jsd: beta must lie in (0, 1), got {beta}")
    weights = torch.tensor([beta, 1 - beta], dtype=logp.dtype, device=logp.device).log()
    mixture = torch.logsumexp(torch.stack((logp + weights[0], logq + weights[1])), 0)
    return beta * full_kl(logp, mixture) + (1 - beta) * full_kl(logq, mixture)


def total_variation(logp: Tensor, logq: Tensor) -> Tensor:
    """Half the L1 distance of the two distributions over the last axis, in [0, 1]."""
    return 0.5 * (logp.exp() - logq.exp()).abs().sum(-1)
