"""The last few rollouts: an update learns from the newest one, and from some of what older policies did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gainstage.ops.distributions import numbers_of
from gainstage.ops.noise import mix
from gainstage.registry import component
from gainstage.types import Batch, Ctx, column

column("age", "row")  # rollouts since this one was collected
column("drawn", "step")  # belongs to the newest rollout, or was picked from an older one
column("mu", "step", dims="P")  # the distribution that the action was drawn from, as numbers


@component("store")
@dataclass
class RecentRollouts:
    """Keeps the last rollouts whole, with the distribution that each action was drawn from.

    A round hands out all of them, so that values and advantages can be made anew along each stream; `drawn` marks the
    decisions to learn from: all of the newest rollout, and of older ones a uniform draw without replacement. Put
    `old_rollouts` behind `gae`, which weighs those. With `rollouts: 1` this is `on_policy`.

    Args:
        rollouts: how many are kept.
        share: decisions of older rollouts that are drawn, as a share of the newest one's, at most.
        role: policy that acts.
    """

    rollouts: int = 3
    share: float = 0.5
    role: str = "policy"

    draws = False
    """A round is the whole batch, to be split into epochs of minibatches."""
    writes = ("age", "drawn", "mu")
    requires = ("simulator",)

    def __post_init__(self) -> None:
        if self.rollouts < 1 or self.share < 0:
            raise ValueError(f"rollouts must be at least 1, share at least 0, got {self.rollouts} and {self.share}")
        self.held: list[dict[str, torch.Tensor]] = []
        self.uses = (self.role,)

    def __len__(self) -> int:
        return len(self.held)

    @torch.no_grad()
    def add(self, experience: Batch, ctx: Ctx) -> None:
        """Keep a rollout, drop the oldest.

        Raises:
            ValueError: nobody recorded the log-probs of its actions.
        """
        if "behaviour_logprobs" not in experience:
            raise ValueError(
                "store.recent_rollouts: the rollout recorded no log-probs of its actions, so they cannot be weighed "
                "later; let a policy act that draws from a distribution, without exploration around it"
            )
        mu = numbers_of(ctx.models[self.role].distribution(experience))
        self.held = [*self.held, {**experience.columns, "mu": mu}][-self.rollouts :]

    def rounds(self, plan: Any, ctx: Ctx) -> Iterator[Batch]:
        """All that is held as one batch, newest first."""
        newest_first = self.held[::-1]
        columns = {name: torch.cat([held[name] for held in newest_first]) for name in newest_first[0]}
        mask = columns["mask"]
        ages = torch.tensor([age for age, held in enumerate(newest_first) for _ in held["mask"]], device=mask.device)
        yield Batch({**columns, "age": ages, "drawn": self._draw(mask, ages, ctx)})

    def _draw(self, mask: torch.Tensor, ages: torch.Tensor, ctx: Ctx) -> torch.Tensor:
        new = (ages == 0).unsqueeze(1)
        older = torch.nonzero((mask & ~new).flatten()).squeeze(1)
        count = min(int(self.share * int((mask & new).sum())), len(older))
        generator = torch.Generator().manual_seed(mix("recent_rollouts", ctx.seed, ctx.iteration))
        drawn = (mask & new).flatten()
        drawn[older[torch.randperm(len(older), generator=generator)[:count]]] = True
        return drawn.view_as(mask)

    def column(self, name: str) -> torch.Tensor:
        return torch.cat([held[name] for held in self.held])

    def state_dict(self) -> dict[str, Any]:
        return {"held": [dict(held) for held in self.held]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.held = [dict(held) for held in state["held"]]
