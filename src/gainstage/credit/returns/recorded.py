"""Credit from recorded experience: rewards to go, targets from state values, advantages of recorded actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gainstage.credit.returns.td_targets import SmoothedTarget, Target
from gainstage.credit.tokens.whiten import whiten
from gainstage.ops.members import one_value
from gainstage.ops.reward_to_go import reward_to_go
from gainstage.registry import component
from gainstage.types import Batch, Ctx, column

column("state_returns", "step")  # target of a state's value where it is not that of the action's


@component("credit")
@dataclass
class ValueTarget(Target):
    """IQL's target: the reward and the state value after it, which saw recorded actions alone (arXiv 2110.06169).

    Args:
        value: role with state values.
    """

    value: str = "value"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.uses = (self.value,)

    def after(self, batch: Batch, obs: Tensor, ctx: Ctx) -> Tensor:
        return ctx.models[self.value].v(obs)


@component("credit")
@dataclass
class LowerTarget(SmoothedTarget):
    """TD3's target, and for state values the lower of it and that of the learning critics (A2PR, arXiv 2405.19909).

    Both value one and the same action. Writes `returns` and `state_returns`.

    Args:
        online: role of the learning critics.
    """

    online: str = "critic"

    writes: tuple[str, ...] = field(default=("returns", "state_returns"), init=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.uses: tuple[str, ...] = (*self.uses, self.online)  # type: ignore[assignment]

    def estimate(self, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        obs = batch["obs"][:, -1]
        action = self.smoothed(obs, ctx)
        both = [
            self.returns(batch, one_value(ctx.models[role].q(obs, action), self.members))
            for role in (self.critic, self.online)
        ]
        return {"returns": both[0].unsqueeze(1), "state_returns": torch.minimum(*both).unsqueeze(1)}


@component("credit")
@dataclass
class ActionAdvantage:
    """How much the recorded action is worth beyond its state: the lesser critic's value less the state's.

    Args:
        critic, value: roles.
    """

    critic: str = "critic_target"
    value: str = "value"

    needs = ("obs", "actions")
    writes = ("advantage",)

    def __post_init__(self) -> None:
        self.uses = (self.critic, self.value)

    def estimate(self, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        obs = batch["obs"][:, 0]
        q = one_value(ctx.models[self.critic].q(obs, batch["actions"][:, 0]))
        return {"advantage": q - ctx.models[self.value].v(obs)}


@component("credit")
@dataclass
class RecordedReturns:
    """The reward to go of each drawn transition, discounted, as it was recorded: Monte Carlo targets without a model.

    Where a time limit cut an episode off, what would have followed counts as nothing.

    Args:
        gamma: discount of one step.
    """

    gamma: float = 0.99

    writes = ("returns",)

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie in [0, 1], got {self.gamma}")
        self.table: Tensor | None = None

    def estimate(self, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        store: Any = ctx.store
        if self.table is None:
            self.table = reward_to_go(store.column("rewards"), store.lengths, self.gamma).float()
        assert batch.origin is not None
        row, step = batch.origin
        assert step is not None
        place = (store.offsets[row.cpu()] + step.cpu()).unsqueeze(1) + torch.arange(batch.steps)
        out = self.table[place.clamp(max=len(self.table) - 1)].to(batch.device)
        return {"returns": torch.where(batch["mask"], out, 0.0)}


@component("credit")
@dataclass
class StateAdvantage:
    """How much more came than the state's value said: `returns` less it (AWR, arXiv 1910.00177).

    Args:
        value: role with state values.
        scale: bring the batch to mean 0 and std 1, so that a temperature means the same in every task.
    """

    value: str = "value"
    scale: bool = True

    needs = ("obs", "returns")
    writes = ("advantage",)

    def __post_init__(self) -> None:
        self.uses = (self.value,)

    def estimate(self, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        gap = batch["returns"][:, 0] - ctx.models[self.value].v(batch["obs"][:, 0])
        return {"advantage": whiten(gap, torch.ones_like(gap, dtype=torch.bool), ddof=1) if self.scale else gap}
