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

    limit: int
    """Tokens from which the punishment is full; usually the rollout's `max_new`."""
    buffer: int
    """Tokens before the limit over which the punishment grows; larger warns earlier."""

    level = "row"

    def __post_init__(self) -> None:
        if not 0 <= self.buffer <= self.limit:
            raise ValueError(
                f"overlong: buffer must lie between 0 and limit, got buffer={self.buffer}, limit={self.limit}"
            )

    def judge(self, trajs: Sequence[Trajectory], ctx: Any) -> list[float | None]:
        return [overlong(written_tokens(t), self.limit, self.buffer) for t in trajs]
