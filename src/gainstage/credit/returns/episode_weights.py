"""Which episodes of a stepped fragment are imitated: those that succeeded, or returned enough."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.ops.pieces import Pieces
from gainstage.registry import RecipeError, component
from gainstage.types import Batch


@component("credit")
@dataclass
class EpisodeSuccess:
    """Weight 1 for every decision of a successful episode, 0 for all others; parts of episodes are left out.

    Imitating what is kept is success conditioning: at every state the policy becomes `pi(a|s) Q(s,a) / V(s)`
    (arXiv 2601.18175). Every decision counts the same, whatever the length of its episode.

    Args:
        by: `success` = the environment says so at some step; `return` = the undiscounted return reaches the threshold.
        threshold: return that counts as success.
        quantile: instead of `threshold`: above this quantile of the latest episodes' returns, in [0, 1); where none of
            the batch's lies above it, those that reach it.
        window: episodes that the quantile is taken over; 0 = those of the batch.
    """

    by: Literal["success", "return"] = "success"
    threshold: float | None = None
    quantile: float | None = None
    window: int = 0

    needs = ("rewards", "terminated", "cut", "start", "mask", "info/success?")
    writes = ("mask", "advantages")

    def __post_init__(self) -> None:
        given = [self.threshold is not None, self.quantile is not None]
        if self.by == "return" and sum(given) != 1:
            raise ValueError("by: return needs either threshold (a return) or quantile (of returns)")
        if self.by == "success" and any(given):
            raise ValueError("threshold and quantile are for by: return")
        if self.quantile is not None and not 0 <= self.quantile < 1:
            raise ValueError(f"quantile must lie in [0, 1), got {self.quantile}")
        if self.window < 0:
            raise ValueError(f"window must be at least 0, got {self.window}")
        self.latest: deque[float] = deque(maxlen=self.window or None)
        self.warned = False
        self.counts = (0, 0)

    def assign(self, batch: Batch) -> dict[str, Tensor]:
        mask = batch["mask"].bool()
        ends = batch["terminated"].bool() | batch["cut"].bool()
        pieces = Pieces.of(batch["start"].bool(), ends, mask)
        good = self._good(batch, pieces, mask) & pieces.whole
        self.counts = int(good.sum()), int(pieces.whole.sum())
        if not self.counts[0] and not self.warned:
            self.warned = True
            said = (
                f"the success rate is below about {3 / self.counts[1]:.2g}"
                if self.counts[1]
                else "no episode was whole"
            )
            warnings.warn(f"episode_success: no successful episode, nothing is learned from it; {said}", stacklevel=2)
        kept = mask & good[pieces.number]
        return {"mask": kept, "advantages": kept.to(torch.float32)}

    def _good(self, batch: Batch, pieces: Pieces, mask: Tensor) -> Tensor:
        if self.by == "success":
            if "info/success" not in batch:
                raise RecipeError(
                    "credit.episode_success: the environment says nothing of success; use by: return with a threshold"
                )
            return pieces.total(batch["info/success"].double() * mask) > 0
        returns = pieces.total(torch.where(mask, batch["rewards"], 0.0))
        if self.threshold is not None:
            return returns >= self.threshold
        found = returns[pieces.whole].tolist()
        if self.window:
            self.latest.extend(found)
            found = list(self.latest)
        if not found:
            return torch.zeros_like(pieces.whole)
        bar = torch.quantile(torch.tensor(found, dtype=torch.float64), float(self.quantile or 0.0))
        above = (returns > bar) & pieces.whole
        return above if self.quantile and bool(above.any()) else returns >= bar

    def statistics(self, batch: Batch) -> dict[str, float]:
        """Shares of episodes and decisions that are imitated."""
        return {
            "success/rate": self.counts[0] / max(1, self.counts[1]),
            "success/kept": float(batch["mask"].float().mean()),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"latest": list(self.latest), "warned": self.warned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.latest.extend(state["latest"])
        self.warned = bool(state["warned"])
