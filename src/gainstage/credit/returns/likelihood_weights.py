"""Weights of samples in a weighted likelihood: reward-weighted regression and its relatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gainstage.credit import ROW_REWARDS
from gainstage.registry import component
from gainstage.types import Batch

Scheme = Literal["success", "return", "positive", "plus_minus", "exp"]


def likelihood_weights(
    r: Tensor, scheme: Scheme = "positive", success_at: float = 1.0, temp: float = 1.0, max_weight: float = 100.0
) -> Tensor:
    """One weight a row, `Float "N"`.

    `success`: 1 from `success_at` on, else 0 (filtered imitation). `return`: the reward itself (REINFORCE).
    `positive`: max(r, 0) (RAFT, arXiv 2504.11343). `plus_minus`: +1 for success, -1 otherwise.
    `exp`: exp(r / temp), at most `max_weight` (RWR, AWR: arXiv 1910.00177).

    Raises:
        ValueError: unknown scheme or temp <= 0.
    """
    if temp <= 0:
        raise ValueError(f"likelihood_weights.temp must be positive, got {temp}")
    success = (r >= success_at - 1e-6).to(torch.float32)
    if scheme == "success":
        return success
    if scheme == "return":
        return r.clone()
    if scheme == "positive":
        return r.clamp(min=0)
    if scheme == "plus_minus":
        return 2 * success - 1
    if scheme == "exp":
        return (r / temp).exp().clamp(max=max_weight)
    raise ValueError(f"likelihood_weights.scheme must be success, return, positive, plus_minus or exp, got {scheme!r}")


@component("credit")
@dataclass
class LikelihoodWeights:
    """Each row's log-likelihood is weighted by a function of its reward."""

    scheme: Scheme = "positive"
    """`positive` and `success` learn from good samples only; `exp` from all, more from better ones."""
    success_at: float = 1.0
    """Reward that counts as success."""
    temp: float = 1.0
    """`exp`: lower concentrates on the best samples."""
    max_weight: float = 100.0
    """`exp`: largest weight."""
    source: Literal["reward", "advantage"] = "reward"
    """What is weighed: the row's reward, or the advantage an earlier component wrote (AWR)."""

    writes = ("advantage",)

    def __post_init__(self) -> None:
        if self.temp <= 0:
            raise ValueError(f"likelihood_weights.temp must be positive, got {self.temp}")

    @property
    def needs(self) -> tuple[str, ...]:
        return ROW_REWARDS if self.source == "reward" else ("advantage",)

    def assign(self, batch: Batch) -> dict[str, Tensor]:
        r = batch.rewards_at("row") if self.source == "reward" else batch["advantage"]
        return {"advantage": likelihood_weights(r, self.scheme, self.success_at, self.temp, self.max_weight)}
