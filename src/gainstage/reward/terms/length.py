"""Rewards for the length of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gainstage.registry import component
from gainstage.types import Author, Trajectory


def overlong(length: int, limit: int, buffer: int) -> float:
    """Soft over-long punishment in [-1, 0] (DAPO, arXiv 2503.14476, eq. 13).

    0 up to `limit - buffer`, then falling linearly to -1 at `limit`, -1 beyond.

    Args:
        length: tokens of the answer.
        limit: tokens from which the punishment is full.
        buffer: tokens before the limit over which it grows; 0 punishes only what exceeds the limit.
    """
    free = limit - buffer
    if length <= free:
        return 0.0
    return -1.0 if length > limit or not buffer else (free - length) / buffer


def written_tokens(trajectory: Trajectory) -> int:
    """Tokens that the policy wrote, trained or not; all decisions where no authors are recorded."""
    if "author" in trajectory.columns:
        return int((trajectory.columns["author"] == Author.POLICY).sum())
    return int(trajectory.columns["mask"].sum())


@component("reward")
@dataclass
class Overlong:
    """Punishes answers that come close to the length limit, so that a cut-off is no sudden wall."""

    buffer: int
    """Tokens before the limit over which the punishment grows; larger warns earlier."""
    limit: int | None = None
    """Tokens from which the punishment is full; absent: what the task says an answer needs, and the buffer. Give the
    rollout as much room (`rollout.generate.extra` as large as the buffer), or the punishment is never met."""

    level = "row"

    def __post_init__(self) -> None:
        if self.buffer < 0 or (self.limit is not None and self.buffer > self.limit):
            raise ValueError(
                f"overlong: buffer must lie between 0 and limit, got buffer={self.buffer}, limit={self.limit}"
            )

    def judge(self, trajs: Sequence[Trajectory], ctx: Any) -> list[float | None]:
        limit = ctx.task.max_new + self.buffer if self.limit is None else self.limit
        return [overlong(written_tokens(t), limit, self.buffer) for t in trajs]
