"""Acrobot: two links of which only the joint between them is driven, equal to Gymnasium's step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.tasks.control.batched_env import Simulation, State, TaskEnv, columns
from gainstage.tasks.control.classic import positive, symmetric
from gainstage.types.spaces import Discrete

GRAVITY = 9.8
DT = 0.2
MAX_SPEEDS = (4 * math.pi, 9 * math.pi)


@component("task")
@dataclass
class Acrobot(Simulation):
    """Swing the free end of two links above a line, reward -1 a step and 0 at the last, as Gymnasium's `Acrobot-v1`.

    Equations of Sutton and Barto, "Reinforcement learning" (first edition, section 11.3; Sutton 1996, "Generalization
    in reinforcement learning"), one Runge-Kutta step of fourth order of 0.2 s an action. Actions: torque -1, 0, +1 at
    the joint. Starts: all four uniform in +-0.1, both links hanging. Angles wrap to +-pi, speeds are bounded by 4 pi
    and 9 pi. Shown: cosine and sine of both angles, both speeds.

    Args:
        mass_1, mass_2: kg.
        length_1: of the first link, m; each link's centre of mass lies half-way, the second is as long as the first.
        torque: of one push, N m.
        max_steps: an episode is cut off after so many (null = never).
    """

    name: ClassVar[str] = "acrobot"

    mass_1: float = 1.0
    mass_2: float = 1.0
    length_1: float = 1.0
    torque: float = 1.0
    max_steps: int | None = 500

    def __post_init__(self) -> None:
        positive(self.name, mass_1=self.mass_1, mass_2=self.mass_2, length_1=self.length_1, torque=self.torque)
        self.observation_space = symmetric(1, 1, 1, 1, *MAX_SPEEDS)
        self.action_space = Discrete(3)

    def make(self, copies: int, device: torch.device | str = "cpu") -> AcrobotEnv:
        return AcrobotEnv(self, copies, device)


class AcrobotEnv(TaskEnv[Acrobot]):
    """State: `motion "B 4"`: angle of the first link (0 = down), of the second to the first, and their speeds."""

    def start(self) -> State:
        return {"motion": self.draw(4) * 0.2 - 0.1}

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        motion = state["motion"].T.contiguous()
        torque = (action - 1).to(torch.float32).mul_(self.task.torque)
        slopes = self._slopes(motion, torque)
        total = slopes
        for share, weight in ((DT / 2, 2), (DT / 2, 2), (DT, 1)):
            slopes = self._slopes(torch.add(motion, slopes, alpha=share), torque)
            total = torch.add(total, slopes, alpha=weight)
        motion = torch.add(motion, total, alpha=DT / 6)
        motion[:2] = _turn(motion[:2])
        for row, bound in zip(motion[2:], MAX_SPEEDS, strict=True):
            row.clamp_(-bound, bound)
        there = -motion[0].cos() - (motion[0] + motion[1]).cos() > 1
        return {"motion": motion.T}, there.to(torch.float32) - 1, there, {"success": there}

    def _slopes(self, motion: Tensor, torque: Tensor) -> Tensor:
        """Time derivatives `"4 B"`; inertia of each link is 1."""
        p = self.task
        first, second, speed_1, speed_2 = motion
        centre = p.length_1 / 2
        cos, sin = second.cos(), second.sin()
        lever = p.mass_2 * p.length_1 * centre
        d_1 = cos * (2 * lever) + (p.mass_1 * centre**2 + p.mass_2 * (p.length_1**2 + centre**2) + 2)
        d_2 = cos * lever + (p.mass_2 * centre**2 + 1)
        phi_2 = (first + second).sin() * (p.mass_2 * centre * GRAVITY)
        swing = sin * lever
        phi_1 = (p.mass_1 * centre + p.mass_2 * p.length_1) * GRAVITY * first.sin() + phi_2
        phi_1 = phi_1 - swing * speed_2 * (speed_2 + 2 * speed_1)
        share = d_2 / d_1
        bend = (torque + share * phi_1 - swing * speed_1 * speed_1 - phi_2) / (p.mass_2 * centre**2 + 1 - share * d_2)
        return torch.stack((speed_1, speed_2, -(d_2 * bend + phi_1) / d_1, bend))

    def observe(self, state: State) -> Tensor:
        first, second, speed_1, speed_2 = state["motion"].unbind(1)
        return columns(first.cos(), first.sin(), second.cos(), second.sin(), speed_1, speed_2)


def _turn(angle: Tensor) -> Tensor:
    """Whole turns taken off what lies outside of [-pi, pi]; what lies inside keeps its bits."""
    turns = torch.ceil((angle.abs() - math.pi).clamp_(min=0) / (2 * math.pi))
    return angle - 2 * math.pi * turns * angle.sign()
