"""What a script that acts can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


class Controller:
    """Acts for a batch of copies. Most need nothing but the observation; those that do keep it a copy.

    `act` may be called for any number of copies as long as it stays the same; `reset` says whose episode is new, and
    `resync` that something else acted, so that what was expected of the last action does not hold.
    """

    def reset(self, ended: Tensor) -> None:
        """`Bool "B"`: copies whose next observation is the first of an episode."""

    def act(self, obs: Tensor) -> Tensor:
        """Actions for observations `"B *"`."""
        raise NotImplementedError

    def resync(self, moved: Tensor) -> None:
        """`Bool "B"`: copies that another controller moved since the last `act`."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing is kept."""
