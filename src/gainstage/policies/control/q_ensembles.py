"""A group of distributional nets side by side: each acts in its own copies, all together where they are judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gainstage.models.mlp import Ensemble
from gainstage.policies.control.distributional import check_support
from gainstage.policies.control.handle import Encoder, NetHandle, handle_of
from gainstage.policies.control.q_networks import choices
from gainstage.registry import RecipeError, component
from gainstage.types import Act
from gainstage.types.spaces import Box, Space, describe_space


class GroupNet(nn.Module):
    """Stacked nets `"N *"` (or `"M N *"`, one input each) to logits `"M N A K"`."""

    support: Tensor

    def __init__(self, observations: Space, actions: int, spec: CategoricalEnsemble) -> None:
        super().__init__()
        self.encoder = Encoder(observations)
        self.shape = (actions, spec.atoms)
        self.nets = Ensemble(spec.members, [self.encoder.width, *spec.hidden, actions * spec.atoms], spec.activation)
        self.register_buffer("support", torch.linspace(spec.low, spec.high, spec.atoms))

    def forward(self, features: Tensor) -> Tensor:
        out = self.nets(features)
        return out.reshape(*out.shape[:-1], *self.shape)


class Group(NetHandle):
    """Members share no weight. Rows of experience come in equal blocks, one a member, in order."""

    module: GroupNet

    def __init__(self, module: nn.Module, role: str, meter: Any, device: torch.device, net: dict[str, Any]) -> None:
        super().__init__(module, role, meter, device, net)
        self.members, self.acts, self.judged = net["members"], net["acts"], net["judged"]

    @property
    def support(self) -> Tensor:
        return self.module.support

    def member_of(self, rows: int) -> Tensor:
        """The member of each of `rows` rows, `Int64 "N"`.

        Raises:
            RecipeError: the rows are no equal blocks.
        """
        if rows % self.members:
            raise RecipeError(
                f"models.{self.role}: {rows} rows are no {self.members} equal blocks, one a member; make "
                f"env_steps.copies a multiple of members, and draw by select.own_streams.members={self.members}"
            )
        return torch.arange(self.members, device=self.device).repeat_interleave(rows // self.members)

    def probs(self, obs: Tensor) -> Tensor:
        """Every member's distributions of every row, `"M N A K"`."""
        self.charge(len(obs))
        return self.module(self.module.encoder(obs)).softmax(-1)

    def own_logits(self, obs: Tensor) -> Tensor:
        """`"N A K"`: each row by its own member."""
        self.member_of(len(obs))
        self.charge(len(obs) / self.members)
        features = self.module.encoder(obs)
        blocks = features.reshape(self.members, -1, features.shape[-1])
        return self.module(blocks).flatten(0, 1)

    @torch.no_grad()
    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        """By each row's own member or by the average of all; judged `in_turn`, row i is that of member i, and so on."""
        how = self.acts if explore else self.judged
        if how == "own":
            q = self.own_logits(obs).softmax(-1) @ self.support
        else:
            every = self.module(self.module.encoder(obs)).softmax(-1) @ self.support
            rows = torch.arange(len(obs), device=obs.device)
            q = every.mean(0) if how == "joint" else every[rows % self.members, rows]
        return Act(q.argmax(-1), None, state)

    def to_env(self, action: Tensor) -> Tensor:
        return action


@component("net", "categorical_ensemble")
@dataclass
class CategoricalEnsemble:
    """C51 several times over, each member with its own start, stream and draws (arXiv 2003.10903).

    Args:
        members: nets in the group.
        hidden: widths of the hidden layers of each.
        activation: relu, tanh, elu, silu or gelu.
        atoms, low, high: the returns that are told apart; see categorical_q.
        acts: who explores: each copy's `own` member, or all of them `joint` by their mean value. Joint acting makes
            the members' data, and so the members, more alike.
        judged: who is looked at: `joint`, or the members `in_turn`, one start each, which gives the mean single score.
    """

    members: int = 5
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    activation: str = "relu"
    atoms: int = 51
    low: float = -10.0
    high: float = 10.0
    acts: Literal["own", "joint"] = "own"
    judged: Literal["joint", "in_turn"] = "joint"

    fits_task = True

    def __post_init__(self) -> None:
        check_support(self.atoms, self.low, self.high)
        if self.members < 1:
            raise ValueError(f"members must be at least 1, got {self.members}")

    def make(self, *, role: str, meter: Any, device: torch.device, trained: bool, task: Any, of: Any = None) -> Group:
        actions = choices(task.action_space, role, "categorical_ensemble")
        seen = task.observation_space
        if isinstance(seen, Box) and len(seen.shape) == 3:
            raise RecipeError(f"models.{role}: members read numbers or choices, no pictures: {describe_space(seen)}")
        net = GroupNet(seen, actions, self)
        return handle_of(Group, net, self, "categorical_ensemble", role, meter, device, trained)
