"""Nets of offline methods: a normal within action bounds, values of states, a model of what the data do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gainstage.models.autoencoder import Autoencoder
from gainstage.ops.distributions import Gaussian
from gainstage.policies.control.actors import LOG_STD, BoundedActor, BoundedHandle, bounded_box
from gainstage.policies.control.handle import Encoder, NetHandle, Trunk, handle_of
from gainstage.registry import RecipeError, component
from gainstage.types import Act, Batch, PolicyOut
from gainstage.types.spaces import Space, describe_space


class BoundedNet(nn.Module):
    """Trunk, mean squashed into [-1, 1], one log-std an action."""

    def __init__(self, observations: Space, actions: int, hidden: list[int], act: str, normalise: bool) -> None:
        super().__init__()
        self.trunk = Trunk(observations, hidden, act, normalise=normalise)
        self.out = nn.Linear(self.trunk.width, actions)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def forward(self, obs: Tensor) -> Gaussian:
        mean = torch.tanh(self.out(self.trunk(obs)))
        return Gaussian(mean, self.log_std.clamp(*LOG_STD).expand_as(mean))


class BoundedGaussianActor(BoundedHandle):
    """Draws from a normal around a mean in [-1, 1]; what falls outside is cut off on its way to the environment.

    Recorded actions that lie on a bound have finite log-probs, which a squashed normal cannot give them.
    """

    module: BoundedNet

    @torch.no_grad()
    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        dist = self.module(obs)
        action = dist.sample() if explore else dist.mode()
        return Act(action, dist.log_prob(action), state)

    def to_env(self, action: Tensor) -> Tensor:
        return super().to_env(action.clamp(-1, 1))

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """A reparametrised action in [-1, 1] and its log-prob before the cut, with gradients."""
        self.charge(len(obs))
        dist = self.module(obs)
        raw = dist.sample()
        return raw.clamp(-1, 1), dist.log_prob(raw)

    def evaluate(self, batch: Batch, want: Sequence[str] = ()) -> PolicyOut:
        """Log-probs of stored actions in [-1, 1], the entropy, and the means (`extras["mean"]`)."""
        obs, lead = self.decisions(batch)
        dist = self.module(obs)
        logp, entropy = dist.log_prob(batch["actions"].flatten(0, 1)), dist.entropy()
        return PolicyOut(logp.reshape(lead), entropy.reshape(lead), None, {"mean": dist.mean.reshape(*lead, -1)})


@component("net")
@dataclass
class BoundedGaussian(BoundedActor):
    """A normal with its mean inside the action bounds and one std an action (IQL, AWR, cloning)."""

    parts = ("bounded_gaussian", BoundedNet, BoundedGaussianActor)


# -- values of states --------------------------------------------------------------------------------------------------


class StateValueNet(nn.Module):
    """Trunk and one number."""

    def __init__(self, observations: Space, hidden: list[int], act: str, normalise: bool) -> None:
        super().__init__()
        self.trunk = Trunk(observations, hidden, act, normalise=normalise)
        self.out = nn.Linear(self.trunk.width, 1)

    def forward(self, obs: Tensor) -> Tensor:
        return self.out(self.trunk(obs)).squeeze(-1)


class StateValueHandle(NetHandle):
    """`v(obs)`: values of observations."""

    module: StateValueNet

    def v(self, obs: Tensor) -> Tensor:
        """`obs "N *"` to `"N"`."""
        self.charge(len(obs))
        return self.module(obs)


@component("net")
@dataclass
class StateValue:
    """Values of states (IQL, AWR, A2PR).

    Args:
        hidden: widths of the hidden layers.
        activation: relu, tanh, elu, silu or gelu.
        normalise: standardise vector observations by running statistics.
    """

    hidden: list[int] = field(default_factory=lambda: [256, 256])
    activation: str = "relu"
    normalise: bool = False

    fits_task = True

    def make(
        self, *, role: str, meter: Any, device: torch.device, trained: bool, task: Any, of: Any = None
    ) -> StateValueHandle:
        net = StateValueNet(task.observation_space, self.hidden, self.activation, self.normalise)
        return handle_of(StateValueHandle, net, self, "state_value", role, meter, device, trained)


# -- a model of the data's actions -------------------------------------------------------------------------------------


class BehaviourVAENet(nn.Module):
    """A conditional VAE of actions in [-1, 1]: twice as many latent numbers as actions."""

    def __init__(self, observations: Space, actions: int, hidden: list[int], normalise: bool) -> None:
        super().__init__()
        self.features = Encoder(observations, normalise)
        self.vae = Autoencoder(actions, 2 * actions, self.features.width, hidden)

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        recon, mean, log_std = self.vae(action, self.features(obs))
        return torch.tanh(recon), mean, log_std


class BehaviourVAEHandle(NetHandle):
    """`reconstruct(obs, action)`: an action of the data's kind near the given one."""

    module: BehaviourVAENet

    def reconstruct(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`obs "N *"`, `action "N A"` in [-1, 1] to `"N A"`, and mean and log-std of the code, `"N 2A"`."""
        self.charge(len(obs))
        return self.module(obs, action)


@component("net", "behaviour_vae")
@dataclass
class BehaviourVAE:
    """A conditional variational autoencoder of the actions in the data.

    Args:
        hidden: widths of encoder and decoder.
        normalise: standardise vector observations by running statistics.
    """

    hidden: list[int] = field(default_factory=lambda: [128, 128])
    normalise: bool = False

    fits_task = True

    def make(
        self, *, role: str, meter: Any, device: torch.device, trained: bool, task: Any, of: Any = None
    ) -> BehaviourVAEHandle:
        try:
            space = bounded_box(task.action_space, role)
        except RecipeError:
            raise RecipeError(
                f"models.{role}: behaviour_vae (and with it A2PR) needs a Box action space with finite bounds; "
                f"the task's actions are {describe_space(task.action_space)}"
            ) from None
        net = BehaviourVAENet(task.observation_space, int(space.low.numel()), self.hidden, self.normalise)
        return handle_of(BehaviourVAEHandle, net, self, "behaviour_vae", role, meter, device, trained)
