"""A reward as several streams, each with a head of its own: by sign, by size, or several times over."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx, column

column("channel_rewards", "step", dims="L")


@component("reward")
@dataclass
class Channels:
    """Splits the environment's reward into the channels of a net, and hands on what they add up to.

    What lies beyond the top of the scheme is cut there and counted (`reward/beyond_channels`).

    Args:
        role: whose net names the scheme (`channel_q`).
    """

    role: str = "policy"

    level = "step"
    combine = "replace"
    requires = ("simulator",)
    needs = ("rewards",)
    writes = ("channel_rewards",)

    def __post_init__(self) -> None:
        self.uses = (self.role,)

    def start(self, ctx: Ctx) -> None:
        """Raises RecipeError: the role has no channels, or the store adds rewards up before they can be split."""
        if not hasattr(ctx.models[self.role], "channels"):
            raise RecipeError(
                f"reward.channels: role {self.role!r} has no channels; use models.{self.role}.net=channel_q"
            )
        if getattr(ctx.store, "n_step", 1) > 1:
            raise RecipeError("reward.channels splits every single reward; set store.replay.n_step=1")

    def shape(self, batch: Batch, ctx: Ctx) -> Tensor:
        """`Float "B T"`: the sum of the channels."""
        channels = ctx.models[self.role].channels
        split = channels.split(batch["rewards"])
        batch["channel_rewards"] = split.movedim(0, -1)
        ctx.log("reward/beyond_channels", float(channels.clipped(batch["rewards"]).float().mean()))
        return channels.total(split)
