"""Floor plans with doors, keys and goals, drawn by a seeded generator: what the worlds of `rooms.py` start from.

The families are those of MiniGrid (Chevalier-Boisvert et al. 2023, "Minigrid & Miniworld", arXiv 2306.13831), with
its numbers for kinds, colours and states of doors; the plans are drawn by rules of our own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

UNSEEN, EMPTY, WALL, FLOOR, DOOR, KEY, BALL, BOX, GOAL, LAVA, AGENT = range(11)
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
GREEN, YELLOW, GREY = 1, 4, 5
OPEN, CLOSED, LOCKED = range(3)
STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""What a direction adds to (x, y): right, down, left, up."""

TRIES = 1000
Cell = tuple[int, int]


@dataclass
class Plan:
    """One floor plan. `cells[y, x]` is (kind, colour, state), `rooms[y, x]` the number of its room or -1."""

    cells: np.ndarray
    rooms: np.ndarray
    start: Cell = (0, 0)
    direction: int | None = None
    """None: drawn anew for every episode."""
    doors: list[Cell] = field(default_factory=list)

    @classmethod
    def empty(cls, width: int, height: int) -> Plan:
        cells = np.zeros((height, width, 3), dtype=np.uint8)
        cells[..., 0] = EMPTY
        return cls(cells, np.full((height, width), -1, dtype=np.int64))

    def put(self, place: Cell, kind: int, colour: int = 0, state: int = 0) -> None:
        self.cells[place[1], place[0]] = (kind, colour, state)
        if kind == DOOR:
            self.doors.append(place)

    def wall_in(self, left: int, top: int, right: int, bottom: int, room: int = -1) -> None:
        """Walls around the rectangle whose outer corners are these; what lies inside belongs to `room`."""
        for x in range(left, right + 1):
            self.put((x, top), WALL, GREY)
            self.put((x, bottom), WALL, GREY)
        for y in range(top, bottom + 1):
            self.put((left, y), WALL, GREY)
            self.put((right, y), WALL, GREY)
        self.rooms[top + 1 : bottom, left + 1 : right] = room

    def free(self, room: int) -> list[Cell]:
        """Empty cells of a room, in reading order."""
        ys, xs = np.nonzero((self.rooms == room) & (self.cells[..., 0] == EMPTY))
        return [(int(x), int(y)) for x, y in zip(xs, ys, strict=True)]

    def place(self, rng: random.Random, room: int, kind: int, colour: int = 0) -> Cell:
        """Put a thing into an empty cell of a room, the start excepted."""
        chosen = rng.choice([cell for cell in self.free(room) if cell != self.start])
        self.put(chosen, kind, colour)
        return chosen


def multi_room(rng: random.Random, rooms: int, room_size: int, size: int) -> Plan:
    """A chain of rooms of 4 to `room_size` cells a side (walls included), a closed door between each and the next."""
    for _ in range(TRIES):
        chain = _chain(rng, rooms, room_size, size)
        if chain:
            break
    else:
        raise ValueError(
            f"multi_room: {rooms} rooms of up to {room_size} cells do not fit a grid of {size}; raise size"
        )
    plan = Plan.empty(size, size)
    for number, (box, _) in enumerate(chain):
        plan.wall_in(*box, room=number)
    before = None
    for number, (_, door) in enumerate(chain):
        if door is not None:
            colour = rng.choice([c for c in range(len(COLOURS)) if c != before])
            plan.put(door, DOOR, colour, CLOSED)
            plan.rooms[door[1], door[0]] = number
            before = colour
    plan.start = rng.choice(plan.free(0))
    plan.place(rng, rooms - 1, GOAL, GREEN)
    return plan


Box = tuple[int, int, int, int]


def _chain(rng: random.Random, rooms: int, room_size: int, size: int) -> list[tuple[Box, Cell | None]]:
    """Rectangles (left, top, right, bottom) with the door into each; empty where one found no place."""
    wide, high = rng.randint(4, room_size), rng.randint(4, room_size)
    if max(wide, high) > size:
        return []
    left, top = rng.randint(0, size - wide), rng.randint(0, size - high)
    chain: list[tuple[Box, Cell | None]] = [((left, top, left + wide - 1, top + high - 1), None)]
    for _ in range(rooms - 1):
        for _ in range(12):
            door, box = _next_room(rng, chain[-1][0], room_size)
            inside = box[0] >= 0 and box[1] >= 0 and box[2] < size and box[3] < size
            if inside and not any(_overlap(box, other) for other, _ in chain):
                chain.append((box, door))
                break
        else:
            return []
    return chain


def _next_room(rng: random.Random, box: Box, room_size: int) -> tuple[Cell, Box]:
    """A door in a wall of `box` and a room behind it that shares this wall."""
    left, top, right, bottom = box
    wide, high = rng.randint(4, room_size), rng.randint(4, room_size)
    side = rng.randrange(4)
    if side % 2 == 0:  # right or left
        door = (right if side == 0 else left, rng.randint(top + 1, bottom - 1))
        new_left = door[0] if side == 0 else door[0] - wide + 1
        new_top = door[1] - rng.randint(1, high - 2)
    else:
        door = (rng.randint(left + 1, right - 1), bottom if side == 1 else top)
        new_left = door[0] - rng.randint(1, wide - 2)
        new_top = door[1] if side == 1 else door[1] - high + 1
    return door, (new_left, new_top, new_left + wide - 1, new_top + high - 1)


def _overlap(a: Box, b: Box) -> bool:
    """Whether two rooms share more than a wall."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def key_corridor(rng: random.Random, room_size: int, rows: int) -> Plan:
    """A corridor with rooms on both sides: on the left one holds a key, on the right a locked one holds a ball.

    Rooms are numbered by rows, three a row; the middle ones are the corridor. Further doors, closed but not locked,
    join the rooms so that all are within reach.
    """
    pitch = room_size - 1
    plan = Plan.empty(3 * pitch + 1, rows * pitch + 1)
    for row in range(rows):
        for column in range(3):
            box = (column * pitch, row * pitch, (column + 1) * pitch, (row + 1) * pitch)
            plan.wall_in(*box, room=3 * row + column)
    for row in range(1, rows):
        for x in range(pitch + 1, 2 * pitch):
            plan.put((x, row * pitch), EMPTY)
            plan.rooms[row * pitch, x] = 3 * row + 1
    secret = rng.randrange(rows)
    colour = rng.randrange(len(COLOURS))
    plan.put((2 * pitch, secret * pitch + rng.randint(1, pitch - 1)), DOOR, colour, LOCKED)
    for place in _joining_doors(rng, rows, pitch, secret):
        plan.put(place, DOOR, rng.randrange(len(COLOURS)), CLOSED)
    plan.place(rng, 3 * secret + 2, BALL, rng.randrange(len(COLOURS)))
    plan.place(rng, 3 * rng.randrange(rows), KEY, colour)
    plan.start = rng.choice(plan.free(3 * (rows // 2) + 1))
    return plan


def _joining_doors(rng: random.Random, rows: int, pitch: int, secret: int) -> list[Cell]:
    """Doors that join the side rooms to the corridor or to each other, the locked room left alone."""
    sides = [(row, column) for row in range(rows) for column in (0, 2) if (row, column) != (secret, 2)]
    joined = {(row, 1) for row in range(rows)}
    doors = []
    while missing := [room for room in sides if room not in joined]:
        row, column = rng.choice(missing)
        ways = [((row, 1), (pitch if column == 0 else 2 * pitch, row * pitch + rng.randint(1, pitch - 1)))]
        ways += [
            ((other, column), (column * pitch + rng.randint(1, pitch - 1), max(row, other) * pitch))
            for other in (row - 1, row + 1)
        ]
        ways = [(room, place) for room, place in ways if room in joined]
        doors.append(rng.choice(ways)[1])
        joined.add((row, column))
    return doors


def door_key(rng: random.Random, size: int) -> Plan:
    """A wall with a locked door between the start with its key and the goal in the lower right corner."""
    plan = Plan.empty(size, size)
    split = rng.randint(2, size - 3)
    plan.wall_in(0, 0, split, size - 1, room=0)
    plan.wall_in(split, 0, size - 1, size - 1, room=1)
    plan.put((size - 2, size - 2), GOAL, GREEN)
    plan.put((split, rng.randint(1, size - 3)), DOOR, YELLOW, LOCKED)
    plan.start = rng.choice(plan.free(0))
    plan.place(rng, 0, KEY, YELLOW)
    return plan


def four_rooms(rng: random.Random | None, size: int) -> Plan:
    """Two by two rooms with gaps of one cell in the walls; without a generator the gaps are in the middle of them."""
    plan = Plan.empty(size, size)
    middle = size // 2
    for number, (left, top) in enumerate(((0, 0), (middle, 0), (0, middle), (middle, middle))):
        plan.wall_in(left, top, size - 1 if left else middle, size - 1 if top else middle, room=number)
    spans = ((1, middle - 1), (middle + 1, size - 2))
    for low, high in spans:
        for across in (True, False):
            at = rng.randint(low, high) if rng else (low + high) // 2
            plan.put((middle, at) if across else (at, middle), EMPTY)
    if rng is None:
        plan.start, plan.direction = (1, 1), 0
        plan.put((size - 2, size - 2), GOAL, GREEN)
        return plan
    plan.start = rng.choice(plan.free(rng.randrange(4)))
    plan.place(rng, rng.randrange(4), GOAL, GREEN)
    return plan


def draw_plans(draw: Callable[[random.Random], Plan], count: int, seed: int) -> Sequence[Plan]:
    """`count` plans, the n-th from a generator of its own."""
    return [draw(random.Random(f"{seed}/{index}")) for index in range(count)]
