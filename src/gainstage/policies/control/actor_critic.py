"""A policy and its value estimate as one net, for every action space."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gainstage.models.mlp import MLP
from gainstage.ops.distributions import Distribution
from gainstage.ops.masked import over
from gainstage.policies.control.action_heads import ActionHead, HeadKind
from gainstage.policies.control.handle import NetHandle, Trunk, handle_of
from gainstage.registry import component
from gainstage.types import Act, Batch, PolicyOut
from gainstage.types.spaces import Space


class ActorCriticNet(nn.Module):
    """Trunk, action head and `streams` value outputs; actor and critic have a trunk each unless `shared`."""

    def __init__(self, spec: ActorCritic, observations: Space, actions: Space) -> None:
        super().__init__()
        gain = 2**0.5 if spec.init == "orthogonal" else None
        settings: dict[str, Any] = {"gain": gain, "normalise": spec.normalise}
        self.actor = Trunk(observations, spec.hidden, spec.activation, **settings)
        self.critic = None if spec.shared else Trunk(observations, spec.hidden, spec.activation, **settings)
        if self.critic is not None and spec.normalise:
            self.critic.encoder.statistics = self.actor.encoder.statistics  # one set of statistics
        self.head = ActionHead(
            self.actor.width, actions, spec.head, spec.log_std, spec.state_std, gain=None if gain is None else 0.01
        )
        self.value = MLP([self.actor.width, spec.streams], gain=None if gain is None else 1.0)

    def distribution(self, obs: Tensor) -> Distribution:
        return self.head(self.actor(obs))

    def values(self, obs: Tensor) -> Tensor:
        """`"N"`, or `"N S"` for several streams."""
        return one_or_several(self.value((self.critic or self.actor)(obs)))

    def both(self, obs: Tensor) -> tuple[Distribution, Tensor]:
        features = self.actor(obs)
        value = self.value(features if self.critic is None else self.critic(obs))
        return self.head(features), one_or_several(value)


def one_or_several(values: Tensor) -> Tensor:
    """Values `"... S"` of S streams; of a single one without the axis."""
    return values.squeeze(-1) if values.shape[-1] == 1 else values


class ActorCriticPolicy(NetHandle):
    """Acts, scores stored actions, estimates values."""

    module: ActorCriticNet

    @torch.no_grad()
    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        """An action a copy, as it was drawn (before clip or squash), with its log-prob."""
        dist = self.module.distribution(obs)
        action = dist.sample() if explore else dist.mode()
        return Act(action, dist.log_prob(action), state)

    def to_env(self, action: Tensor) -> Tensor:
        return self.module.head.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        return self.module.head.from_env(action)

    def distribution(self, batch: Batch) -> Distribution:
        """The policy's distribution at every decision, batch axes `"B T"`."""
        obs, lead = self.decisions(batch)
        return reshaped(self.module.distribution(obs), lead)

    def evaluate(self, batch: Batch, want: Sequence[str] = ()) -> PolicyOut:
        """Log-probs of the stored actions; on request `entropy`, `values`, `next_values` (in `extras`)."""
        flat, lead = self.decisions(batch)
        values = None
        if "values" in want or "next_values" in want:
            dist, value = self.module.both(flat)
            values = value.reshape(*lead, *value.shape[1:])
        else:
            dist = self.module.distribution(flat)
        logprobs = dist.log_prob(batch["actions"].flatten(0, 1)).reshape(lead)
        entropy = dist.entropy().reshape(lead) if "entropy" in want else None
        extras = {}
        if "next_values" in want:
            assert values is not None
            extras["next_values"] = next_values(self.module.values, values, batch)
        return PolicyOut(logprobs, entropy, values, extras)


def next_values(values_of: Any, values: Tensor, batch: Batch) -> Tensor:
    """Value after each decision, `"B T"`: that of the row's next one, and of the true observation where there is none.

    A row's last decision and every cut-off one are valued anew. After a real end it is the value of the next episode's
    first observation, for streams of rewards that run on; others do not use it.
    """
    out = torch.cat((values[:, 1:], torch.zeros_like(values[:, :1])), 1)
    anew = torch.zeros(values.shape[:2], dtype=torch.bool, device=values.device)
    anew[:, -1] = True
    if "cut" in batch:
        anew |= batch["cut"].bool()
    rows, steps = torch.nonzero(anew, as_tuple=True)
    following = batch["obs"][:, 1:][rows, steps]
    if "next_obs" in batch:
        ended = over(batch["terminated"][rows, steps].bool(), following)
        following = torch.where(ended, following, batch["next_obs"][rows, steps])
    out[rows, steps] = values_of(following)
    return out


def reshaped(dist: Distribution, lead: Sequence[int]) -> Distribution:
    """A distribution over `"N *"` as one over `"B T *"`."""
    twin = copy(dist)
    for name, value in vars(dist).items():
        if isinstance(value, Tensor):
            setattr(twin, name, value.reshape(*lead, *value.shape[1:]))
        elif isinstance(value, list):
            setattr(twin, name, [reshaped(part, lead) for part in value])
    return twin


@component("net")
@dataclass
class ActorCritic:
    """Policy and value net of on-policy methods, for every action space.

    Args:
        hidden: widths of the hidden layers.
        activation: tanh, relu, elu, silu or gelu.
        shared: actor and critic read one trunk (pictures); else each has its own.
        head: `auto`; `tanh` squashes continuous actions into their bounds.
        log_std: start of the log-std of continuous actions.
        state_std: the log-std depends on the state.
        streams: value outputs, one for each stream of rewards.
        normalise: standardise vector observations by running statistics (moved by an `observation_statistics` entry).
        init: `orthogonal`, the usual start of on-policy nets, or `default`, torch's own.
        weights: folder of saved weights to start from.
    """

    hidden: list[int] = field(default_factory=lambda: [64, 64])
    activation: str = "tanh"
    shared: bool = False
    head: HeadKind = "auto"
    log_std: float = 0.0
    state_std: bool = False
    streams: int = 1
    normalise: bool = False
    init: Literal["orthogonal", "default"] = "orthogonal"
    weights: str = ""

    fits_task = True
    """Is made for a task's spaces."""

    def make(
        self, *, role: str, meter: Any, device: torch.device, trained: bool, task: Any, of: Any = None
    ) -> ActorCriticPolicy:
        net = ActorCriticNet(self, task.observation_space, task.action_space)
        return handle_of(ActorCriticPolicy, net, self, "actor_critic", role, meter, device, trained)
