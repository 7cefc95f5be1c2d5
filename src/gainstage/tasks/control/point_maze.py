"""A point in a maze, moved by a velocity or a force: sparse or dense goals, and cells that cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.tasks.control.batched_env import State, TaskEnv, normal
from gainstage.tasks.control.goals import GoalSimulation, goal_box
from gainstage.types.spaces import Box

MAZES = {
    "open": ("#######", "#.....#", "#.....#", "#.....#", "#.....#", "#.....#", "#######"),
    "arena": ("#######", "#.....#", "#.....#", "#..G..#", "#.....#", "#.....#", "#######"),
    "u_maze": ("#####", "#S..#", "###.#", "#G..#", "#####"),
    "u_wall": (
        "###########",
        "#.........#",
        "#.#######.#",
        "#.......#.#",
        "#.......#.#",
        "#.S.....#G#",
        "#.......#.#",
        "#.......#.#",
        "#.#######.#",
        "#.........#",
        "###########",
    ),
    "spiral": (
        "###########",
        "#.......#G#",
        "#.#####.#.#",
        "#.#...#.#.#",
        "#.#.#.#.#.#",
        "#.#.#S#.#.#",
        "#.#.###.#.#",
        "#.#.....#.#",
        "#.#######.#",
        "#.........#",
        "###########",
    ),
    "medium": (
        "#########",
        "#S..#...#",
        "#.#...#.#",
        "#.#####.#",
        "#...#...#",
        "###.#.###",
        "#.......#",
        "#.##.##.#",
        "#..#..#G#",
        "#########",
    ),
    "hazards": (
        "#########",
        "#.......#",
        "#.S.....#",
        "#...H...#",
        "#..HHH..#",
        "#...H...#",
        "#.....G.#",
        "#.......#",
        "#########",
    ),
}
"""Mazes by name: `#` wall, `.` free, `S` start, `G` goal, `H` hazard."""

MARGIN = 1e-3
"""Distance to a wall at which the point stops, in cells."""
DT = 0.1


@component("task")
@dataclass
class PointMaze(GoalSimulation):
    """Move a point through a maze to a goal. One unit is one cell; the middle of the maze is (0, 0), y grows downwards.

    Walls stop a movement along their axis and leave the other one alone. The observation is the place (and the speed,
    where a force moves the point), the achieved and the desired goal.

    Args:
        maze: a name (open, arena, u_maze, u_wall, spiral, medium, hazards), or lines of letters joined by `/`.
        control: `velocity`: an action moves the point by `step` times itself; `force`: it accelerates it.
        reward: `sparse` (-1, and 0 within the tolerance), `bonus` (0, and 1 within it) or `dense` (minus the distance).
        start, goal: `map` = on the map's letter, drawn anew where there is none; `drawn` = anywhere free.
        tolerance: distance up to which the goal counts as reached.
        ends_on_success: whether reaching the goal ends the episode.
        step: cells that a full velocity covers in a step, below 1.
        force: cells per s2 of a full force; a step takes 0.1 s.
        drag: share of the speed that is lost in a second, with `force`.
        max_speed: cells per s along each axis, with `force`.
        noise: standard deviation of what is added to every action.
        max_steps: an episode is cut off after so many (null = never).
    """

    name: ClassVar[str] = "point_maze"

    maze: str = "u_maze"
    control: Literal["velocity", "force"] = "velocity"
    reward: Literal["sparse", "bonus", "dense"] = "sparse"
    start: Literal["map", "drawn"] = "map"
    goal: Literal["map", "drawn"] = "map"
    tolerance: float = 0.5
    ends_on_success: bool = True
    step: float = 0.5
    force: float = 1.0
    drag: float = 0.1
    max_speed: float = 5.0
    noise: float = 0.0
    max_steps: int | None = 100

    def __post_init__(self) -> None:
        rows = self.rows
        if len({len(row) for row in rows}) != 1:
            raise ValueError(f"maze: every line must have the same length, got {[len(row) for row in rows]}")
        if unknown := set("".join(rows)) - set("#.SGH"):
            raise ValueError(f"maze: {''.join(sorted(unknown))!r} is no letter of a map; presets: {', '.join(MAZES)}")
        if set(rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)) != {"#"}:
            raise ValueError("maze: the border must be walls")
        if not 0 < self.step < 1:
            raise ValueError(f"step must lie between 0 and 1 cell, got {self.step}")
        if self.tolerance <= 0 or self.noise < 0 or not 0 <= self.drag <= 10:
            raise ValueError("tolerance must be above 0, noise at least 0 and drag between 0 and 10")
        if not 0 < self.max_speed * DT < 1:
            raise ValueError(f"max_speed must lie between 0 and {1 / DT}, got {self.max_speed}")
        half = torch.tensor([len(rows[0]) / 2, len(rows) / 2])
        high = half if self.control == "velocity" else torch.cat((half, torch.full((2,), self.max_speed)))
        self.observation_space = goal_box(Box(-high, high), Box(-half, half))
        self.action_space = Box.of(-1, 1, (2,))

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The maze's lines."""
        return MAZES.get(self.maze) or tuple(self.maze.split("/"))

    def cells(self, letters: str) -> list[int]:
        """Cells, in reading order, that hold one of these letters."""
        return [cell for cell, letter in enumerate("".join(self.rows)) if letter in letters]

    def centres(self, cells: Tensor) -> Tensor:
        """Places `"B 2"` of the middles of cells `"B"`."""
        width, height = len(self.rows[0]), len(self.rows)
        return torch.stack((cells % width - width / 2 + 0.5, cells // width - height / 2 + 0.5), dim=1)

    def cell_of(self, place: Tensor) -> Tensor:
        """The cell `Int64 "B"` in which a place `"B 2"` lies."""
        width, height = len(self.rows[0]), len(self.rows)
        x, y = (place[:, 0] + width / 2).floor().long(), (place[:, 1] + height / 2).floor().long()
        return y * width + x

    def reached(self, achieved: Tensor, goal: Tensor) -> Tensor:
        return (achieved - goal).norm(dim=-1) <= self.tolerance

    def compute_reward(self, achieved: Tensor, goal: Tensor) -> Tensor:
        if self.reward == "dense":
            return -(achieved - goal).norm(dim=-1)
        return self.reached(achieved, goal).to(torch.float32) - float(self.reward == "sparse")

    def make(self, copies: int, device: torch.device | str = "cpu") -> PointMazeEnv:
        return PointMazeEnv(self, copies, device)


class PointMazeEnv(TaskEnv[PointMaze]):
    """State: `place`, `speed` and `goal`, each `"B 2"`.

    Facts of a step: `success` (at the goal now), `distance` to it, `place` (the cell, in reading order), `cost` (1 in a
    hazard).
    """

    def __init__(self, task: PointMaze, size: int, device: torch.device | str = "cpu") -> None:
        super().__init__(task, size, device)
        free = task.cells(".SGH")
        self.starts = self._cells((task.start == "map" and task.cells("S")) or free)
        self.goals = self._cells((task.goal == "map" and task.cells("G")) or free)
        letters = "".join(task.rows)
        self.wall = torch.tensor([letter == "#" for letter in letters], device=self.device)
        self.hazard = torch.tensor([letter == "H" for letter in letters], device=self.device)
        self.width, self.height = len(task.rows[0]), len(task.rows)

    def _cells(self, cells: list[int]) -> Tensor:
        return torch.tensor(cells, device=self.device)

    def start(self) -> State:
        """Anywhere within a drawn cell; at its middle where the map leaves no choice."""
        drawn = self.draw(6)
        places = []
        for cells, column in ((self.starts, 0), (self.goals, 3)):
            chosen = cells[(drawn[:, column] * len(cells)).long()]
            spread = 0.8 if len(cells) > 1 else 0.2
            places.append(self.task.centres(chosen) + spread * (drawn[:, column + 1 : column + 3] - 0.5))
        return {"place": places[0], "speed": torch.zeros_like(places[0]), "goal": places[1]}

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        p, place, speed = self.task, state["place"], state["speed"]
        action = action.clamp(-1, 1)
        if p.noise > 0:
            action = action + p.noise * normal(self.draw(4))
        if p.control == "velocity":
            move = p.step * action.clamp(-1, 1)
        else:
            speed = (speed + DT * (p.force * action - p.drag * speed)).clamp(-p.max_speed, p.max_speed)
            move = DT * speed
        place, blocked = self._slide(place, move)
        new = {"place": place, "speed": speed.masked_fill(blocked, 0.0), "goal": state["goal"]}
        success = p.reached(place, state["goal"])
        cell = p.cell_of(place)
        facts = {
            "success": success,
            "distance": (place - state["goal"]).norm(dim=1),
            "place": cell,
            "cost": self.hazard[cell].to(torch.float32),
        }
        return new, p.compute_reward(place, state["goal"]), p.compute_terminated(place, state["goal"]), facts

    def _slide(self, place: Tensor, move: Tensor) -> tuple[Tensor, Tensor]:
        """Move along x, then along y, up to the wall; the place, and along which axes something was in the way."""
        x, y = place[:, 0] + self.width / 2, place[:, 1] + self.height / 2
        row = y.floor().long() * self.width
        x, hit_x = _stop(x, move[:, 0], lambda column: self.wall[row + column])
        column = x.floor().long()
        y, hit_y = _stop(y, move[:, 1], lambda row: self.wall[row * self.width + column])
        return torch.stack((x - self.width / 2, y - self.height / 2), dim=1), torch.stack((hit_x, hit_y), dim=1)

    def observe(self, state: State) -> Tensor:
        place, goal = state["place"], state["goal"]
        own = (place,) if self.task.control == "velocity" else (place, state["speed"])
        return torch.cat((*own, place, goal), dim=1)


def _stop(at: Tensor, move: Tensor, wall: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """A move of less than a cell along one axis, up to the face of a wall; and whether there was one."""
    aim = at + move
    hit = wall(aim.floor().long())
    face = torch.where(move > 0, at.floor() + 1 - MARGIN, at.floor() + MARGIN)
    return torch.where(hit, face, aim), hit
