"""Small decision processes that can be solved exactly: random ones, a chain, and the solvers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.tasks.control.batched_env import Simulation, State, TaskEnv
from gainstage.tasks.control.grid_world import GridWorld
from gainstage.types.spaces import Box, Discrete

# -- solvers -----------------------------------------------------------------------------------------------------------


def value_iteration(
    moves: Tensor, rewards: Tensor, gamma: float, tolerance: float = 1e-12, rounds: int = 100_000
) -> Tensor:
    """Optimal values of a process that goes on for ever (Bellman 1957).

    Args:
        moves: `Float64 "S A S"`, chances of the next state; what a row lacks to 1 is the chance that the episode ends.
        rewards: `Float64 "S A"`, expected.
        gamma: discount, below 1 unless every policy ends.
        tolerance: largest change of the last round.
        rounds: at most so many.

    Returns:
        `Float64 "S A"`.

    Raises:
        ValueError: no convergence within `rounds`.
    """
    values = torch.zeros_like(rewards)
    for _ in range(rounds):
        new = rewards + gamma * moves @ values.amax(1)
        if float((new - values).abs().max()) <= tolerance:
            return new
        values = new
    raise ValueError(f"value_iteration: no convergence after {rounds} rounds; is gamma = {gamma} too high?")


def policy_values(moves: Tensor, rewards: Tensor, policy: Tensor, gamma: float) -> Tensor:
    """Values `Float64 "S A"` of a policy `"S A"` (chances), by one linear system; arguments as `value_iteration`."""
    onward = torch.einsum("sa,sat->st", policy, moves)
    paid = (policy * rewards).sum(1)
    states = torch.linalg.solve(torch.eye(len(moves), dtype=moves.dtype) - gamma * onward, paid)
    return rewards + gamma * moves @ states


def backward_values(moves: Tensor, final: Tensor, horizon: int, policy: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Chances of success at every step of a process of `horizon` decisions that only its last state decides.

    Args:
        moves: `Float64 "S A S"`.
        final: `Float64 "S"`, chance of success (or worth) of ending there.
        horizon: decisions.
        policy: `"H S A"` (chances), or None for the best one.

    Returns:
        Values of actions `Float64 "H S A"` and of states `Float64 "H+1 S"`.
    """
    states: list[Tensor] = [final]
    actions: list[Tensor] = []
    for step in range(horizon - 1, -1, -1):
        values = moves @ states[0]
        actions.insert(0, values)
        states.insert(0, values.amax(1) if policy is None else (policy[step] * values).sum(1))
    return torch.stack(actions), torch.stack(states)


def grid_process(task: GridWorld) -> tuple[Tensor, Tensor]:
    """Moves `Float64 "S A S"` and rewards `"S A"` of a grid world, for `value_iteration`.

    Raises:
        ValueError: things can be eaten there, so that a cell is no state.
    """
    if task.things:
        raise ValueError("grid_process: what was eaten is part of the state; take a map without things to be eaten")
    to, cells = task.neighbours(), len(task.letters)
    goes = torch.tensor([1 - task.sideways, task.sideways / 2, task.sideways / 2], dtype=torch.float64)
    moves = torch.zeros(cells, 4, cells, dtype=torch.float64)
    for share, turn in zip(goes, (0, 1, -1), strict=True):
        moves.scatter_add_(2, to.roll(-turn, 1).unsqueeze(2), share.expand(cells, 4, 1).contiguous())
    rewards = moves @ task.worth(task.letter_rewards).double() + task.each
    return moves * (1 - task.worth(dict.fromkeys(task.last, 1.0)).double()), rewards


# -- random processes --------------------------------------------------------------------------------------------------


@component("task")
@dataclass
class RandomMDP(Simulation):
    """A random process of a fixed horizon; reward 1 at the end for a last state that is one of the good ones.

    Moves from every state and action are drawn from a symmetric Dirichlet distribution, the episode starts in state 0.
    What is shown is step x states + state, so that every step has values of its own.

    Args:
        states, actions, horizon: sizes.
        concentration: of the Dirichlet distribution; smaller = nearer to deterministic.
        good: share of the states that count as success, at least one.
        seed: of the process.
    """

    name: ClassVar[str] = "random_mdp"

    states: int = 20
    actions: int = 4
    horizon: int = 8
    concentration: float = 0.3
    good: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.states, self.actions, self.horizon) < 1:
            raise ValueError("states, actions and horizon must be at least 1")
        if self.concentration <= 0 or not 0 < self.good <= 1:
            raise ValueError("concentration must be above 0 and good lie in (0, 1]")
        self.max_steps = None  # the horizon ends an episode
        self.observation_space = Discrete(self.states * (self.horizon + 1))
        self.action_space = Discrete(self.actions)

    @cached_property
    def moves(self) -> Tensor:
        """`Float64 "S A S"`."""
        rng = np.random.default_rng(self.seed)
        drawn = rng.dirichlet([self.concentration] * self.states, size=(self.states, self.actions))
        return torch.from_numpy(drawn)

    @cached_property
    def final(self) -> Tensor:
        """`Float64 "S"`: 1 for the good last states."""
        rng = np.random.default_rng(self.seed + 2**32)
        chosen = rng.choice(self.states, size=max(1, round(self.good * self.states)), replace=False)
        return torch.zeros(self.states, dtype=torch.float64).index_fill_(0, torch.from_numpy(chosen), 1.0)

    def make(self, copies: int, device: torch.device | str = "cpu") -> RandomMDPEnv:
        return RandomMDPEnv(self, copies, device)


class RandomMDPEnv(TaskEnv[RandomMDP]):
    """State: `at` and `step`, both `Int64 "B"`."""

    def __init__(self, task: RandomMDP, size: int, device: torch.device | str = "cpu") -> None:
        super().__init__(task, size, device)
        self.below = task.moves.cumsum(2).to(self.device, torch.float32)
        self.final = task.final.to(self.device, torch.float32)

    def start(self) -> State:
        zeros = torch.zeros(self.starting, dtype=torch.int64, device=self.device)
        return {"at": zeros, "step": zeros}

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        below = self.below[state["at"], action]
        at = (self.draw(1) > below).sum(1).clamp(max=self.task.states - 1)
        step = state["step"] + 1
        ends = step >= self.task.horizon
        reward = self.final[at] * ends
        return {"at": at, "step": step}, reward, ends, {"success": reward > 0}

    def observe(self, state: State) -> Tensor:
        return state["step"] * self.task.states + state["at"]


# -- the chain ---------------------------------------------------------------------------------------------------------


@component("task")
@dataclass
class Chain(Simulation):
    """States in a row; leaving at the left end pays 1, at the right end -1; a move is reversed now and then.

    The world of the linear experiments with logarithmic values (van Seijen et al. 2019, arXiv 1906.00572): far from
    both ends the gap between the two actions is tiny unless the discount is near 1.

    Args:
        length: states.
        reversal: chance that a move goes the other way.
        view: `number`, or `tiles`: overlapping tilings, so that neighbours share features.
        width: of a tile, and number of tilings; 1 = every state has a feature of its own.
        max_steps: an episode is cut off after so many (null = never).
    """

    name: ClassVar[str] = "chain"

    length: int = 50
    reversal: float = 0.25
    view: Literal["number", "tiles"] = "number"
    width: int = 1
    max_steps: int | None = 500

    def __post_init__(self) -> None:
        if self.length < 2 or self.width < 1 or not 0 <= self.reversal < 0.5:
            raise ValueError("length must be at least 2, width at least 1 and reversal lie in [0, 0.5)")
        self.action_space = Discrete(2)
        if self.view == "number":
            self.observation_space = Discrete(self.length)
        else:
            self.observation_space = Box.of(0, 1, (self.tiles.shape[1],))

    @cached_property
    def tiles(self) -> Tensor:
        """Features `Float32 "S F"`: in each of `width` tilings one of value 1 / sqrt(width)."""
        each = math.ceil(self.length / self.width) + 1
        features = torch.zeros(self.length, self.width * each)
        for tiling in range(self.width):
            tile = (torch.arange(self.length) + tiling) // self.width
            features[torch.arange(self.length), tiling * each + tile] = self.width**-0.5
        return features

    @cached_property
    def moves(self) -> Tensor:
        """`Float64 "S 2 S"`; leaving at an end is the missing rest."""
        moves = torch.zeros(self.length, 2, self.length, dtype=torch.float64)
        for state in range(self.length):
            for side, by in ((0, -1), (1, 1)):
                if 0 <= state + by < self.length:
                    moves[state, side, state + by] += 1 - self.reversal
                    moves[state, 1 - side, state + by] += self.reversal
        return moves

    @cached_property
    def rewards(self) -> Tensor:
        """`Float64 "S 2"`, expected."""
        rewards = torch.zeros(self.length, 2, dtype=torch.float64)
        rewards[0] = torch.tensor([1 - self.reversal, self.reversal])
        rewards[-1] = -torch.tensor([self.reversal, 1 - self.reversal])
        return rewards

    def make(self, copies: int, device: torch.device | str = "cpu") -> ChainEnv:
        return ChainEnv(self, copies, device)


class ChainEnv(TaskEnv[Chain]):
    """State: `at "B"`. Episodes start anywhere. What is seen of the last step is the state that was left."""

    def __init__(self, task: Chain, size: int, device: torch.device | str = "cpu") -> None:
        super().__init__(task, size, device)
        self.tiles = task.tiles.to(self.device)

    def start(self) -> State:
        return {"at": self.pick(1, self.task.length).squeeze(1)}

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        right = (action == 1) ^ (self.draw(1).squeeze(1) < self.task.reversal)
        aim = state["at"] + 2 * right.long() - 1
        won, lost = aim < 0, aim >= self.task.length
        return {"at": aim.clamp(0, self.task.length - 1)}, won.float() - lost.float(), won | lost, {"success": won}

    def observe(self, state: State) -> Tensor:
        return state["at"] if self.task.view == "number" else self.tiles[state["at"]]
