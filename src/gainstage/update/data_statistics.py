"""What a net takes from a fixed data set before it learns: statistics of observations, the range of returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from gainstage.registry import RecipeError, component
from gainstage.types import Ctx
from gainstage.update.statistics import normalizers


@component("update")
@dataclass
class DataStatistics:
    """Sets mean and variance of observations, of all recorded ones alike, in every net made with `normalise: true`.

    They are fixed before the first step and do not depend on how data are weighted or drawn.

    Args:
        roles: nets; empty = all that keep statistics.
    """

    roles: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.uses = tuple(self.roles)

    def start(self, ctx: Ctx) -> None:
        """Raises RecipeError: no net keeps statistics, or the store holds no recorded episodes."""
        store: Any = ctx.store
        if not hasattr(store, "lengths"):
            raise RecipeError("update.data_statistics: it needs a store of recorded episodes: offline or windows")
        known = self.roles or sorted(ctx.models.handles)  # type: ignore[attr-defined]
        found = normalizers(ctx, known)
        if not found:
            raise RecipeError(f"update.data_statistics: no role keeps statistics; set models.{known[0]}.normalise=true")
        for statistics in found:
            if float(statistics.count) == 0:
                statistics.update(store.column("obs"))


@component("update")
@dataclass
class ReturnRange:
    """Tells a policy that is asked for a return what good recorded ones are, and the size of returns.

    Args:
        role: a policy with `target` and `scale`.
        quantile: of the recorded returns, in [0, 1], which is asked for; 1 = the best one. Where an episode's return
            hangs on its start, the best one was luck, and asking for it everywhere asks for what cannot be.
    """

    role: str = "policy"
    quantile: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise ValueError(f"quantile must lie in [0, 1], got {self.quantile}")
        self.uses = (self.role,)

    def start(self, ctx: Ctx) -> None:
        """Raises RecipeError: the policy is asked for nothing."""
        module = ctx.models[self.role].module
        if not isinstance(getattr(module, "target", None), torch.Tensor):
            raise RecipeError(
                f"update.return_range: models.{self.role} is not asked for a return; use the net decision_transformer"
            )
        returns = ctx.store.returns()
        module.target.fill_(float(torch.quantile(returns.double(), self.quantile)))
        module.scale.fill_(max(float(returns.abs().max()), 1e-6))
