"""Action values as several heads, one for each channel of the reward, each in a space of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gainstage.models.mlp import activation
from gainstage.ops.reward_channels import Channels, named
from gainstage.ops.value_maps import Log, ValueMap, inverse, steps_floor, value_map
from gainstage.policies.control.handle import Trunk, handle_of
from gainstage.policies.control.q_networks import QPolicy, choices
from gainstage.registry import RecipeError, component
from gainstage.types.spaces import Space

PROBE = torch.cat(
    (torch.linspace(-2, 2, 81), torch.tensor([-250.0, -37.0, -10.0, -5.0, 5.0, 10.0, 37.0, 100.0, 250.0]))
)
"""Rewards on which the channels must add up."""


class ChannelNet(nn.Module):
    """A trunk in float32 and L heads in float64: `"N *"` to `"L N A"`, each channel in its own space."""

    def __init__(self, observations: Space, actions: int, heads: int, spec: ChannelQ) -> None:
        super().__init__()
        below = spec.hidden[:-1] if spec.own_layer else spec.hidden
        self.trunk = Trunk(observations, below, spec.activation, normalise=spec.normalise)
        self.share = heads**-0.5 if spec.scale_trunk else 1.0
        self.heads = nn.ModuleList(self._head(actions, spec) for _ in range(heads))

    def _head(self, actions: int, spec: ChannelQ) -> nn.Module:
        if not spec.own_layer:
            return nn.Linear(self.trunk.width, actions).double()
        first = nn.Linear(self.trunk.width, spec.hidden[-1])
        return nn.Sequential(first, activation(spec.activation), nn.Linear(spec.hidden[-1], actions)).double()

    def forward(self, obs: Tensor) -> Tensor:
        features = self.trunk(obs).double()
        if self.share != 1 and features.requires_grad:
            features.register_hook(lambda grad: grad * self.share)
        return torch.stack([head(features) for head in self.heads])


class ChannelPolicy(QPolicy):
    """Acts by the highest sum of its channels."""

    module: ChannelNet  # type: ignore[assignment]
    maps: Sequence[ValueMap]
    channels: Channels
    gamma: float

    @property
    def bound(self) -> float:
        """Largest value of a channel whose rewards are at most 1."""
        return 1 / (1 - self.gamma)

    def mapped(self, obs: Tensor) -> Tensor:
        """Each channel's output in its own space, `Float64 "L N A"`."""
        self.charge(len(obs))
        return self.module(obs)

    def channel_values(self, obs: Tensor) -> Tensor:
        """Each channel's values, `Float64 "L N A"`."""
        return inverse(self.maps, self.mapped(obs))

    def total(self, values: Tensor) -> Tensor:
        """`"L N A"` to `"N A"`: the weighted sum of the channels."""
        return self.channels.total(values)

    def values(self, obs: Tensor, noisy: bool) -> Tensor:
        return self.total(inverse(self.maps, self.module(obs)))


@component("net", "channel_q")
@dataclass
class ChannelQ:
    """Action values in channels: what is good and what is bad, small and large, each learned in a space of its own.

    `scheme: polar` with `maps: log` is logarithmic Q-learning (arXiv 1906.00572); `scheme: stacked` with `maps: loglin`
    takes rewards of any size (arXiv 2203.07171).

    Args:
        scheme: how a reward is split. `whole`: not at all; `polar`: by sign, cut at 1; `bins` and `stacked`: by sign
            and size, up to 1000; `ensemble`: polar, `members` times.
        maps: one for all channels or one each: identity, log, loglin, offset_log, or one with its settings.
        gamma: discount, above 0.
        steps: `log` maps without settings tell apart rewards that are up to so many steps away: their least value is
            `gamma ^ steps`. An output of 0 stands for the value 1 on channels of good, and for the least value on
            channels of bad.
        hidden: widths of the hidden layers.
        own_layer: the last hidden layer is each head's own.
        asymmetric: the output layer of channels of bad starts at zero weights.
        scale_trunk: divides the gradient into the trunk by the root of the number of heads.
        activation: relu, tanh, elu, silu or gelu.
        members: copies of each channel of `ensemble`.
        tops: upper ends of the bins of `bins` and `stacked`.
        normalise: standardise vector observations by running statistics.
        weights: folder of saved weights to start from.
    """

    scheme: Literal["whole", "polar", "bins", "stacked", "ensemble"] = "polar"
    maps: str | list[str | dict[str, dict[str, float]]] = "log"
    gamma: float = 0.96
    steps: int = 100
    hidden: list[int] = field(default_factory=lambda: [128, 128])
    own_layer: bool = False
    asymmetric: bool = False
    scale_trunk: bool = False
    activation: str = "relu"
    members: int = 2
    tops: list[float] = field(default_factory=lambda: [1.0, 10.0, 100.0, 1000.0])
    normalise: bool = False
    weights: str = ""

    fits_task = True

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1:
            raise ValueError(f"gamma must be > 0 and < 1, got {self.gamma}")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"hidden needs at least one layer, all at least 1 wide, got {self.hidden}")
        self.channels = named(self.scheme, self.members, self.tops)
        self.channels.check(PROBE)
        self.made = self._maps()
        if self.scheme == "whole" and any(f.floor is not None for f in self.made):
            raise ValueError(
                "scheme whole has negative values, which only the map identity takes; use polar or another"
            )
        for f in self.made:
            f.check(1 / (1 - self.gamma))

    def _maps(self) -> list[ValueMap]:
        wanted = [self.maps] * len(self.channels) if isinstance(self.maps, str) else self.maps
        if len(wanted) != len(self.channels):
            raise ValueError(f"maps names {len(wanted)} maps, scheme {self.scheme} has {len(self.channels)} channels")
        return [
            self._log(weight) if spec == "log" else value_map(spec)
            for spec, weight in zip(wanted, self.channels.weights, strict=True)
        ]

    def _log(self, weight: float) -> ValueMap:
        eps = steps_floor(self.gamma, self.steps)
        return Log(0.5, 0.0 if weight > 0 else -0.5 * torch.tensor(eps, dtype=torch.float64).log().item(), eps)

    def make(
        self, *, role: str, meter: Any, device: torch.device, trained: bool, task: Any, of: Any = None
    ) -> ChannelPolicy:
        actions = choices(task.action_space, role, "channel_q")
        net = ChannelNet(task.observation_space, actions, len(self.channels), self)
        if self.asymmetric:
            for head, weight in zip(net.heads, self.channels.weights, strict=True):
                if weight < 0:
                    last = head[-1] if isinstance(head, nn.Sequential) else head
                    nn.init.zeros_(last.weight)  # type: ignore[arg-type]
        if device.type == "mps":
            raise RecipeError(
                f"models.{role}: channel_q computes in float64, which this device has not; use cpu or cuda"
            )
        handle = handle_of(ChannelPolicy, net, self, "channel_q", role, meter, device, trained)
        handle.maps, handle.channels, handle.gamma = self.made, self.channels, self.gamma
        return handle
