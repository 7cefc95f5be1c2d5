"""The protocol of everything that is stepped: many copies of an environment in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from gainstage.types.records import Problem
from gainstage.types.spaces import Space


@dataclass
class Stepped:
    """What a step of `B` copies brings. A copy whose episode ended has started its next one already.

    `next_obs` is what the action led to, `obs` what the next action answers: they differ where an episode ended, and
    `obs` is its successor's first observation there. So every step is a transition and none is a reset. Nobody writes
    to these tensors afterwards: who looks on may keep them.
    """

    obs: Tensor
    reward: Tensor
    """`Float32 "B"`, as the environment pays it."""
    terminated: Tensor
    """`Bool "B"`: a real end, no value follows."""
    truncated: Tensor
    """`Bool "B"`: cut off by a limit, a value follows. Both flags set is a real end."""
    next_obs: Tensor
    info: Mapping[str, Tensor] = field(default_factory=dict)
    """Further facts of this step, `"B *"`: `success`, costs, reward parts. The same keys at every step."""
    real: Tensor | None = None
    """`Bool "B"`: false where nothing was decided, because somebody else's vector environment spent the step on its own
    restart; such a step is no transition. None, as of all environments made here: every step is one."""


class BatchedEnv(Protocol):
    """`size` copies of one environment, stepped together; each copy is started again when its episode ends.

    A copy's episodes depend on its own seed and its own actions alone: neither on its batch mates nor on how many
    there are.
    """

    size: int
    observation_space: Space
    action_space: Space
    device: torch.device

    def reset(self, seeds: Sequence[int]) -> Tensor:
        """Start every copy anew with its own seed; the first observations `"B *"`."""
        ...

    def step(self, action: Tensor) -> Stepped: ...

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on bit for bit: tensors, numbers, text."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class ControlTask(Protocol):
    """A task whose problems are starts of episodes. Capability `simulator`; `goal` where rewards depend on goals."""

    name: str
    capabilities: frozenset[str]
    observation_space: Space
    action_space: Space
    max_steps: int | None
    """Steps after which an episode is cut off; None where nothing cuts it."""

    def make(self, copies: int, device: torch.device | str = "cpu") -> BatchedEnv: ...

    def problems(self, split: str) -> Sequence[Problem]:
        """Starts: `meta["seed"]` is handed to `reset`. Splits never share one."""
        ...
