"""Shortcuts in logs of positioning: where moves add up, the way between two visited places is itself a move.

Source: trajectory-level data augmentation for offline reinforcement learning (arXiv 2605.13401); the gain, the
distortion check and their limits are derived here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
    action_cost: float | Callable[[Tensor], Tensor] = 0.0,
) -> Candidates:  # fmt: skip
    """Every skip of an episode that is one legal move and gains more than `margin` in return.

    A skip from step i to step j pays what arriving in j paid, and goes on as the log did:
    `r_j + gamma G_j - G_i`, with nothing after the end of the log.

    Args:
        actions: `"T A"`, the moves as they were made.
        rewards: `"T"`, of the arrival alone, except for what the move cost: `action_cost` times its squared length, or
            a function of moves `"... A"` that gives the cost of each.
        a_max: longest legal move (of each axis, with `per_axis`).
        gamma: discount of one step.
        places: `"T+1 A"`, visited; absent = they were not seen, so that distortion cannot be checked.
        kappa: how far the length of the way made may differ from that of the moves, as a share; None = no check.
        matrix: what becomes of a move, where it is known and linear (`matrix @ move`): lengths are compared after it.
        action_cost: what moves cost, taken off the logged rewards and put back for the skip's own move.

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
    if callable(action_cost):
        spent = action_cost
    else:
        weight = action_cost

        def spent(moves: Tensor) -> Tensor:
            return weight * moves.square().sum(-1)

    arrival = torch.zeros(steps + 1, dtype=torch.float64)
    arrival[1:] = reward + spent(actions.double())
    pay = arrival.unsqueeze(0) - spent(move)
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


def arrivals_differ(places: Tensor, rewards: Tensor, rounding: float = 1e-4, tolerance: float = 1e-2) -> bool:
    """Whether arriving at one and the same place was paid differently, so that rewards hang on more than the arrival.

    Args:
        places: `"N D"`, arrived at.
        rewards: `"N"`, what arriving paid, costs of moves already taken off.
        rounding: places nearer than about this are the same.
        tolerance: difference of rewards that counts, as a share of their range.
    """
    _, same = torch.unique((places.double() / rounding).round().long(), dim=0, return_inverse=True)
    count, pay = int(same.max()) + 1, rewards.double()
    most = torch.full((count,), -torch.inf, dtype=torch.float64).scatter_reduce_(0, same, pay, "amax")
    least = torch.full((count,), torch.inf, dtype=torch.float64).scatter_reduce_(0, same, pay, "amin")
    return bool(((most - least) > tolerance * (pay.max() - pay.min()).clamp(min=1e-12)).any())


def warn_unverified() -> None:
    """Said once where places were not seen."""
    warnings.warn(
        "shortcuts: the places are not observed, so that it cannot be checked whether moves add up; "
        "make sure that nothing distorts them",
        stacklevel=3,
    )
