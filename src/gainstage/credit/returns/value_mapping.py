"""Targets that are averaged as values and learned in another space, one for each channel of the reward.

Sources: logarithmic Q-learning (arXiv 1906.00572) and orchestrated value mapping (arXiv 2203.07171).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.credit.returns.td_targets import td_target
from gainstage.ops.value_maps import ValueMap, forward
from gainstage.registry import component
from gainstage.types import Batch, Ctx, column

column("channel_rewards", "step", dims="L")  # what each channel makes of the reward
column("mapped_targets", "step", dims="L")  # what each channel's output is drawn towards, in that channel's space

Floor = Literal["sample", "mean"]


def mapped_target(
    rewards: Tensor, terminated: Tensor, after: Tensor, now: Tensor, maps: Sequence[ValueMap], gamma: float | Tensor,
    beta: float = 1.0, bound: float | None = None, clip_now: bool = True, floor: Floor = "mean",
    cap: float | None = None,
) -> Tensor:  # fmt: skip
    """`f_j(Q_j + beta (U_j - Q_j))` with `U_j = r_j + gamma Q_j'`, `Float64 "L B"`.

    Samples are averaged as values with the step `beta`, and only then mapped: averaging in the mapped space would be
    biased low where targets are random (Jensen).

    Args:
        rewards: `"L B"`, each channel's.
        terminated: `Bool "B"`; no value follows, and `after` is not read.
        after: `"L B"`, each channel's value of the one action that is best in all of them together.
        now: `"L B"`, value of the action taken, by the net that learns.
        maps: one a channel.
        gamma: discount, or what the value counts for each row.
        beta: share of the way from `now` to the sample.
        bound: largest possible value; `after` (and `now`, where `clip_now`) is cut to [0, bound]. None = no cut.
        floor: `sample` lifts `U_j` to the map's least value, `mean` what is mapped.
        cap: largest possible `U_j`, where the return is known to be bounded.

    Raises:
        ValueError: as many maps as channels are needed; beta outside (0, 1].
    """
    if not len(maps) == len(rewards) == len(after) == len(now):
        raise ValueError(f"{len(maps)} maps for {len(rewards)} channels of reward and {len(after)} of values")
    if not 0 < beta <= 1:
        raise ValueError(f"beta must lie in (0, 1], got {beta}")
    rewards, after, now = rewards.double(), after.double(), now.double()
    if bound is not None:
        after = after.clamp(0, bound)
        now = now.clamp(0, bound) if clip_now else now
    sample = td_target(rewards, terminated, after, gamma)
    sample = sample if cap is None else sample.clamp(max=cap)
    lowest = [f.floor for f in maps]
    if floor == "sample":
        sample = _lift(sample, lowest)
    return forward(maps, _lift(now.lerp(sample, beta), lowest))


def _lift(values: Tensor, lowest: Sequence[float | None]) -> Tensor:
    rows = (row if low is None else row.clamp(min=low) for row, low in zip(values, lowest, strict=True))
    return torch.stack(list(rows))


@component("credit")
@dataclass
class MappedTarget:
    """Each channel's target in its own space; the action after the reward is the best of all channels together.

    Maps, channels and discount are the net's (`channel_q`).

    Args:
        policy, target: roles.
        beta: step of the average over samples; times the learning rate it is the step of ordinary Q-learning.
        bounded: cut values after the reward to [0, 1 / (1 - gamma)].
        bounded_now: cut the value of the action taken as well.
        floor: where the least value of a map is held: on the `sample` (logarithmic Q-learning) or on the `mean`.
    """

    policy: str = "policy"
    target: str = "policy_target"
    beta: float = 0.1
    bounded: bool = True
    bounded_now: bool = True
    floor: Floor = "mean"

    needs = ("obs", "actions", "terminated", "channel_rewards")
    writes = ("mapped_targets",)

    def __post_init__(self) -> None:
        if not 0 < self.beta <= 1:
            raise ValueError(f"beta must lie in (0, 1], got {self.beta}")
        self.uses = (self.policy, self.target)

    def estimate(self, batch: Batch, ctx: Ctx) -> dict[str, Tensor]:
        learning: Any = ctx.models[self.policy]
        lagging: Any = ctx.models[self.target]
        rows = torch.arange(batch.rows, device=batch.device)
        every = lagging.channel_values(batch["obs"][:, -1])
        best = lagging.total(every).argmax(-1)
        now = learning.channel_values(batch["obs"][:, 0])[:, rows, batch["actions"][:, 0]]
        target = mapped_target(
            batch["channel_rewards"][:, 0].T, batch["terminated"][:, 0], every[:, rows, best], now, learning.maps,
            learning.gamma, self.beta, learning.bound if self.bounded else None, self.bounded_now, self.floor,
        )  # fmt: skip
        return {"mapped_targets": target.T.unsqueeze(1)}
