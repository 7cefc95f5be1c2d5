"""Actors for continuous actions in bounds: a squashed normal and a deterministic one. They act in [-1, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gainstage.ops.distributions import HALF_LOG_TWO_PI, gaussian_log_prob, log_squash
from gainstage.policies.control.action_heads import rescale, unscale
from gainstage.policies.control.handle import NetHandle, Trunk, handle_of
from gainstage.registry import RecipeError, component
from gainstage.types import Act, Batch, PolicyOut
from gainstage.types.spaces import Box, Space, describe_space

LOG_STD = (-5.0, 2.0)
"""Bounds of the log-std before the squash."""


def bounded_box(space: Space, role: str) -> Box:
    """The space itself, where it is continuous and bounded.

    Raises:
        RecipeError: choices, or bounds that are not finite.
    """
    if not isinstance(space, Box) or not space.bounded:
        raise RecipeError(
            f"models.{role}: this net acts in continuous bounds; the task's actions are {describe_space(space)}. "
            "Use a method for choices (dqn, ppo), or for unbounded actions ppo"
        )
    return space


class BoundedHandle(NetHandle):
    """An actor whose actions lie in [-1, 1]; `to_env` brings them into the environment's bounds."""

    def bound(self, space: Box) -> None:
        self.shape = space.shape
        self.low = space.low.reshape(-1).to(self.device)
        self.high = space.high.reshape(-1).to(self.device)

    def to_env(self, action: Tensor) -> Tensor:
        return rescale(action, self.low, self.high).reshape(-1, *self.shape)

    def from_env(self, action: Tensor) -> Tensor:
        """Actions that an environment took, `"N *"`, as this actor would have drawn them."""
        return unscale(action.to(self.low).flatten(1), self.low, self.high).clamp(-1, 1)


class SquashedNet(nn.Module):
    """Trunk, mean and log-std."""

    def __init__(self, observations: Space, actions: int, hidden: list[int], act: str, normalise: bool) -> None:
        super().__init__()
        self.trunk = Trunk(observations, hidden, act, normalise=normalise)
        self.out = nn.Linear(self.trunk.width, 2 * actions)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.out(self.trunk(obs)).chunk(2, -1)
        low, high = LOG_STD
        return mean, low + 0.5 * (high - low) * (torch.tanh(raw) + 1)


class SquashedActor(BoundedHandle):
    """Draws from a normal squashed by tanh (SAC, arXiv 1801.01290, appendix C)."""

    module: SquashedNet

    @torch.no_grad()
    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        mean, log_std = self.module(obs)
        raw = mean + log_std.exp() * torch.randn_like(mean) if explore else mean
        return Act(torch.tanh(raw), None, state)

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """A reparametrised action in [-1, 1] and its log-prob, with gradients: `obs "N *"` to `"N A"`, `"N"`."""
        self.charge(len(obs))
        mean, log_std = self.module(obs)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        density = -0.5 * noise.square() - log_std - HALF_LOG_TWO_PI  # of `raw`, which is `noise` stds from the mean
        return torch.tanh(raw), (density - log_squash(raw)).sum(-1)

    def evaluate(self, batch: Batch, want: Sequence[str] = ()) -> PolicyOut:
        """Log-probs of stored actions in [-1, 1], pulled off the bounds by 1e-6 so that they are finite."""
        obs, lead = self.decisions(batch)
        mean, log_std = self.module(obs)
        raw = torch.atanh(batch["actions"].flatten(0, 1).clamp(-1 + 1e-6, 1 - 1e-6))
        logp = gaussian_log_prob(raw, mean, log_std) - log_squash(raw).sum(-1)
        extras = {"mean": torch.tanh(mean).reshape(*lead, -1)}
        return PolicyOut(logp.reshape(lead), None, None, extras)


@dataclass
class BoundedActor:
    """What every actor in bounds can be told.

    Args:
        hidden: widths of the hidden layers.
        activation: relu, tanh, elu, silu or gelu.
        normalise: standardise vector observations by running statistics.
        weights: folder of saved weights to start from.
    """

    hidden: list[int] = field(default_factory=lambda: [256, 256])
    activation: str = "relu"
    normalise: bool = False
    weights: str = ""

    fits_task = True
    parts: ClassVar[tuple[str, type[nn.Module], type[BoundedHandle]]]
    """Registry name, net and handle."""

    def make(
        self, *, role: str, meter: Any, device: torch.device, trained: bool, task: Any, of: Any = None
    ) -> BoundedHandle:
        name, made, kind = self.parts
        space = bounded_box(task.action_space, role)
        net = made(task.observation_space, int(space.low.numel()), self.hidden, self.activation, self.normalise)
        handle = handle_of(kind, net, self, name, role, meter, device, trained)
        handle.bound(space)
        return handle


@component("net")
@dataclass
class TanhGaussian(BoundedActor):
    """SAC's actor: a state-dependent normal squashed into the action bounds."""

    parts = ("tanh_gaussian", SquashedNet, SquashedActor)


class DeterministicNet(nn.Module):
    """Trunk and a tanh output."""

    def __init__(self, observations: Space, actions: int, hidden: list[int], act: str, normalise: bool) -> None:
        super().__init__()
        self.trunk = Trunk(observations, hidden, act, normalise=normalise)
        self.out = nn.Linear(self.trunk.width, actions)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.out(self.trunk(obs)))


class DeterministicActor(BoundedHandle):
    """One action a state. Exploration is the rollout's business (`gaussian_noise`, `ou_noise`)."""

    module: DeterministicNet

    @torch.no_grad()
    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        return Act(self.module(obs), None, state)

    def sample(self, obs: Tensor) -> tuple[Tensor, None]:
        """The action with its gradient; it has no log-prob."""
        self.charge(len(obs))
        return self.module(obs), None

    def evaluate(self, batch: Batch, want: Sequence[str] = ()) -> PolicyOut:
        """No log-probs (zeros); `extras["mean"]` is the action at every decision."""
        obs, lead = self.decisions(batch)
        action = self.module(obs).reshape(*lead, -1)
        return PolicyOut(torch.zeros(lead, device=obs.device), None, None, {"mean": action})


@component("net")
@dataclass
class TanhMlp(BoundedActor):
    """A deterministic actor in the action bounds (DDPG, TD3)."""

    parts = ("tanh_mlp", DeterministicNet, DeterministicActor)
