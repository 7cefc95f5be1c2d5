"""Pictures of environments, for films: own ones are drawn here, Gymnasium's draw themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gainstage.ops.extras import require

PAPER, INK, ACCENT, GOOD, BAD = (250, 250, 248), (50, 55, 65), (40, 110, 220), (60, 160, 90), (200, 70, 60)
Point = tuple[float, float]


class Canvas:
    """A square picture over coordinates: x to the right, y upwards.

    Args:
        left, right: x of the edges.
        middle: y of the centre; the scale is the same along both axes.
        size: pixels a side.
    """

    def __init__(self, left: float, right: float, middle: float = 0.0, size: int = 320) -> None:
        require("PIL", extra="control")
        from PIL import Image, ImageDraw

        self.left, self.middle, self.size = left, middle, size
        self.scale = size / (right - left)
        self.image = Image.new("RGB", (size, size), PAPER)
        self.pen = ImageDraw.Draw(self.image)

    def place(self, point: Point) -> Point:
        return (point[0] - self.left) * self.scale, self.size / 2 - (point[1] - self.middle) * self.scale

    def line(self, points: list[Point], colour: Any = INK, width: float = 0.03) -> None:
        self.pen.line([self.place(p) for p in points], fill=colour, width=max(1, round(width * self.scale)))

    def disc(self, centre: Point, radius: float, colour: Any = ACCENT) -> None:
        x, y = self.place(centre)
        r = max(1.0, radius * self.scale)
        self.pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)

    def box(self, lower: Point, upper: Point, colour: Any = INK) -> None:
        (x0, y1), (x1, y0) = self.place(lower), self.place(upper)
        self.pen.rectangle((x0, y0, x1, y1), fill=colour)

    def pixels(self) -> np.ndarray:
        return np.asarray(self.image)


def picture(env: Any, copy: int = 0) -> np.ndarray:
    """What a copy looks like now, `UInt8 "H W 3"`.

    Raises:
        ValueError: the environment draws nothing and is none of those that are drawn here.
    """
    if hasattr(env, "render"):
        return np.asarray(env.render(copy))
    draw = DRAWN.get(type(env).__name__)
    if draw is None:
        name = getattr(getattr(env, "task", None), "name", type(env).__name__)
        raise ValueError(f"{name} cannot be drawn; give its class a method `render(copy) -> UInt8 H W 3`")
    return draw(env, copy).pixels()


def _motion(env: Any, copy: int) -> list[float]:
    return [float(x) for x in env.state["motion"][copy].tolist()]


def _swing(start: Point, angle: float, length: float) -> Point:
    """The end of a rod; angle 0 hangs down."""
    return start[0] + length * math.sin(angle), start[1] - length * math.cos(angle)


def cart_pole(env: Any, copy: int) -> Canvas:
    x, _, theta, _ = _motion(env, copy)
    canvas = Canvas(-2.6, 2.6, middle=0.6)
    canvas.line([(-2.6, 0.0), (2.6, 0.0)], width=0.02)
    canvas.box((x - 0.25, -0.12), (x + 0.25, 0.12))
    canvas.line([(x, 0.0), _swing((x, 0.0), math.pi - theta, 2 * env.task.length)], ACCENT, 0.08)
    return canvas


def pendulum(env: Any, copy: int) -> Canvas:
    theta, _ = _motion(env, copy)
    canvas = Canvas(-1.4, 1.4)
    end = _swing((0.0, 0.0), math.pi - theta, env.task.length)
    canvas.line([(0.0, 0.0), end], ACCENT, 0.1)
    canvas.disc((0.0, 0.0), 0.06, INK)
    return canvas


def acrobot(env: Any, copy: int) -> Canvas:
    first, second, _, _ = _motion(env, copy)
    canvas = Canvas(-2.4, 2.4)
    canvas.line([(-2.4, 1.0), (2.4, 1.0)], GOOD, 0.02)
    knee = _swing((0.0, 0.0), first, env.task.length_1)
    foot = _swing(knee, first + second, env.task.length_1)
    canvas.line([(0.0, 0.0), knee], INK, 0.1)
    canvas.line([knee, foot], ACCENT, 0.1)
    return canvas


def mountain_car(env: Any, copy: int) -> Canvas:
    position, _ = _motion(env, copy)

    def height(x: float) -> float:
        return 0.45 * math.sin(3 * x)

    canvas = Canvas(-1.3, 0.7, middle=0.15)
    track = [(-1.2 + 1.8 * k / 80, height(-1.2 + 1.8 * k / 80)) for k in range(81)]
    canvas.line(track, INK, 0.01)
    canvas.line([(0.5, height(0.5)), (0.5, height(0.5) + 0.2)], GOOD, 0.02)
    canvas.disc((position, height(position) + 0.04), 0.045)
    return canvas


def point_maze(env: Any, copy: int) -> Canvas:
    half = max(env.width, env.height) / 2
    canvas = Canvas(-half, half)
    for cell, letter in enumerate("".join(env.task.rows)):
        x, y = cell % env.width - env.width / 2, env.height / 2 - cell // env.width
        if letter in "#H":
            canvas.box((x, y - 1), (x + 1, y), INK if letter == "#" else (240, 200, 190))
    goal, place = env.state["goal"][copy].tolist(), env.state["place"][copy].tolist()
    canvas.disc((goal[0], -goal[1]), env.task.tolerance, (190, 230, 200))
    canvas.disc((place[0], -place[1]), 0.18)
    return canvas


def reach(env: Any, copy: int) -> Canvas:
    goal, place = env.state["goal"][copy].tolist(), env.state["place"][copy].tolist()
    canvas = Canvas(-1.3, 1.3)
    canvas.disc((goal[0], goal[1]), 0.08, GOOD)
    canvas.disc((place[0], place[1]), 0.05)
    return canvas


def grid_world(env: Any, copy: int) -> Canvas:
    height, width = len(env.task.rows), env.width
    side = max(height, width)
    canvas = Canvas(0, side, middle=side / 2)
    letters = env.task.letters
    shown = {
        int(c): bool(there) for c, there in zip(env.things.tolist(), env.state["left"][copy].tolist(), strict=True)
    }
    colours = {"#": INK, "G": GOOD, "x": BAD, "o": (230, 200, 0), "*": (160, 0, 200)}
    for cell, letter in enumerate(letters):
        x, y = cell % width, side - 1 - cell // width
        if letter in colours and shown.get(cell, True):
            canvas.box((x + 0.05, y + 0.05), (x + 0.95, y + 0.95), colours[letter])
    here = int(env.state["cell"][copy])
    canvas.disc((here % width + 0.5, side - 0.5 - here // width), 0.35)
    return canvas


DRAWN: dict[str, Callable[[Any, int], Canvas]] = {
    "CartPoleEnv": cart_pole, "PendulumEnv": pendulum, "AcrobotEnv": acrobot, "MountainCarEnv": mountain_car,
    "MountainCarContinuousEnv": mountain_car, "PointMazeEnv": point_maze, "ReachEnv": reach,
    "GridWorldEnv": grid_world,
}  # fmt: skip
"""Class of an environment -> who draws it."""
