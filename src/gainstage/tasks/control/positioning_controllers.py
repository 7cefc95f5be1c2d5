"""Scripts for positioning: the straight way to a target that is seen, a search along the axes for one that is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gainstage.tasks.control.controller import Controller
from gainstage.tasks.control.positioning import Positioning


class Straight(Controller):
    """Positioning whose place is seen: the move that ends at the target, the distortion taken back."""

    def __init__(self, task: Positioning) -> None:
        if task.view != "state":
            raise ValueError("straight: the place is not seen, set view to state")
        self.back, self.reach = torch.linalg.inv(task.matrix), task.reach

    def act(self, obs: Tensor) -> Tensor:
        move = -obs @ self.back.to(obs.device).T
        return move * (self.reach / move.norm(dim=1, keepdim=True).clamp(min=self.reach))


class CoordinateWalk(Controller):
    """Positioning by distance alone: axis by axis, on while it gets better, back when it got worse; full of detours.

    Args:
        task: the world; only the distance (or the signal) is used of what it shows.
        step_sizes: lengths of a move in the first round over all axes, the second, ...; the last one stays.
        axis_order: order of the axes; None = as they come.
    """

    KEPT = ("turn", "round", "sign", "failed", "gained", "last", "compare")

    def __init__(
        self,
        task: Positioning,
        step_sizes: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125),
        axis_order: tuple[int, ...] | None = None,
    ) -> None:
        self.task = task
        self.sizes = torch.tensor(step_sizes) * task.reach
        self.order = torch.tensor(axis_order or range(task.dims))
        if sorted(self.order.tolist()) != list(range(task.dims)):
            raise ValueError(f"axis_order must name every axis once, got {axis_order}")
        self.size = 0

    def reset(self, ended: Tensor) -> None:
        if len(ended) != self.size:
            self.size = len(ended)
            zeros = torch.zeros(self.size, dtype=torch.int64)
            self.turn, self.round, self.failed = zeros, zeros.clone(), zeros.clone()
            self.sign, self.last = torch.ones(self.size), torch.zeros(self.size)
            self.gained, self.compare = torch.zeros(2, self.size, dtype=torch.bool)
        ended = ended.cpu()
        self._restart_axis(ended)
        self.turn, self.round = (torch.where(ended, 0, value) for value in (self.turn, self.round))

    def _restart_axis(self, which: Tensor) -> None:
        which = which.cpu()
        self.sign = torch.where(which, 1.0, self.sign)
        self.failed = torch.where(which, 0, self.failed)
        self.gained, self.compare = self.gained & ~which, self.compare & ~which

    def act(self, obs: Tensor) -> Tensor:
        if len(obs) != self.size:
            self.reset(torch.ones(len(obs), dtype=torch.bool))
        reading = (-obs.norm(dim=1) if self.task.view == "state" else obs[:, 0]).cpu()
        axis, length = self.order[self.turn], self.sizes[self.round.clamp(max=len(self.sizes) - 1)]
        worse = self.compare & (reading < self.last)
        self.gained |= self.compare & ~worse
        move = torch.where(worse, -self.sign, self.sign) * length
        self.last, self.compare = torch.where(worse, self.last, reading), ~worse  # a way back proves nothing
        self.failed = self.failed + worse.long()
        self.sign = torch.where(worse, -self.sign, self.sign)
        done = worse & (self.gained | (self.failed >= 2))
        self._restart_axis(done)
        turned = done & (self.turn == self.task.dims - 1)
        self.turn = torch.where(done, (self.turn + 1) % self.task.dims, self.turn)
        self.round = self.round + turned.long()
        return torch.zeros(len(obs), self.task.dims).scatter_(1, axis.unsqueeze(1), move.unsqueeze(1)).to(obs.device)

    def resync(self, moved: Tensor) -> None:
        """Search the current axis anew from where the copy is now."""
        self._restart_axis(moved)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.KEPT} if self.size else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
            self.size = len(value)
