"""Action values: nets that act by them (choices), and critics of continuous actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gainstage.models.mlp import Ensemble
from gainstage.policies.control.actors import bounded_box
from gainstage.policies.control.handle import Encoder, NetHandle, handle_of
from gainstage.policies.control.q_heads import ChoiceNet, QSettings
from gainstage.registry import RecipeError, component
from gainstage.types import Act
from gainstage.types.spaces import Box, Discrete, Space, describe_space


class CriticNet(nn.Module):
    """`members` critics of continuous actions side by side."""

    def __init__(self, observations: Space, actions: int, spec: QCritic) -> None:
        super().__init__()
        self.encoder = Encoder(observations, spec.normalise)
        sizes = [self.encoder.width + actions, *spec.hidden, 1]
        self.heads = Ensemble(spec.members, sizes, spec.activation, norm=spec.norm)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.heads(torch.cat((self.encoder(obs), action), -1)).squeeze(-1)


class Critic(NetHandle):
    """`q(obs, action)`: values of continuous actions by every member."""

    module: CriticNet

    def q(self, obs: Tensor, action: Tensor) -> Tensor:
        """`obs "N *"`, `action "N A"` in [-1, 1] to `"M N"`."""
        self.charge(len(obs))
        return self.module(obs, action)


@component("net", "q_critic")
@dataclass
class QCritic:
    """Critics of continuous actions, several side by side in one batched product.

    Args:
        members: critics; 2 = the twin critics of TD3 and SAC.
        hidden: widths of the hidden layers.
        activation: relu, tanh, elu, silu or gelu.
        norm: layer norm before each activation.
        normalise: standardise vector observations by running statistics.
    """

    members: int = 2
    hidden: list[int] = field(default_factory=lambda: [256, 256])
    activation: str = "relu"
    norm: bool = False
    normalise: bool = False

    fits_task = True

    def make(self, *, role: str, meter: Any, device: torch.device, trained: bool, task: Any, of: Any = None) -> Critic:
        space = bounded_box(task.action_space, role)
        net = CriticNet(task.observation_space, int(space.low.numel()), self)
        return handle_of(Critic, net, self, "q_critic", role, meter, device, trained)


class QPolicy(NetHandle):
    """Acts by the highest value. Other exploration than that of a noisy net is the rollout's (`epsilon_greedy`)."""

    module: ChoiceNet

    def q(self, obs: Tensor, noisy: bool = True) -> Tensor:
        """`obs "N *"` to `"N A"`; a noisy net draws its weights anew at every call."""
        self.charge(len(obs))
        return self.values(obs, noisy)

    def values(self, obs: Tensor, noisy: bool) -> Tensor:
        """What the net says of the choices, `"N A"`."""
        return self.module(obs, noisy).squeeze(-1)

    @torch.no_grad()
    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        return Act(self.values(obs, explore).argmax(-1), None, state)

    def to_env(self, action: Tensor) -> Tensor:
        return action


def choices(space: Space, role: str, net: str) -> int:
    """How many choices there are.

    Raises:
        RecipeError: the task's actions are no single choice.
    """
    if not isinstance(space, Discrete):
        raise RecipeError(
            f"models.{role}: {net} values choices; the task's actions are {describe_space(space)}. "
            f"Use {'a method for continuous actions (sac, td3, ppo)' if isinstance(space, Box) else 'ppo or a2c'}"
        )
    return space.n


@component("net", "q_network")
@dataclass
class QNetwork(QSettings):
    """Values of every choice (DQN), plain or duelling, with fixed or noisy weights."""

    def make(self, *, role: str, meter: Any, device: torch.device, trained: bool, task: Any, of: Any = None) -> QPolicy:
        net = ChoiceNet(task.observation_space, choices(task.action_space, role, "q_network"), 1, self)
        return handle_of(QPolicy, net, self, "q_network", role, meter, device, trained)


class ScalarNet(nn.Module):
    """One number, kept as its logarithm."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(float(start)).log())


class Scalar(NetHandle):
    """A positive number that is learned: a temperature or a multiplier."""

    module: ScalarNet

    @property
    def value(self) -> Tensor:
        return self.module.log.exp()


@component("net")
@dataclass
class LogScalar:
    """A positive number with a gradient, learned in its logarithm.

    Args:
        start: first value.
    """

    start: float = 1.0

    def __post_init__(self) -> None:
        if not self.start > 0:
            raise ValueError(f"start must be positive, got {self.start}")

    def make(self, *, role: str, meter: Any, device: torch.device, trained: bool, of: Any = None) -> Scalar:
        return handle_of(Scalar, ScalarNet(self.start), self, "log_scalar", role, meter, device, trained)
