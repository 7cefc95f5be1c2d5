"""Embeddings of observations that keep what actions can change: trained to tell the action and to be foretold."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from gainstage.models.mlp import MLP
from gainstage.types.spaces import Box, Discrete, Space

TINY = 1e-12
"""Under a root, so that its gradient is finite at 0."""


def forward_error(predicted: Tensor, actual: Tensor) -> Tensor:
    """`||predicted - actual||_2`, a norm and not its square, `"N D" -> "N"`."""
    return ((predicted - actual).square().sum(-1) + TINY).sqrt()


def inverse_error(guess: Tensor, actions: Tensor, space: Space) -> Tensor:
    """How badly the action is told, `"N"`: cross-entropy of choices, half the squared distance of vectors."""
    if isinstance(space, Discrete):
        return cross_entropy(guess, actions, reduction="none")
    return 0.5 * (guess - action_vector(actions, space)).square().sum(-1)


def action_vector(actions: Tensor, space: Space) -> Tensor:
    """Actions as numbers `"N A"`; a choice becomes a one."""
    return (
        one_hot(actions, space.n).float() if isinstance(space, Discrete) else actions.reshape(len(actions), -1).float()
    )


def action_width(space: Space) -> int:
    """Numbers of one action as `action_vector` gives it."""
    if isinstance(space, Discrete):
        return space.n
    return int(space.low.numel()) if isinstance(space, Box) else space.shape[0]


class TransitionEmbedding(nn.Module):
    """Embedding, inverse model (which action led there?) and forward model (where does it lead?).

    Gradients of both losses reach the embedding, as in the curiosity module of Pathak et al. (arXiv 1705.05363) and in
    RIDE (arXiv 2002.12292).

    Args:
        trunk: observations `"N *"` to features `"N width"`.
        width: of the embedding.
        actions: space of the actions.
        hidden: width of the hidden layer of both models.
    """

    def __init__(self, trunk: nn.Module, width: int, actions: Space, hidden: int = 128) -> None:
        super().__init__()
        self.trunk, self.actions = trunk, actions
        size, gain = action_width(actions), 2**0.5
        self.inverse = MLP([2 * width, hidden, size], gain=gain)
        self.ahead = MLP([width + size, hidden, width], gain=gain)

    def forward(self, obs: Tensor) -> Tensor:
        return self.trunk(obs)

    def predict(self, phi: Tensor, actions: Tensor) -> Tensor:
        """The next embedding, `"N D"`."""
        return self.ahead(torch.cat((phi, action_vector(actions, self.actions)), -1))

    def errors(self, obs: Tensor, next_obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and inverse error of transitions, `"N"` each."""
        phi, after = self(obs), self(next_obs)
        guess = self.inverse(torch.cat((phi, after), -1))
        return forward_error(self.predict(phi, actions), after), inverse_error(guess, actions, self.actions)
