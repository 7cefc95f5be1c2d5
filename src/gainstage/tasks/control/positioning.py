"""Bring an actuator to a target that only its distance gives away, in any number of dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.tasks.control.batched_env import Simulation, State, TaskEnv, normal
from gainstage.types.spaces import Box


@component("task")
@dataclass
class Positioning(Simulation):
    """Move to a hidden target; reward minus the distance after the move, which is all that is paid.

    The state is the place as seen from the target. A move longer than `reach` is shortened to it, then distorted, then
    made. Moves add up, so the way between two visited places is itself a move (the property that trajectory-level
    augmentation of positioning logs lives on, arXiv 2605.13401). The episode ends at the target.

    Args:
        dims: axes.
        distortion: what becomes of a move: `none`, `rotation` (by `angle` in the planes of axes 1-2, 3-4, ...), or
            `scaling` (axes shrink, the last one to half).
        angle: degrees of the rotation.
        view: `state` shows the place; `signal` the noisy negative distance and the last moves.
        history: moves that `signal` shows.
        noise: standard deviation of the signal's noise.
        reach: length of the longest move.
        spread: starts are uniform in +-spread along every axis.
        tolerance: distance at which the target is reached.
        max_steps: an episode is cut off after so many (null = never).
    """

    name: ClassVar[str] = "positioning"

    dims: int = 2
    distortion: Literal["none", "rotation", "scaling"] = "none"
    angle: float = 20.0
    view: Literal["state", "signal"] = "state"
    history: int = 4
    noise: float = 0.05
    reach: float = 1.0
    spread: float = 4.0
    tolerance: float = 0.1
    max_steps: int | None = 40

    def __post_init__(self) -> None:
        if self.dims < 1 or self.history < 1:
            raise ValueError(f"dims and history must be at least 1, got {self.dims} and {self.history}")
        if self.reach <= 0 or self.spread <= 0 or self.tolerance <= 0 or self.noise < 0:
            raise ValueError("reach, spread and tolerance must be above 0, noise at least 0")
        seen = self.dims if self.view == "state" else 1 + self.history * self.dims
        self.observation_space = Box.of(-math.inf, math.inf, (seen,))
        self.action_space = Box.of(-self.reach, self.reach, (self.dims,))

    @cached_property
    def matrix(self) -> Tensor:
        """`Float32 "D D"`: a move `m` comes about as `matrix @ m`."""
        if self.distortion == "scaling":
            return torch.diag(torch.linspace(1.0, 0.5, self.dims + 1)[1:])
        turned = torch.eye(self.dims)
        if self.distortion == "rotation":
            cos, sin = math.cos(math.radians(self.angle)), math.sin(math.radians(self.angle))
            for axis in range(0, self.dims - 1, 2):
                turned[axis : axis + 2, axis : axis + 2] = torch.tensor([[cos, -sin], [sin, cos]])
        return turned

    def make(self, copies: int, device: torch.device | str = "cpu") -> PositioningEnv:
        return PositioningEnv(self, copies, device)


class PositioningEnv(TaskEnv[Positioning]):
    """State: `place "B D"`, seen from the target, `signal "B"` with its noise, `moves "B history D"`, latest first."""

    def __init__(self, task: Positioning, size: int, device: torch.device | str = "cpu") -> None:
        super().__init__(task, size, device)
        self.turned = task.matrix.T.to(self.device)

    def start(self) -> State:
        p = self.task
        drawn = self.draw(p.dims + 2)
        place = p.spread * (2 * drawn[:, : p.dims] - 1)
        moves = torch.zeros(len(place), p.history, p.dims, device=self.device)
        return {"place": place, "signal": self._signal(place, drawn[:, p.dims :]), "moves": moves}

    def _signal(self, place: Tensor, drawn: Tensor) -> Tensor:
        return self.task.noise * normal(drawn).squeeze(1) - place.norm(dim=1)

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        p = self.task
        length = action.norm(dim=1, keepdim=True)
        move = action * (p.reach / length.clamp(min=p.reach))
        place = state["place"]
        for along, column in zip(move.T, self.turned, strict=True):  # a matrix product rounds by the size of the batch
            place = torch.addcmul(place, along.unsqueeze(1), column)
        distance = place.norm(dim=1)
        there = distance <= p.tolerance
        moves = torch.cat((move.unsqueeze(1), state["moves"][:, :-1]), dim=1)
        new = {"place": place, "signal": self._signal(place, self.draw(2)), "moves": moves}
        return new, -distance, there, {"success": there, "distance": distance}

    def observe(self, state: State) -> Tensor:
        if self.task.view == "state":
            return state["place"]
        return torch.cat((state["signal"].unsqueeze(1), state["moves"].flatten(1)), dim=1)
