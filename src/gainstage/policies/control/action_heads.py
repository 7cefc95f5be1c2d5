"""From features to a distribution over actions of any space, and from there to what the environment takes."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from gainstage.ops.distributions import (
    Categorical,
    Distribution,
    Gaussian,
    MultiBernoulli,
    MultiCategorical,
    TanhGaussian,
)
from gainstage.registry import RecipeError
from gainstage.types.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, describe_space

HeadKind = Literal["auto", "gaussian", "tanh"]
LOG_STD = (-20.0, 2.0)
"""Bounds of a state-dependent log-std."""


class ActionHead(nn.Module):
    """The last layer of a policy. `forward(features) -> Distribution`.

    Continuous actions: `gaussian` draws from a normal that knows no bounds and the environment gets the clipped action;
    `tanh` squashes into the bounds. Either way what is kept is what was drawn, before clip or squash. `auto` is
    gaussian.

    Args:
        width: of the features.
        space: of the actions.
        kind: for continuous actions.
        log_std: start of the log-std.
        state_std: the log-std depends on the state (else it is one parameter an action).
        gain: of the orthogonal start; None = torch's own.

    Raises:
        RecipeError: a kind that the space does not have, or a tanh head on a space without bounds.
    """

    def __init__(
        self, width: int, space: Space, kind: HeadKind = "auto", log_std: float = 0.0, state_std: bool = False,
        gain: float | None = 0.01,
    ) -> None:  # fmt: skip
        super().__init__()
        self.space, self.state_std = space, state_std
        self.kind = _kind(space, kind)
        if isinstance(space, Box):
            size = int(space.low.numel())
            self.out = nn.Linear(width, 2 * size if state_std else size)
            if not state_std:
                self.log_std = nn.Parameter(torch.full((size,), float(log_std)))
            self.register_buffer("low", space.low.reshape(-1).clone(), persistent=False)
            self.register_buffer("high", space.high.reshape(-1).clone(), persistent=False)
        else:
            self.out = nn.Linear(width, _logits(space))
        if gain is not None:
            nn.init.orthogonal_(self.out.weight, gain)
            nn.init.zeros_(self.out.bias)

    def forward(self, features: Tensor) -> Distribution:
        out = self.out(features)
        space = self.space
        if isinstance(space, Discrete):
            return Categorical(out)
        if isinstance(space, MultiDiscrete):
            return MultiCategorical(out, space.nvec)
        if isinstance(space, MultiBinary):
            return MultiBernoulli(out)
        if self.state_std:
            mean, log_std = out.chunk(2, -1)
            log_std = log_std.clamp(*LOG_STD)
        else:
            mean, log_std = out, self.log_std.expand_as(out)
        return TanhGaussian(mean, log_std) if self.kind == "tanh" else Gaussian(mean, log_std)

    def to_env(self, action: Tensor) -> Tensor:
        """What the environment takes for an action as it was drawn."""
        if not isinstance(self.space, Box):
            return action
        if self.kind == "tanh":
            action = rescale(torch.tanh(action), self.low, self.high)  # type: ignore[arg-type]
        else:
            action = torch.maximum(torch.minimum(action, self.high), self.low)  # type: ignore[arg-type]
        return action.reshape(-1, *self.space.shape)

    def from_env(self, action: Tensor) -> Tensor:
        """The other way round: recorded actions `"N *"` as they would have been drawn (bounds pulled in by 1e-6)."""
        if not isinstance(self.space, Box):
            return action
        flat = action.flatten(1).to(self.low)  # type: ignore[arg-type]
        if self.kind == "tanh":
            return torch.atanh(unscale(flat, self.low, self.high).clamp(-1 + 1e-6, 1 - 1e-6))  # type: ignore[arg-type]
        return flat


def rescale(action: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """From [-1, 1] to the bounds."""
    return low + (action + 1) * 0.5 * (high - low)


def unscale(action: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """From the bounds to [-1, 1]."""
    return 2 * (action - low) / (high - low) - 1


def _kind(space: Space, kind: HeadKind) -> str:
    if not isinstance(space, Box):
        if kind != "auto":
            raise RecipeError(f"head {kind} is for continuous actions; {describe_space(space)} takes head: auto")
        return "auto"
    if space.dtype != torch.float32 or not space.low.numel():
        raise RecipeError(f"actions in {describe_space(space)} are not supported: a Box of float32 numbers is")
    if kind == "tanh" and not space.bounded:
        raise RecipeError("head tanh needs an action space with finite bounds; use head: gaussian")
    return "gaussian" if kind == "auto" else kind


def _logits(space: Space) -> int:
    if isinstance(space, MultiDiscrete):
        return sum(space.nvec)
    assert isinstance(space, Discrete | MultiBinary)
    return space.n
