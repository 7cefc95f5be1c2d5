"""Distributions over actions: one contract for sampling, log-prob, entropy and divergence.

Batch axes lead, `"..."`. A squashed action is kept as the number before the squash, so that its log-prob is exact at
any distance from the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, softplus

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Distribution(Protocol):
    """`Float "..."` log-probs and entropies of actions `"... A"` (or `"..."` for a single choice)."""

    def sample(self) -> Tensor: ...

    def mode(self) -> Tensor: ...

    def log_prob(self, action: Tensor) -> Tensor: ...

    def entropy(self) -> Tensor: ...

    def kl(self, other: Any) -> Tensor:
        """`KL(self || other)`, both of one kind."""
        ...


class Categorical:
    """One of N choices. Logits of minus infinity are choices that are not allowed."""

    def __init__(self, logits: Tensor) -> None:
        self.logp = log_softmax(logits, -1)

    def sample(self) -> Tensor:
        # Gumbel's trick with exponential noise: no normalisation, no synchronisation
        return (self.logp - torch.empty_like(self.logp).exponential_().log()).argmax(-1)

    def mode(self) -> Tensor:
        return self.logp.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.logp.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -_expected(self.logp, self.logp)

    def kl(self, other: Categorical) -> Tensor:
        return _expected(self.logp, self.logp - other.logp)


def _expected(logp: Tensor, value: Tensor) -> Tensor:
    """`sum p value`, where a choice of probability 0 adds nothing."""
    p = logp.exp()
    return torch.where(p > 0, p * value, 0.0).sum(-1)


class MultiCategorical:
    """Independent choices side by side: `logits "... sum(nvec)"`, actions `Int64 "... K"`."""

    def __init__(self, logits: Tensor, nvec: Sequence[int]) -> None:
        self.parts = [Categorical(part) for part in logits.split(list(nvec), -1)]

    def sample(self) -> Tensor:
        return torch.stack([part.sample() for part in self.parts], -1)

    def mode(self) -> Tensor:
        return torch.stack([part.mode() for part in self.parts], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        return torch.stack([p.log_prob(action[..., k]) for k, p in enumerate(self.parts)], -1).sum(-1)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts], -1).sum(-1)

    def kl(self, other: MultiCategorical) -> Tensor:
        return torch.stack([a.kl(b) for a, b in zip(self.parts, other.parts, strict=True)], -1).sum(-1)


@dataclass
class MultiBernoulli:
    """Independent switches: `logits "... K"`, actions `Int64 "... K"` of 0 and 1."""

    logits: Tensor

    def sample(self) -> Tensor:
        return (torch.rand_like(self.logits) < torch.sigmoid(self.logits)).long()

    def mode(self) -> Tensor:
        return (self.logits > 0).long()

    def log_prob(self, action: Tensor) -> Tensor:
        return -binary_cross_entropy_with_logits(self.logits, action.to(self.logits), reduction="none").sum(-1)

    def entropy(self) -> Tensor:
        p = torch.sigmoid(self.logits)
        return binary_cross_entropy_with_logits(self.logits, p, reduction="none").sum(-1)

    def kl(self, other: MultiBernoulli) -> Tensor:
        p = torch.sigmoid(self.logits)
        cross = binary_cross_entropy_with_logits(other.logits, p, reduction="none")
        return (cross - binary_cross_entropy_with_logits(self.logits, p, reduction="none")).sum(-1)


@dataclass
class Gaussian:
    """Diagonal normal: `mean`, `log_std`, `"... A"` (they broadcast). What is sampled is not clipped."""

    mean: Tensor
    log_std: Tensor

    def sample(self) -> Tensor:
        """Carries gradients to mean and std (reparametrised)."""
        return self.mean + self.log_std.exp() * torch.randn_like(self.mean)

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        return gaussian_log_prob(action, self.mean, self.log_std)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 + HALF_LOG_TWO_PI).expand_as(self.mean).sum(-1)

    def kl(self, other: Gaussian) -> Tensor:
        return gaussian_kl(self.mean, self.log_std, other.mean, other.log_std)


class TanhGaussian(Gaussian):
    """A normal squashed by tanh into (-1, 1). Actions are given before the squash; log-probs are those after it."""

    def log_prob(self, action: Tensor) -> Tensor:
        return gaussian_log_prob(action, self.mean, self.log_std) - log_squash(action).sum(-1)

    def entropy(self) -> Tensor:
        """Estimated from one sample; the exact one has no closed form."""
        return -self.log_prob(self.sample())


def held(dist: Any) -> Any:
    """A copy that stays what it is, whatever becomes of the net that made it; no gradient reaches it."""
    twin = copy(dist)
    for name, value in vars(dist).items():
        if isinstance(value, Tensor):
            setattr(twin, name, value.detach().clone())
        elif isinstance(value, list):
            setattr(twin, name, [held(part) for part in value])
    return twin


def numbers_of(dist: Distribution) -> Tensor:
    """All that a distribution is made of, `"... P"`: to be stored, and made into one again by `of_numbers`."""
    if isinstance(dist, Categorical):
        return dist.logp
    if isinstance(dist, MultiCategorical):
        return torch.cat([part.logp for part in dist.parts], -1)
    if isinstance(dist, MultiBernoulli):
        return dist.logits
    assert isinstance(dist, Gaussian), f"{type(dist).__name__} cannot be stored"
    return torch.cat((dist.mean, dist.log_std.expand_as(dist.mean)), -1)


def of_numbers(like: Distribution, numbers: Tensor) -> Distribution:
    """The distribution that was stored as `numbers "... P"`, of the same kind and space as `like`."""
    if isinstance(like, MultiCategorical):
        return MultiCategorical(numbers, [part.logp.shape[-1] for part in like.parts])
    if isinstance(like, Gaussian):
        return type(like)(*numbers.chunk(2, -1))
    assert isinstance(like, Categorical | MultiBernoulli), f"{type(like).__name__} cannot be stored"
    return type(like)(numbers)


def gaussian_log_prob(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of a diagonal normal, summed over the last axis."""
    return (-0.5 * ((x - mean) * (-log_std).exp()).square() - log_std - HALF_LOG_TWO_PI).sum(-1)


def gaussian_kl(mean_p: Tensor, log_std_p: Tensor, mean_q: Tensor, log_std_q: Tensor) -> Tensor:
    """`KL(p || q)` of diagonal normals, summed over the last axis."""
    gap = (mean_p - mean_q) * (-log_std_q).exp()
    ratio = 2 * (log_std_p - log_std_q)
    return 0.5 * (ratio.exp() + gap.square() - 1 - ratio).sum(-1)


def log_squash(x: Tensor) -> Tensor:
    """`log(1 - tanh(x)^2)`, exact for large x (Haarnoja et al., arXiv 1812.05905, appendix C, in stable form)."""
    return 2 * (math.log(2) - x - softplus(-2 * x))
