"""Cart-pole, pendulum and mountain cars: the classic control problems as tensors, equal to Gymnasium's step by step.

State is float32 here and float64 there; one step from the same state agrees to about 1e-6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.tasks.control.batched_env import Simulation, State, TaskEnv, columns
from gainstage.types.spaces import Box, Discrete

INF = math.inf


def positive(name: str, **settings: float) -> None:
    """Refuse settings that are not above 0.

    Raises:
        ValueError: one is not; the message names it.
    """
    for key, value in settings.items():
        if not value > 0:
            raise ValueError(f"{name}: {key} must be above 0, got {value}")


def symmetric(*high: float) -> Box:
    """A box from -high to high."""
    bound = torch.tensor(high, dtype=torch.float32)
    return Box(-bound, bound)


# -- cart-pole -------------------------------------------------------------------------------------------------------


@component("task")
@dataclass
class CartPole(Simulation):
    """Keep a pole upright on a cart that is pushed left or right; reward 1 a step, as Gymnasium's `CartPole-v1`.

    Equations of Barto, Sutton and Anderson (1983), "Neuronlike adaptive elements that can solve difficult learning
    control problems", without friction, as corrected by Florian (2007), integrated by Euler steps. The episode ends
    when the cart leaves +-2.4 m or the pole tilts by more than 12 degrees. Starts: all four uniform in +-0.05.

    Args:
        gravity: m/s2.
        mass_cart, mass_pole: kg.
        length: half the pole's length, m.
        force: N, of one push.
        tau: seconds a step.
        max_steps: an episode is cut off after so many (null = never).
    """

    name: ClassVar[str] = "cart_pole"

    gravity: float = 9.8
    mass_cart: float = 1.0
    mass_pole: float = 0.1
    length: float = 0.5
    force: float = 10.0
    tau: float = 0.02
    max_steps: int | None = 500

    X_LIMIT: ClassVar[float] = 2.4
    THETA_LIMIT: ClassVar[float] = 12 * 2 * math.pi / 360

    def __post_init__(self) -> None:
        positive(self.name, mass_cart=self.mass_cart, mass_pole=self.mass_pole, length=self.length, tau=self.tau)
        self.observation_space = symmetric(2 * self.X_LIMIT, INF, 2 * self.THETA_LIMIT, INF)
        self.action_space = Discrete(2)

    def make(self, copies: int, device: torch.device | str = "cpu") -> CartPoleEnv:
        return CartPoleEnv(self, copies, device)


class CartPoleEnv(TaskEnv[CartPole]):
    """State: `motion "B 4"`: place of the cart (m), its speed, tilt of the pole (rad, 0 = upright), its speed."""

    def __init__(self, task: CartPole, size: int, device: torch.device | str = "cpu") -> None:
        super().__init__(task, size, device)
        self.left = torch.tensor(-task.force / (task.mass_cart + task.mass_pole), device=self.device)
        self.inertia = torch.tensor(task.length * 4 / 3, device=self.device)

    def start(self) -> State:
        return {"motion": self.draw(4).mul_(0.1).sub_(0.05)}

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        p = self.task
        x, x_dot, theta, theta_dot = state["motion"].unbind(1)
        total, moment = p.mass_cart + p.mass_pole, p.mass_pole * p.length
        cos, sin = theta.cos(), theta.sin()
        push = torch.add(self.left, action, alpha=2 * p.force / total)
        common = torch.addcmul(push, theta_dot * theta_dot, sin, value=moment / total)
        tilt = sin.mul_(p.gravity).addcmul_(cos, common, value=-1)
        tilt /= torch.addcmul(self.inertia, cos, cos, value=-moment / total)
        pull = torch.addcmul(common, tilt, cos, value=-moment / total)
        x, theta = torch.add(x, x_dot, alpha=p.tau), torch.add(theta, theta_dot, alpha=p.tau)
        x_dot, theta_dot = torch.add(x_dot, pull, alpha=p.tau), torch.add(theta_dot, tilt, alpha=p.tau)
        fallen = (x.abs() > p.X_LIMIT) | (theta.abs() > p.THETA_LIMIT)
        return {"motion": columns(x, x_dot, theta, theta_dot)}, torch.ones_like(x), fallen, {}

    def observe(self, state: State) -> Tensor:
        return state["motion"]


# -- pendulum --------------------------------------------------------------------------------------------------------


@component("task")
@dataclass
class Pendulum(Simulation):
    """Swing a pendulum up by a weak torque and hold it there, as Gymnasium's `Pendulum-v1`.

    Reward -(angle^2 + 0.1 speed^2 + 0.001 torque^2) of the state before the step, angle in [-pi, pi) with 0 upright;
    torques are clipped to +-2, speeds to +-8. Starts: angle uniform, speed uniform in +-1. Nothing ends an episode
    but the limit. Shown: cosine and sine of the angle, speed.

    Args:
        gravity: m/s2.
        mass: kg.
        length: m.
        max_steps: an episode is cut off after so many (null = never).
    """

    name: ClassVar[str] = "pendulum"

    gravity: float = 10.0
    mass: float = 1.0
    length: float = 1.0
    max_steps: int | None = 200

    MAX_SPEED: ClassVar[float] = 8.0
    MAX_TORQUE: ClassVar[float] = 2.0
    DT: ClassVar[float] = 0.05

    def __post_init__(self) -> None:
        positive(self.name, mass=self.mass, length=self.length)
        self.observation_space = symmetric(1, 1, self.MAX_SPEED)
        self.action_space = symmetric(self.MAX_TORQUE)

    def make(self, copies: int, device: torch.device | str = "cpu") -> PendulumEnv:
        return PendulumEnv(self, copies, device)


class PendulumEnv(TaskEnv[Pendulum]):
    """State: `motion "B 2"`: angle (rad, 0 = upright, not wrapped) and its speed."""

    def start(self) -> State:
        angle, speed = (self.draw(2) * 2 - 1).unbind(1)
        return {"motion": columns(angle * math.pi, speed)}

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        p = self.task
        theta, theta_dot = state["motion"].unbind(1)
        torque = action.squeeze(1).clamp(-p.MAX_TORQUE, p.MAX_TORQUE)
        angle = wrapped(theta)
        cost = (angle * angle).addcmul_(theta_dot, theta_dot, value=0.1).addcmul_(torque, torque, value=0.001)
        speed = torch.add(theta_dot, theta.sin(), alpha=1.5 * p.gravity / p.length * p.DT)
        speed.add_(torque, alpha=3 / (p.mass * p.length**2) * p.DT).clamp_(-p.MAX_SPEED, p.MAX_SPEED)
        motion = columns(torch.add(theta, speed, alpha=p.DT), speed)
        return {"motion": motion}, cost.neg_(), torch.zeros_like(theta, dtype=torch.bool), {}

    def observe(self, state: State) -> Tensor:
        theta, theta_dot = state["motion"].unbind(1)
        return columns(theta.cos(), theta.sin(), theta_dot)


def wrapped(angle: Tensor) -> Tensor:
    """An angle in [-pi, pi)."""
    return (angle + math.pi).remainder_(2 * math.pi).sub_(math.pi)


# -- mountain cars ---------------------------------------------------------------------------------------------------


@component("task")
@dataclass
class MountainCar(Simulation):
    """An engine too weak for the hill: rock back and forth to reach the flag, as Gymnasium's `MountainCar-v0`.

    Reward -1 a step until position 0.5 (Moore 1990, "Efficient memory-based learning for robot control"; Sutton and
    Barto, "Reinforcement learning", example 10.1). Actions: push left, none, right. Starts: position uniform in
    [-0.6, -0.4], no speed. Running into the left end stops the car.

    Args:
        force: speed gained by one push.
        gravity: speed gained by the steepest slope.
        goal_velocity: speed needed at the flag.
        max_steps: an episode is cut off after so many (null = never).
    """

    name: ClassVar[str] = "mountain_car"

    force: float = 0.001
    gravity: float = 0.0025
    goal_velocity: float = 0.0
    max_steps: int | None = 200

    GOAL: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        self.observation_space = _valley()
        self.action_space = Discrete(3)

    def make(self, copies: int, device: torch.device | str = "cpu") -> MountainCarEnv:
        return MountainCarEnv(self, copies, device)


@component("task")
@dataclass
class MountainCarContinuous(Simulation):
    """The mountain car with an engine of any strength up to 1, as Gymnasium's `MountainCarContinuous-v0`.

    Reward 100 at the flag (position 0.45) less 0.1 times the squared action of every step; the action counts there as
    it was given, and moves the car as clipped to +-1.

    Args:
        power: speed gained by full strength.
        gravity: speed gained by the steepest slope.
        goal_velocity: speed needed at the flag.
        action_cost: what a squared action costs; 0 leaves the sparse reward alone.
        max_steps: an episode is cut off after so many (null = never).
    """

    name: ClassVar[str] = "mountain_car_continuous"

    power: float = 0.0015
    gravity: float = 0.0025
    goal_velocity: float = 0.0
    action_cost: float = 0.1
    max_steps: int | None = 999

    GOAL: ClassVar[float] = 0.45

    def __post_init__(self) -> None:
        self.observation_space = _valley()
        self.action_space = symmetric(1.0)

    def make(self, copies: int, device: torch.device | str = "cpu") -> MountainCarContinuousEnv:
        return MountainCarContinuousEnv(self, copies, device)


LEFT, RIGHT, MAX_SPEED = -1.2, 0.6, 0.07


def _valley() -> Box:
    return Box(torch.tensor([LEFT, -MAX_SPEED]), torch.tensor([RIGHT, MAX_SPEED]))


def _parked(drawn: Tensor) -> State:
    """Starts `"S 2"` from draws `"S 1"`: anywhere in [-0.6, -0.4], at rest."""
    return {"motion": torch.cat((drawn * 0.2 - 0.6, torch.zeros_like(drawn)), dim=1)}


def _roll(motion: Tensor, gain: Tensor, gravity: float) -> tuple[Tensor, Tensor]:
    """Next position and velocity: slope, engine, the limits, and the wall at the left end."""
    position, velocity = motion.unbind(1)
    velocity = torch.add(velocity + gain, (position * 3).cos_(), alpha=-gravity).clamp_(-MAX_SPEED, MAX_SPEED)
    position = (position + velocity).clamp_(LEFT, RIGHT)
    return position, velocity.masked_fill_((position <= LEFT) & (velocity < 0), 0.0)


class MountainCarEnv(TaskEnv[MountainCar]):
    """State: `motion "B 2"`: position and velocity."""

    def start(self) -> State:
        return _parked(self.draw(1))

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        p = self.task
        gain = (action - 1).to(torch.float32).mul_(p.force)
        position, velocity = _roll(state["motion"], gain, p.gravity)
        there = (position >= p.GOAL) & (velocity >= p.goal_velocity)
        reward = torch.full_like(position, -1.0)
        return {"motion": columns(position, velocity)}, reward, there, {"success": there}

    def observe(self, state: State) -> Tensor:
        return state["motion"]


class MountainCarContinuousEnv(TaskEnv[MountainCarContinuous]):
    """State: `motion "B 2"`: position and velocity."""

    def start(self) -> State:
        return _parked(self.draw(1))

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        p, action = self.task, action.squeeze(1)
        position, velocity = _roll(state["motion"], action.clamp(-1, 1) * p.power, p.gravity)
        there = (position >= p.GOAL) & (velocity >= p.goal_velocity)
        reward = (there * 100.0).addcmul_(action, action, value=-p.action_cost)
        return {"motion": columns(position, velocity)}, reward, there, {"success": there}

    def observe(self, state: State) -> Tensor:
        return state["motion"]
