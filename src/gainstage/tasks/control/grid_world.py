"""A grid that is walked by four moves: walls, things to be eaten, traps, slippery ground, drawn as lines of letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.tasks.control.batched_env import Simulation, State, TaskEnv
from gainstage.types.spaces import Box, Discrete, Space

View = Literal["ones", "place", "picture", "number"]
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""left, down, right, up, as (x, y)."""

KNOWN = "#.SGxo*"
PRESETS = {
    "pellets": (
        "S....o...",
        ".o.....o.",
        "....x....",
        "..o...o..",
        "...x.x...",
        ".o.....o.",
        "....x..x.",
        ".o...o.x.",
        ".....ox.*",
    ),
    "slippery": (
        "S.......",
        "........",
        "...x....",
        ".....x..",
        "...x....",
        ".xx...x.",
        ".x..x.x.",
        "...x...G",
    ),
    "four_rooms": (
        "S....#.....",
        ".....#.....",
        "...........",
        ".....#.....",
        ".....#.....",
        "##.###.....",
        ".....###.##",
        ".....#.....",
        ".....#.....",
        "...........",
        ".....#....G",
    ),
    "u_maze": (
        "S........",
        "........#",
        "#######.#",
        "......#.#",
        "......#.#",
        "......#.#",
        "#######.#",
        "........#",
        "G........",
    ),
    "corridor": ("S.........G",),
}
"""Maps by name. `open` is a square without walls, from the upper left to the lower right corner."""
PLAIN: dict[str, Any] = {
    "rewards": {"G": 1.0, "x": -1.0, "o": 0.1, "*": 10.0},
    "ends": "G",
    "step_reward": 0.0,
    "slip": 0.0,
}
RULES: dict[str, dict[str, Any]] = {
    "pellets": {"rewards": {"o": 0.1, "*": 50.0, "x": -5.0}, "ends": "", "step_reward": -0.01},
    "slippery": {"rewards": {"G": 1.0}, "ends": "Gx", "slip": 2 / 3},
}
"""What a map is played by where it differs from `PLAIN`."""
COLOURS = {"#": (90, 90, 90), "G": (0, 200, 0), "x": (200, 0, 0), "o": (230, 200, 0), "*": (160, 0, 200)}
AGENT = (40, 120, 255)


@component("task")
@dataclass
class GridWorld(Simulation):
    """Walk a grid by four moves (left, down, right, up); a move into a wall or the border leaves the place as it is.

    Letters of a map: `#` wall, `.` free, `S` start (several: drawn), `G` goal, `x` trap, `o` pellet, `*` treasure;
    pellets and treasure are eaten once an episode. Any other letter can be used that `rewards`, `ends` or `eaten`
    names. Played plainly, `G` pays 1 and ends the episode, `x` -1, `o` 0.1, `*` 10; `pellets` (never ends; traps -5,
    far treasure 50, each step -0.01) and `slippery` (traps end the episode, moves slip) have rules of their own.

    Args:
        map: a name (open, pellets, slippery, four_rooms, u_maze, corridor), or lines of letters joined by `/`.
        size: cells a side of the map `open`.
        rewards: letter -> reward for entering such a cell; null = as the map is played. So for `ends`, `step_reward`
            and `slip`.
        ends: letters that end an episode.
        eaten: letters whose reward is paid once an episode; how many are left is seen.
        step_reward: added to every step.
        slip: chance that a move goes to one of the two sides instead, each as likely; Gymnasium's FrozenLake has 2/3.
        view: `ones` (a one at the cell, and one for each thing that is left), `place` (x and y in [0, 1], and the
            same), `picture` (colours), `number` (the cell in reading order; for maps without things to be eaten).
        max_steps: an episode is cut off after so many (null = never).
    """

    name: ClassVar[str] = "grid_world"

    map: str = "open"
    size: int = 8
    rewards: dict[str, float] | None = None
    ends: str | None = None
    eaten: str = "o*"
    step_reward: float | None = None
    slip: float | None = None
    view: View = "ones"
    max_steps: int | None = 100

    def __post_init__(self) -> None:
        rules = PLAIN | RULES.get(self.map, {})
        self.letter_rewards: dict[str, float] = rules["rewards"] if self.rewards is None else self.rewards
        self.last: str = rules["ends"] if self.ends is None else self.ends
        self.each: float = rules["step_reward"] if self.step_reward is None else self.step_reward
        self.sideways: float = rules["slip"] if self.slip is None else self.slip
        if not 0 <= self.sideways <= 1:
            raise ValueError(f"slip must lie in [0, 1], got {self.slip}")
        rows = self.rows
        if len({len(row) for row in rows}) != 1 or not rows[0]:
            raise ValueError(f"map: every line must have the same length, got {[len(row) for row in rows]}")
        letters = set("".join(rows))
        if unknown := letters - set(KNOWN) - set(self.letter_rewards) - set(self.last) - set(self.eaten):
            raise ValueError(
                f"map: no known letter or preset: {''.join(sorted(unknown))!r}; presets: open, {', '.join(PRESETS)}"
            )
        if "S" not in letters:
            raise ValueError("map: no start, write S somewhere")
        if self.view == "number" and self.things:
            raise ValueError("view: number does not tell what was eaten; use ones, or a map without things to be eaten")
        self.action_space = Discrete(4)
        self.observation_space = self._views()

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The map's lines."""
        if self.map == "open":
            if self.size < 2:
                raise ValueError(f"size must be at least 2, got {self.size}")
            inner = ["." * self.size] * (self.size - 2)
            return ("S" + "." * (self.size - 1), *inner, "." * (self.size - 1) + "G")
        return PRESETS.get(self.map) or tuple(self.map.split("/"))

    @property
    def letters(self) -> str:
        """All cells in reading order."""
        return "".join(self.rows)

    @cached_property
    def things(self) -> list[int]:
        """Cells with something to be eaten."""
        return [cell for cell, letter in enumerate(self.letters) if letter in self.eaten]

    def _views(self) -> Space:
        cells, width = len(self.letters), len(self.rows[0])
        if self.view == "number":
            return Discrete(cells)
        if self.view == "picture":
            return Box.of(0, 255, (len(self.rows), width, 3), dtype=torch.uint8)
        return Box.of(0, 1, ((cells if self.view == "ones" else 2) + len(self.things),))

    def neighbours(self) -> Tensor:
        """`Int64 "C 4"`: where each move leads from each cell."""
        width, height = len(self.rows[0]), len(self.rows)
        to = torch.empty(width * height, 4, dtype=torch.int64)
        for cell in range(width * height):
            for action, (dx, dy) in enumerate(MOVES):
                x, y = cell % width + dx, cell // width + dy
                inside = 0 <= x < width and 0 <= y < height and self.rows[y][x] != "#"
                to[cell, action] = y * width + x if inside else cell
        return to

    def worth(self, letters: Mapping[str, float]) -> Tensor:
        """`Float32 "C"`: a number for each cell by its letter, 0 where none is given."""
        return torch.tensor([letters.get(letter, 0.0) for letter in self.letters], dtype=torch.float32)

    def make(self, copies: int, device: torch.device | str = "cpu") -> GridWorldEnv:
        return GridWorldEnv(self, copies, device)


class GridWorldEnv(TaskEnv[GridWorld]):
    """State: `cell "B"` in reading order, and `left "B K"`, which of the things are there still.

    Facts of a step: `success` (entered a `G`), `place` (the cell), `eaten` (things eaten in this step), `trapped`
    (entered an `x`).
    """

    def __init__(self, task: GridWorld, size: int, device: torch.device | str = "cpu") -> None:
        super().__init__(task, size, device)
        on, letters, things = self.device, task.letters, task.things
        self.to = task.neighbours().to(on)
        self.worth = task.worth(task.letter_rewards).to(on)
        self.final = task.worth(dict.fromkeys(task.last, 1.0)).to(on, torch.bool)
        self.goal, self.trap = (task.worth({letter: 1.0}).to(on, torch.bool) for letter in "Gx")
        self.starts = torch.tensor([c for c, letter in enumerate(letters) if letter == "S"], device=on)
        self.thing = torch.full((len(letters),), len(things), dtype=torch.int64, device=on)
        self.thing[things] = torch.arange(len(things), device=on)
        self.width = len(task.rows[0])
        self.scale = torch.tensor([max(self.width - 1, 1), max(len(task.rows) - 1, 1)], device=on)
        self.things = torch.tensor(things, dtype=torch.int64, device=on)
        plain = [(COLOURS.get(letter, (0, 0, 0)) if letter not in task.eaten else (0, 0, 0)) for letter in letters]
        self.paint = torch.tensor(plain, dtype=torch.uint8, device=on)
        self.thing_paint = torch.tensor(
            [COLOURS.get(letters[cell], (255, 255, 255)) for cell in things], dtype=torch.uint8, device=on
        ).reshape(-1, 3)

    def start(self) -> State:
        cell = self.starts[self.pick(1, len(self.starts)).squeeze(1)]
        return {"cell": cell, "left": torch.ones(len(cell), len(self.things), dtype=torch.bool, device=self.device)}

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        p = self.task
        if p.sideways > 0:
            drawn, each_side = self.draw(1).squeeze(1), p.sideways / 2
            action = (action + (drawn < each_side).long() - (drawn > 1 - each_side).long()) % 4
        cell = self.to[state["cell"], action]
        thing = self.thing[cell]
        ever = torch.nn.functional.pad(state["left"], (0, 1), value=True)  # the last column: cells without a thing
        there = ever.gather(1, thing.unsqueeze(1)).squeeze(1)
        eats = there & (thing < len(self.things))
        left = ever.scatter(1, thing.unsqueeze(1), False)[:, :-1]
        reward = self.worth[cell] * there + p.each
        facts = {"success": self.goal[cell], "place": cell, "eaten": eats, "trapped": self.trap[cell]}
        return {"cell": cell, "left": left}, reward, self.final[cell], facts

    def observe(self, state: State) -> Tensor:
        cell, left, view = state["cell"], state["left"], self.task.view
        if view == "number":
            return cell
        if view == "picture":
            return self._picture(cell, left)
        if view == "place":
            place = torch.stack((cell % self.width, cell // self.width), dim=1) / self.scale
        else:
            place = torch.zeros(len(cell), len(self.worth), device=self.device).scatter_(1, cell.unsqueeze(1), 1.0)
        return torch.cat((place, left.to(torch.float32)), dim=1)

    def _picture(self, cell: Tensor, left: Tensor) -> Tensor:
        shown = self.paint.repeat(len(cell), 1, 1)
        shown[:, self.things] = self.thing_paint * left.unsqueeze(2)
        shown[torch.arange(len(cell), device=self.device), cell] = torch.tensor(
            AGENT, dtype=torch.uint8, device=self.device
        )
        return shown.reshape(len(cell), -1, self.width, 3)
