"""Nets of offline methods: a normal within action bounds, values of states, a model of what the data do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gainstage.models.autoencoder import Autoencoder
from gainstage.ops.distributions import gaussian_log_prob
from gainstage.policies.control.actors import BoundedHandle, bounded_box, ready
from gainstage.policies.control.handle import Encoder, NetHandle, Trunk
from gainstage.registry import RecipeError, component
from gainstage.types import Act, Batch, PolicyOut
from gainstage.types.spaces import Space, describe_space

LOG_STD = (-5.0, 2.0)
"""Bounds of the log-std."""


class BoundedNet(nn.Module):
    """Trunk, mean squashed into [-1, 1], one log-std an action."""

    def __init__(self, observations: Space, actions: int, hidden: list[int], act: str, normalise: bool) -> None:
        super().__init__()
        self.trunk = Trunk(observations, hidden, act, normalise=normalise)
        self.out = nn.Linear(self.trunk.width, actions)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean = torch.tanh(self.out(self.trunk(obs)))
        return mean, self.log_std.clamp(*LOG_STD).expand_as(mean)


class BoundedGaussianActor(BoundedHandle):
    """Draws from a normal around a mean in [-1, 1]; what falls outside is cut off on its way to the environment.

    Recorded actions that lie on a bound have finite log-probs, which a squashed normal cannot give them.
    """

    module: BoundedNet

    @torch.no_grad()
    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        mean, log_std = self.module(obs)
        action = mean + log_std.exp() * torch.randn_like(mean) if explore else mean
        return Act(action, gaussian_log_prob(action, mean, log_std), state)

    def to_env(self, action: Tensor) -> Tensor:
        return super().to_env(action.clamp(-1, 1))

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """A reparametrised action in [-1, 1] and its log-prob before the cut, with gradients."""
        self.charge(len(obs))
        mean, log_std = self.module(obs)
        raw = mean + log_std.exp() * torch.randn_like(mean)
        return raw.clamp(-1, 1), gaussian_log_prob(raw, mean, log_std)

    def evaluate(self, batch: Batch, want: Sequence[str] = ()) -> PolicyOut:
        """Log-probs of stored actions in [-1, 1], the entropy, and the means (`extras["mean"]`)."""
        obs, action = batch["obs"][:, :-1], batch["actions"]
        lead = obs.shape[:2]
        self.charge(lead[0] * lead[1])
        mean, log_std = self.module(obs.flatten(0, 1))
        logp = gaussian_log_prob(action.flatten(0, 1), mean, log_std).reshape(lead)
        entropy = (log_std + 1.4189385332046727).sum(-1).reshape(lead)
        return PolicyOut(logp, entropy, None, {"mean": mean.reshape(*lead, -1)})


@component("net")
@dataclass
class BoundedGaussian:
    """A normal with its mean inside the action bounds and one std an action (IQL, AWR, cloning).

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

    def make(
        self, *, role: str, meter: Any, device: torch.device, trained: bool, task: Any, of: Any = None
    ) -> BoundedGaussianActor:
        space = bounded_box(task.action_space, role)
        net = BoundedNet(task.observation_space, int(space.low.numel()), self.hidden, self.activation, self.normalise)
        handle = BoundedGaussianActor(net, role, meter, device, {"net": "bounded_gaussian", **asdict(self)})
        return ready(handle, space, self.weights, trained)


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
        net.requires_grad_(trained)
        return StateValueHandle(net, role, meter, device, {"net": "state_value", **asdict(self)})


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
        net.requires_grad_(trained)
        return BehaviourVAEHandle(net, role, meter, device, {"net": "behaviour_vae", **asdict(self)})
