"""Shortcuts in logs of positioning: where moves add up, the way between two visited places is itself a move.

Source: trajectory-level data augmentation for offline reinforcement learning (arXiv 2605.13401); the gain, the
distortion check and their limits are derived here.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from gainstage.ops.reward_to_go import reward_to_go

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Shortcut:
    """From step `start` straight to where step `stop` began: action, reward, what it gains over the log."""

    start: int
    stop: int
    action: Tensor
    reward: float
    gain: float


@dataclass(frozen=True)
class Candidates:
    """All pairs of steps of an episode: `allowed "T+1 T+1"`, `gain`, `reward` and `action "T+1 T+1 A"` of each."""

    allowed: Tensor
    gain: Tensor
    reward: Tensor
    action: Tensor

    def best(self) -> list[Shortcut]:
        """From each step the one with the largest gain, the nearer end on ties."""
        found = []
        for start in torch.nonzero(self.allowed.any(1)).flatten().tolist():
            gain = torch.where(self.allowed[start], self.gain[start], -torch.inf)
            top = torch.nonzero(gain >= gain.max() - 1e-9 * max(1.0, abs(float(gain.max())))).flatten()
            found.append(self.at(start, int(top[0])))
        return found

    def drawn(self, generator: torch.Generator) -> list[Shortcut]:
        """From each step one, all allowed ones alike."""
        found = []
        for start in torch.nonzero(self.allowed.any(1)).flatten().tolist():
            ends = torch.nonzero(self.allowed[start]).flatten()
            found.append(self.at(start, int(ends[torch.randint(len(ends), (1,), generator=generator)])))
        return found

    def at(self, start: int, stop: int) -> Shortcut:
        """The shortcut between two steps."""
        pair = start, stop
        return Shortcut(start, stop, self.action[pair], float(self.reward[pair]), float(self.gain[pair]))


def candidates(
    actions: Tensor, rewards: Tensor, a_max: float, gamma: float = 0.99, margin: float = 0.0, *,
    places: Tensor | None = None, kappa: float | None = 0.1, matrix: Tensor | None = None, per_axis: bool = False,
    action_cost: float = 0.0,
) -> Candidates:  # fmt: skip
    """Every skip of an episode that is one legal move and gains more than `margin` in return.

    A skip from step i to step j pays what arriving in j paid, and goes on as the log did:
    `r_j + gamma G_j - G_i`, with nothing after the end of the log.

    Args:
        actions: `"T A"`, the moves as they were made.
        rewards: `"T"`, of the arrival alone, except for `action_cost` times the squared length of the move.
        a_max: longest legal move (of each axis, with `per_axis`).
        gamma: discount of one step.
        places: `"T+1 A"`, visited; absent = they were not seen, so that distortion cannot be checked.
        kappa: how far the length of the way made may differ from that of the moves, as a share; None = no check.
        matrix: what becomes of a move, where it is known and linear (`matrix @ move`): lengths are compared after it.
        action_cost: weight of a squared move in the rewards.

    Raises:
        ValueError: an a_max that is not positive.
    """
    if not a_max > 0:
        raise ValueError(f"shortcuts: a_max must be above 0, got {a_max}")
    steps = len(rewards)
    reward = rewards.double()
    togo = torch.cat((reward_to_go(rewards, torch.tensor([steps]), gamma), torch.zeros(1, dtype=torch.float64)))
    path = torch.cat((torch.zeros(1, actions.shape[1], dtype=torch.float64), actions.double().cumsum(0)))
    move = path.unsqueeze(0) - path.unsqueeze(1)
    length = move.norm(dim=-1)
    cost = torch.zeros(steps + 1, dtype=torch.float64)
    cost[1:] = action_cost * actions.double().square().sum(-1)
    arrival = torch.cat((torch.zeros(1, dtype=torch.float64), reward)) + cost
    pay = arrival.unsqueeze(0) - action_cost * length.square()
    gain = pay + gamma * togo.unsqueeze(0) - togo.unsqueeze(1)
    index = torch.arange(steps + 1)
    allowed = index.unsqueeze(0) >= index.unsqueeze(1) + 2
    allowed &= (move.abs().amax(-1) if per_axis else length) <= a_max + TOLERANCE
    allowed &= gain > margin
    if places is not None and kappa is not None:
        made = (places.double().unsqueeze(0) - places.double().unsqueeze(1)).norm(dim=-1)
        meant = length if matrix is None else (move @ matrix.double().T).norm(dim=-1)
        allowed &= (made - meant).abs() <= kappa * meant + TOLERANCE
    return Candidates(allowed, gain, pay, move.to(actions.dtype))


def shortcuts(actions: Tensor, rewards: Tensor, a_max: float, gamma: float = 0.99, margin: float = 0.0,
              **how: object) -> list[Shortcut]:  # fmt: skip
    """The best skip from each step of an episode; arguments as `candidates` has them."""
    if len(rewards) < 2:
        return []
    return candidates(actions, rewards, a_max, gamma, margin, **how).best()  # type: ignore[arg-type]


def warn_unverified() -> None:
    """Said once where places were not seen."""
    warnings.warn(
        "shortcuts: the places are not observed, so that it cannot be checked whether moves add up; "
        "make sure that nothing distorts them",
        stacklevel=3,
    )
