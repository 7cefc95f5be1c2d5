"""Worlds that are asked for a goal: bit-flip and point reach, with a reward of -1 until the goal is there.

An observation is laid out as `observation`, `achieved_goal`, `desired_goal` end to end (the pieces of Gymnasium's goal
environments), and the reward is a pure function of what was achieved and what was asked for, so that hindsight can
compute it again for another goal (Andrychowicz et al. 2017, "Hindsight experience replay", arXiv 1707.01495).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.tasks.control.batched_env import Simulation, State, TaskEnv
from gainstage.types.spaces import Box, Discrete, Piece


class GoalSimulation(Simulation):
    """A task whose reward depends on a goal: a subclass says what reaches it and whether that ends an episode."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"simulator", "goal"})
    ends_on_success: bool = False

    def reached(self, achieved: Tensor, goal: Tensor) -> Tensor:
        """`Bool "B"` of goals `"B Dg"`."""
        raise NotImplementedError

    def compute_reward(self, achieved: Tensor, goal: Tensor) -> Tensor:
        """`Float32 "B"`: 0 where the goal is reached, else -1. `achieved` is what the step led to."""
        return self.reached(achieved, goal).to(torch.float32) - 1

    def compute_terminated(self, achieved: Tensor, goal: Tensor) -> Tensor:
        """`Bool "B"`: whether reaching the goal ends the episode there."""
        there = self.reached(achieved, goal)
        return there if self.ends_on_success else torch.zeros_like(there)


def goal_box(observation: Box, goal: Box) -> Box:
    """The space of an observation with the goal that was achieved and the one that is asked for, end to end."""
    parts = {"observation": observation, "achieved_goal": goal, "desired_goal": goal}
    pieces, at = {}, 0
    for name, part in parts.items():
        pieces[name] = Piece(at, at + len(part.low), part.shape)
        at += len(part.low)
    low, high = (torch.cat([getattr(part, side) for part in parts.values()]) for side in ("low", "high"))
    return Box(low, high, pieces=pieces)


# -- bit-flip ----------------------------------------------------------------------------------------------------------


@component("task")
@dataclass
class BitFlip(GoalSimulation):
    """Flip bits one by one until they equal the goal; reward -1 a step and 0 at the last, which ends the episode.

    From the paper's motivating example (arXiv 1707.01495, section 3.1): with many bits, exploration alone never finds
    the goal. Bits and goal are drawn anew for every episode.

    Args:
        bits: their number, and that of the actions; difficulty grows as 2 to this power.
        max_steps: an episode is cut off after so many; null = as many as bits.
    """

    name: ClassVar[str] = "bit_flip"

    bits: int = 10
    max_steps: int | None = None

    def __post_init__(self) -> None:
        if self.bits < 1:
            raise ValueError(f"bits must be at least 1, got {self.bits}")
        self.ends_on_success = True
        self.max_steps = self.bits if self.max_steps is None else self.max_steps
        self.observation_space = goal_box(Box.of(0, 1, (self.bits,)), Box.of(0, 1, (self.bits,)))
        self.action_space = Discrete(self.bits)

    def make(self, copies: int, device: torch.device | str = "cpu") -> BitFlipEnv:
        return BitFlipEnv(self, copies, device)

    def reached(self, achieved: Tensor, goal: Tensor) -> Tensor:
        return (achieved == goal).all(-1)


class BitFlipEnv(TaskEnv[BitFlip]):
    """State: `bits` and `goal`, both `"B bits"` of 0 and 1."""

    def start(self) -> State:
        bits, goal = (self.draw(2 * self.task.bits) < 0.5).to(torch.float32).chunk(2, dim=1)
        return {"bits": bits, "goal": goal}

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        chosen = torch.nn.functional.one_hot(action, self.task.bits)
        bits, goal = (state["bits"] - chosen).abs(), state["goal"]
        there = self.task.reached(bits, goal)
        return {"bits": bits, "goal": goal}, there.to(torch.float32) - 1, there, {"success": there}

    def observe(self, state: State) -> Tensor:
        return torch.cat((state["bits"], state["bits"], state["goal"]), dim=1)


# -- reach -------------------------------------------------------------------------------------------------------------


@component("task")
@dataclass
class Reach(GoalSimulation):
    """Bring a point to a small target and hold it there; reward -1 a step, 0 while the point is within the tolerance.

    A small stand-in for reaching with an arm: the point starts at rest in the middle, an action pushes it, friction
    slows it down, walls at +-1 stop it. The episode goes on when the goal is reached. `success` says whether the point
    is within the tolerance now, so that of a whole episode is the last step's.

    Args:
        dims: axes; every one more makes an accidental reward rarer by an order.
        tolerance: distance up to which the goal counts as reached.
        push: speed gained by a full action.
        friction: share of the speed that is lost in a step; 1 = the action is the velocity.
        max_steps: an episode is cut off after so many (null = never).
    """

    name: ClassVar[str] = "reach"

    dims: int = 2
    tolerance: float = 0.05
    push: float = 0.05
    friction: float = 0.5
    max_steps: int | None = 50

    def __post_init__(self) -> None:
        if self.dims < 1:
            raise ValueError(f"dims must be at least 1, got {self.dims}")
        if self.tolerance <= 0 or self.push <= 0:
            raise ValueError(f"tolerance and push must be above 0, got {self.tolerance} and {self.push}")
        if not 0 < self.friction <= 1:
            raise ValueError(f"friction must lie in (0, 1], got {self.friction}")
        self.observation_space = goal_box(Box.of(-1, 1, (2 * self.dims,)), Box.of(-1, 1, (self.dims,)))
        self.action_space = Box.of(-1, 1, (self.dims,))

    def make(self, copies: int, device: torch.device | str = "cpu") -> ReachEnv:
        return ReachEnv(self, copies, device)

    def reached(self, achieved: Tensor, goal: Tensor) -> Tensor:
        return (achieved - goal).norm(dim=-1) <= self.tolerance


class ReachEnv(TaskEnv[Reach]):
    """State: `place`, `speed`, `goal`, each `"B dims"`. Speeds are shown as shares of the greatest one."""

    def start(self) -> State:
        goal = self.draw(self.task.dims) * 2 - 1
        return {"place": torch.zeros_like(goal), "speed": torch.zeros_like(goal), "goal": goal}

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        p = self.task
        speed = (1 - p.friction) * state["speed"] + p.push * action.clamp(-1, 1)
        aim = state["place"] + speed
        place = aim.clamp(-1, 1)
        new = {"place": place, "speed": torch.where(place == aim, speed, 0.0), "goal": state["goal"]}
        reward = p.compute_reward(place, state["goal"])
        return new, reward, torch.zeros_like(reward, dtype=torch.bool), {"success": reward == 0}

    def observe(self, state: State) -> Tensor:
        speed = (state["speed"] * (self.task.friction / self.task.push)).clamp(-1, 1)
        return torch.cat((state["place"], speed, state["place"], state["goal"]), dim=1)
