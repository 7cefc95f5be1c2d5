"""Nets that say of every choice how its return is distributed: on fixed atoms, or as quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gainstage.policies.control.handle import handle_of
from gainstage.policies.control.q_heads import ChoiceNet, QSettings
from gainstage.policies.control.q_networks import QPolicy, choices
from gainstage.registry import component
from gainstage.types.spaces import Space


def check_support(atoms: int, low: float, high: float) -> None:
    """Raises ValueError: fewer than two atoms, or no room between the bounds."""
    if atoms < 2:
        raise ValueError(f"atoms must be at least 2, got {atoms}")
    if not low < high:
        raise ValueError(f"low must lie below high, got {low} and {high}")


class CategoricalNet(ChoiceNet):
    """Logits of each atom; `support "K"` are the returns that the atoms stand for."""

    support: Tensor

    def __init__(self, observations: Space, actions: int, spec: CategoricalQ) -> None:
        super().__init__(observations, actions, spec.atoms, spec)
        self.register_buffer("support", torch.linspace(spec.low, spec.high, spec.atoms))


class CategoricalPolicy(QPolicy):
    """Acts by the highest mean of the return."""

    module: CategoricalNet

    @property
    def support(self) -> Tensor:
        return self.module.support

    def logits(self, obs: Tensor, noisy: bool = True) -> Tensor:
        """`obs "N *"` to `"N A K"`."""
        self.charge(len(obs))
        return self.module(obs, noisy)

    def probs(self, obs: Tensor, noisy: bool = True) -> Tensor:
        """Distribution over the atoms, `"N A K"`."""
        return self.logits(obs, noisy).softmax(-1)

    def values(self, obs: Tensor, noisy: bool) -> Tensor:
        return self.module(obs, noisy).softmax(-1) @ self.support


@component("net", "categorical_q")
@dataclass
class CategoricalQ(QSettings):
    """Every choice's return as a distribution over fixed atoms (C51, arXiv 1707.06887).

    Args:
        atoms: points between `low` and `high`, both included; 51 in the paper.
        low, high: least and largest return that can be told apart. What lies beyond is counted at the bound: with
            rewards up to r and discount g, `r / (1 - g)` bounds the return.
    """

    atoms: int = 51
    low: float = -10.0
    high: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_support(self.atoms, self.low, self.high)

    def make(
        self, *, role: str, meter: Any, device: torch.device, trained: bool, task: Any, of: Any = None
    ) -> CategoricalPolicy:
        actions = choices(task.action_space, role, "categorical_q")
        net = CategoricalNet(task.observation_space, actions, self)
        return handle_of(CategoricalPolicy, net, self, "categorical_q", role, meter, device, trained)


class QuantilePolicy(QPolicy):
    """Acts by the mean over its quantiles."""

    def quantiles(self, obs: Tensor, noisy: bool = True) -> Tensor:
        """`obs "N *"` to `"N A K"`, values at the midpoints `(k + 1/2) / K`."""
        self.charge(len(obs))
        return self.module(obs, noisy)

    def values(self, obs: Tensor, noisy: bool) -> Tensor:
        return self.module(obs, noisy).mean(-1)


@component("net", "quantile_q")
@dataclass
class QuantileQ(QSettings):
    """Quantiles of every choice's return, without bounds (QR-DQN, arXiv 1710.10044).

    Args:
        quantiles: of each choice; 200 in the paper, few do for small tasks.
    """

    quantiles: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantiles < 1:
            raise ValueError(f"quantiles must be at least 1, got {self.quantiles}")

    def make(
        self, *, role: str, meter: Any, device: torch.device, trained: bool, task: Any, of: Any = None
    ) -> QuantilePolicy:
        actions = choices(task.action_space, role, "quantile_q")
        net: nn.Module = ChoiceNet(task.observation_space, actions, self.quantiles, self)
        return handle_of(QuantilePolicy, net, self, "quantile_q", role, meter, device, trained)
