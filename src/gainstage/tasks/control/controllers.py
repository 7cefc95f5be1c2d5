"""Scripts that act: experts and loggers for worlds where a good action can be said in a line or two.

They make the data of offline learning (expert, and with `Noisy` medium) and the yardstick of online learning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gainstage.tasks.control.acrobot import Acrobot
from gainstage.tasks.control.batched_env import Simulation
from gainstage.tasks.control.classic import CartPole, MountainCar, MountainCarContinuous, Pendulum
from gainstage.tasks.control.controller import Controller
from gainstage.tasks.control.goals import BitFlip, Reach
from gainstage.tasks.control.grid_world import GridWorld
from gainstage.tasks.control.point_maze import PointMaze
from gainstage.tasks.control.positioning import Positioning
from gainstage.tasks.control.positioning_controllers import CoordinateWalk, Straight
from gainstage.tasks.control.tabular import RandomMDP, backward_values, grid_process, value_iteration
from gainstage.types.spaces import Box, Discrete, Space

# -- classic control ---------------------------------------------------------------------------------------------------


class Balance(Controller):
    """Cart-pole: push towards where the pole falls to, a little later where the cart has drifted there already."""

    def act(self, obs: Tensor) -> Tensor:
        x, x_dot, theta, theta_dot = obs.unbind(1)
        return (theta + 0.3 * theta_dot + 0.02 * x + 0.05 * x_dot > 0).long()


class SwingUp(Controller):
    """Pendulum: pump energy until there is enough to stand (Astrom and Furuta 2000), then hold by a PD law."""

    def __init__(self, task: Pendulum) -> None:
        self.task = task

    def act(self, obs: Tensor) -> Tensor:
        p = self.task
        cos, sin, speed = obs.unbind(1)
        angle = torch.atan2(sin, cos)
        # kinetic and potential energy over m l^2 / 2, counted from the upright rest
        lacking = 3 * p.gravity / p.length * (1 - cos) - speed**2
        pump = p.MAX_TORQUE * torch.sign(speed * lacking + 1e-6)
        weight = p.mass * p.length * p.gravity / 2
        hold = -(2.5 * weight * angle + 0.6 * weight * speed)
        torque = torch.where(angle.abs() < 0.4, hold, pump)
        return torque.clamp(-p.MAX_TORQUE, p.MAX_TORQUE).unsqueeze(1)


class WithTheMotion(Controller):
    """Mountain cars: push the way the car rolls, which only ever adds energy."""

    def __init__(self, discrete: bool) -> None:
        self.discrete = discrete

    def act(self, obs: Tensor) -> Tensor:
        forward = obs[:, 1] >= 0
        return 2 * forward.long() if self.discrete else (2.0 * forward - 1).unsqueeze(1)


class Whip(Controller):
    """Acrobot: drive the joint against the swing of the first link."""

    def act(self, obs: Tensor) -> Tensor:
        return torch.where(obs[:, 4] > 0, 0, 2)


# -- goals -------------------------------------------------------------------------------------------------------------


class FlipNext(Controller):
    """Bit-flip: flip the first bit that differs from the goal."""

    def __init__(self, task: BitFlip) -> None:
        self.bits = task.bits

    def act(self, obs: Tensor) -> Tensor:
        return (obs[:, : self.bits] != obs[:, 2 * self.bits :]).long().argmax(1)


class Home(Controller):
    """Reach: the push that would bring the point to the goal in this very step, as far as it goes."""

    def __init__(self, task: Reach) -> None:
        self.task = task

    def act(self, obs: Tensor) -> Tensor:
        p, d = self.task, self.task.dims
        speed = obs[:, d : 2 * d] * p.push / p.friction
        gap = obs[:, 3 * d :] - obs[:, :d]
        return ((p.friction * gap - (1 - p.friction) * speed) / p.push).clamp(-1, 1)


class Waypoints(Controller):
    """Point maze: along the shortest way from cell to cell, then to the goal; with a force by a PD law on the speed.

    Args:
        task: the maze.
        pace: cells per s aimed at between cells, where a force moves the point.
    """

    def __init__(self, task: PointMaze, pace: float = 1.0) -> None:
        self.task, self.pace = task, pace
        free, width = task.cells(".SGH"), len(task.rows[0])
        steps = {cell: [cell + d for d in (1, -1, width, -width) if cell + d in set(free)] for cell in free}
        self.onward = shortest_ways(steps, len(task.rows) * width)

    def act(self, obs: Tensor) -> Tensor:
        p, place, goal = self.task, obs[:, -4:-2], obs[:, -2:]
        here, there = p.cell_of(place), p.cell_of(goal)
        target = torch.where((here == there).unsqueeze(1), goal, p.centres(self.onward.to(obs.device)[there, here]))
        gap = target - place
        if p.control == "velocity":
            return (gap / p.step).clamp(-1, 1)
        wanted = (2 * gap).clamp(-self.pace, self.pace)
        return (4 * (wanted - obs[:, 2:4]) / p.force).clamp(-1, 1)


class Planned(Controller):
    """Worlds of numbered states that are known in full: the best action by value iteration.

    Args:
        task: a grid world that shows its cell (view ones or number) and has nothing to be eaten, or a random process.
        gamma: discount of the grid world's values; below 1, so that sooner is better.
    """

    def __init__(self, task: GridWorld | RandomMDP, gamma: float = 0.99) -> None:
        if isinstance(task, RandomMDP):
            values, _ = backward_values(task.moves, task.final, task.horizon)
            self.best = torch.cat((values.argmax(2).flatten(), torch.zeros(task.states, dtype=torch.int64)))
            return
        if task.view not in ("ones", "number"):
            raise ValueError(f"planned: the view {task.view} does not tell the cell, set view to ones or number")
        self.best = value_iteration(*grid_process(task), gamma).argmax(1)

    def act(self, obs: Tensor) -> Tensor:
        state = obs if obs.dim() == 1 else obs[:, : len(self.best)].argmax(1)
        return self.best.to(obs.device)[state]


def shortest_ways(steps: Mapping[int, list[int]], cells: int) -> Tensor:
    """`Int64 "C C"`: the next cell on a shortest way to a goal (row) from a cell (column); the cell itself if none."""
    onward = torch.arange(cells).repeat(cells, 1)
    for goal in steps:
        queue, seen = deque([goal]), {goal}
        while queue:
            cell = queue.popleft()
            for before in steps[cell]:
                if before not in seen:
                    seen.add(before)
                    onward[goal, before] = cell
                    queue.append(before)
    return onward


# -- mixtures ----------------------------------------------------------------------------------------------------------


class Noisy(Controller):
    """Another controller made worse: now and then a random action, noise on the others.

    Args:
        controller: whose actions are spoiled.
        space: of the actions.
        epsilon: chance of an action that is uniform in the space (in [-1, 1] where it has no bounds).
        std: standard deviation of what is added to actions that are numbers, as a share of their range.
        seed: of the draws.
    """

    def __init__(
        self, controller: Controller, space: Space, epsilon: float = 0.0, std: float = 0.0, seed: int = 0
    ) -> None:
        if not 0 <= epsilon <= 1 or std < 0:
            raise ValueError(f"epsilon must lie in [0, 1] and std be at least 0, got {epsilon} and {std}")
        if not isinstance(space, Box | Discrete):
            raise ValueError(f"noisy: takes actions that are a choice or numbers, got {type(space).__name__}")
        self.controller, self.space, self.epsilon, self.std = controller, space, epsilon, std
        self.generator = torch.Generator().manual_seed(seed)

    def reset(self, ended: Tensor) -> None:
        self.controller.reset(ended)

    def resync(self, moved: Tensor) -> None:
        self.controller.resync(moved)

    def act(self, obs: Tensor) -> Tensor:
        action = self.controller.act(obs).cpu()
        spoiled = torch.rand(len(obs), generator=self.generator) < self.epsilon
        if isinstance(self.space, Discrete):
            drawn = torch.randint(self.space.n, (len(obs),), generator=self.generator)
            return torch.where(spoiled, drawn, action).to(obs.device)
        low, high = (bound.nan_to_num(posinf=1.0, neginf=-1.0) for bound in (self.space.low, self.space.high))
        noise = torch.randn(action.shape, generator=self.generator) * self.std * (high - low) / 2
        drawn = low + (high - low) * torch.rand(action.shape, generator=self.generator)
        return torch.where(spoiled.unsqueeze(1), drawn, (action + noise).clamp(low, high)).to(obs.device)

    def state_dict(self) -> dict[str, Any]:
        return {"controller": self.controller.state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.controller.load_state_dict(state["controller"])
        self.generator.set_state(state["generator"])


def expert(task: Simulation) -> Controller:
    """The scripted expert of a world.

    Raises:
        ValueError: there is none, or not for these settings.
    """
    if isinstance(task, MountainCar | MountainCarContinuous):
        return WithTheMotion(discrete=isinstance(task, MountainCar))
    if isinstance(task, CartPole | Acrobot):
        return Balance() if isinstance(task, CartPole) else Whip()
    makers: dict[type, Any] = {
        Pendulum: SwingUp,
        BitFlip: FlipNext,
        Reach: Home,
        PointMaze: Waypoints,
        GridWorld: Planned,
        RandomMDP: Planned,
        Positioning: Straight if getattr(task, "view", "") == "state" else CoordinateWalk,
    }
    if type(task) not in makers:
        raise ValueError(f"{task.name}: has no scripted expert; take a trained policy or a random one")
    return makers[type(task)](task)
