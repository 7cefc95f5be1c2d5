"""What nets of intrinsic rewards read: observations of any space as numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from gainstage.models.mlp import MLP, ConvEncoder
from gainstage.types.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, random_choices


def numbers(space: Space, obs: Tensor) -> Tensor:
    """Observations `"N *"` as floats: pictures keep their shape, a choice becomes a one, all else lies flat."""
    if isinstance(space, Discrete):
        return one_hot(obs, space.n).float()
    if isinstance(space, Box) and len(space.shape) == 3:
        return obs.float()
    return obs.reshape(len(obs), -1).float()


def shape_of(space: Space) -> tuple[int, ...]:
    """Shape of one observation as `numbers` gives it."""
    if isinstance(space, Discrete):
        return (space.n,)
    if isinstance(space, MultiDiscrete | MultiBinary):
        return (len(space.nvec) if isinstance(space, MultiDiscrete) else space.n,)
    return space.shape if len(space.shape) == 3 else (max(1, int(space.low.numel())),)


def net(shape: tuple[int, ...], hidden: list[int], out: int, act: str = "relu") -> nn.Module:
    """From numbers of that shape to `out` features: convolutions first where they are pictures."""
    gain = 2**0.5
    if len(shape) == 3:
        return nn.Sequential(ConvEncoder(shape, hidden[0], gain), MLP([*hidden, out], act, gain=gain))
    return MLP([shape[0], *hidden, out], act, gain=gain)


def random_actions(space: Space, count: int, device: torch.device) -> Tensor:
    """Actions as the environment takes them, all alike; where a Box has no bounds, standard normal."""
    if not isinstance(space, Box):
        return random_choices(space, count).to(device)
    if not space.bounded:
        return torch.randn(count, *space.shape, device=device)
    low, high = space.low.to(device), space.high.to(device)
    return low + (high - low) * torch.rand(count, *space.shape, device=device)
