"""Moves through a small maze of text."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from gainstage.registry import component
from gainstage.tasks.text.generated import GeneratedTask, other
from gainstage.types.records import Problem, Verdict

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
Cell = tuple[int, int]


def step(cell: Cell, move: str) -> Cell:
    """The cell that a move leads to, inside the maze or not."""
    return cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]


def neighbours(grid: tuple[str, ...], cell: Cell) -> Iterator[tuple[str, Cell]]:
    """Every legal move and where it leads."""
    for move in MOVES:
        row, column = step(cell, move)
        if 0 <= row < len(grid) and 0 <= column < len(grid[0]) and grid[row][column] != "#":
            yield move, (row, column)


def distances(grid: tuple[str, ...], goal: Cell) -> dict[Cell, int]:
    """Moves to the goal from every cell that can reach it (breadth first)."""
    found, queue = {goal: 0}, deque([goal])
    while queue:
        cell = queue.popleft()
        for _, near in neighbours(grid, cell):
            if near not in found:
                found[near] = found[cell] + 1
                queue.append(near)
    return found


def locate(grid: tuple[str, ...], mark: str) -> Cell:
    """The cell that carries a mark."""
    return next((row, line.index(mark)) for row, line in enumerate(grid) if mark in line)


@component("task")
@dataclass(frozen=True, kw_only=True)
class Maze(GeneratedTask):
    """Walk from S to G by `U D L R`: `S.#/..#/#.G:` is answered by `DRDR`. Any legal walk that ends on G counts.

    Args:
        sizes: rows and columns of the square maze, one level each, in equal shares; larger is harder.
        walls: share of the cells that are walls; more make longer ways round.
    """

    name: ClassVar[str] = "maze"
    capabilities: ClassVar[frozenset[str]] = frozenset({"check", "demonstrations", "preferences"})

    sizes: tuple[int, ...] = (3, 4)
    walls: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sizes or min(self.sizes) < 2 or max(self.sizes) > 30:
            raise ValueError(f"sizes must lie in 2..30, got {self.sizes}")
        if not 0 <= self.walls <= 0.5:
            raise ValueError(f"walls must lie in [0, 0.5], got {self.walls}")

    @property
    def max_new(self) -> int:
        return self._longest(max(self.sizes)) + 1

    @staticmethod
    def _longest(size: int) -> int:
        return 3 * size

    def draw(self, rng: random.Random, index: int) -> Problem:
        size = self.sizes[index % len(self.sizes)]
        cells = [(row, column) for row in range(size) for column in range(size)]
        while True:
            order = rng.sample(cells, size * size)
            start, goal, walls = order[0], order[1], set(order[2 : 2 + round(self.walls * size * size)])
            marks = {start: "S", goal: "G", **dict.fromkeys(walls, "#")}
            grid = tuple("".join(marks.get((row, column), ".") for column in range(size)) for row in range(size))
            far = distances(grid, goal).get(start, 0)
            if 2 <= far <= self._longest(size):
                text = "/".join(grid)
                return self.problem(text, f"{text}:", None, float(far), grid=grid)

    def demonstrate(self, problem: Problem, rng: random.Random, noise: float = 0.0) -> str:
        grid = problem.meta["grid"]
        far = distances(grid, locate(grid, "G"))
        cell, moves = locate(grid, "S"), ""
        while far[cell] > 0:
            move, cell = rng.choice([(m, near) for m, near in neighbours(grid, cell) if far[near] < far[cell]])
            moves += other(rng, tuple(MOVES), move) if rng.random() < noise else move
        return moves

    def check(self, problem: Problem, output: str) -> Verdict:
        """1 where every move is legal and the last one ends on G; `format` is 1 for a text of moves alone."""
        grid, moves = problem.meta["grid"], output.strip()
        if not moves or set(moves) - set(MOVES):
            return Verdict(0.0, {"format": 0.0}, "not a list of the moves U D L R")
        if len(moves) > len(grid) ** 2:
            return Verdict(0.0, {"format": 1.0}, f"more than {len(grid) ** 2} moves")
        cell, goal = locate(grid, "S"), locate(grid, "G")
        for count, move in enumerate(moves, 1):
            legal = dict(neighbours(grid, cell))
            if move not in legal:
                return Verdict(0.0, {"format": 1.0}, f"move {count} ({move}) is blocked")
            cell = legal[move]
        return Verdict(float(cell == goal), {"format": 1.0}, "right" if cell == goal else "does not end on G")
