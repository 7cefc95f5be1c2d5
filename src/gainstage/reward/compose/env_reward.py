"""The rewards of an environment as an entry of the list, so that they can be transformed before anything learns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gainstage.registry import component
from gainstage.types import Batch, Ctx


@component("reward")
@dataclass
class EnvReward:
    """What the environment pays, to be clipped, scaled or weighted: `{env_reward: {then: [{clip_reward: {high: 1}}]}}`.

    The result replaces the rewards where they are learned from; what is reported, and evaluation, stay as the task
    pays. Put it before entries that add something.
    """

    level = "step"
    combine = "replace"
    requires = ("simulator",)
    needs = ("rewards",)

    def shape(self, batch: Batch, ctx: Ctx) -> Tensor:
        """`Float "B T"`."""
        return batch["rewards"]
