"""Worlds of rooms: a chain of rooms, a corridor with a locked room, a door with a key, four rooms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from gainstage.registry import component
from gainstage.tasks.control.room_layouts import BALL, Plan, door_key, draw_plans, four_rooms, key_corridor, multi_room
from gainstage.tasks.control.rooms import Rooms, View


@component("task")
@dataclass
class MultiRoom(Rooms):
    """Go through a chain of rooms, opening a door to each, to the goal in the last; a new plan every episode.

    As MiniGrid's MultiRoom: reward 1 - time_cost x steps / max_steps at the goal, nothing else.

    Args:
        view: `picture` (7 x 7 cells ahead, kind, colour and state of each), `ones` (the same as ones and zeros), or
            `place` (the agent's cell and direction as ones: tells no doors, so for one layout only).
        layouts: plans in the pool that episodes draw from.
        seed: of the pool.
        time_cost: share of the reward that is lost by the last step.
        max_steps: an episode is cut off after so many; null = 20 a room.
        rooms: of the chain.
        room_size: cells a side, walls included, of the largest room; the smallest has 4.
        size: cells a side of the grid.
    """

    name: ClassVar[str] = "multi_room"

    rooms: int = 4
    room_size: int = 5
    size: int = 19

    def __post_init__(self) -> None:
        if self.rooms < 1 or self.room_size < 4 or self.size < self.room_size:
            raise ValueError(
                "rooms must be at least 1, room_size at least 4 and size at least room_size, "
                f"got {self.rooms}, {self.room_size} and {self.size}"
            )
        super().__post_init__()

    def patience(self) -> int:
        return 20 * self.rooms

    def draw_plans(self) -> tuple[Plan, ...]:
        return _pool(multi_room, (self.rooms, self.room_size, self.size), self.layouts, self.seed)


@component("task")
@dataclass
class KeyCorridor(Rooms):
    """Find the key on the left of a corridor, open the locked room on its right, pick up the ball there.

    As MiniGrid's KeyCorridor: reward 1 - time_cost x steps / max_steps for the ball, nothing else.

    Args:
        view, layouts, seed, time_cost: as `multi_room` has them.
        max_steps: an episode is cut off after so many; null = 30 x room_size^2.
        room_size: cells a side, walls included.
        rows: of rooms.
    """

    name: ClassVar[str] = "key_corridor"
    PRIZE: ClassVar[int] = BALL

    room_size: int = 3
    rows: int = 1

    def __post_init__(self) -> None:
        if self.room_size < 3 or self.rows < 1:
            raise ValueError(f"room_size must be at least 3 and rows at least 1, got {self.room_size} and {self.rows}")
        super().__post_init__()

    def patience(self) -> int:
        return 30 * self.room_size**2

    def draw_plans(self) -> tuple[Plan, ...]:
        return _pool(key_corridor, (self.room_size, self.rows), self.layouts, self.seed)


@component("task")
@dataclass
class DoorKey(Rooms):
    """Take the key, open the door with it, walk to the goal behind it.

    As MiniGrid's DoorKey: reward 1 - time_cost x steps / max_steps at the goal, nothing else.

    Args:
        view, layouts, seed, time_cost: as `multi_room` has them.
        max_steps: an episode is cut off after so many; null = 10 x size^2.
        size: cells a side of the grid.
    """

    name: ClassVar[str] = "door_key"

    size: int = 6

    def __post_init__(self) -> None:
        if self.size < 5:
            raise ValueError(f"size must be at least 5, got {self.size}")
        super().__post_init__()

    def patience(self) -> int:
        return 10 * self.size**2

    def draw_plans(self) -> tuple[Plan, ...]:
        return _pool(door_key, (self.size,), self.layouts, self.seed)


@component("task")
@dataclass
class FourRooms(Rooms):
    """Four rooms with gaps in their walls: from one corner to the opposite one, seen as cell and direction.

    The plan is always the same (gaps in the middle of the walls) where `layouts` is 1, else start, goal and gaps are
    drawn. Actions: turn left, turn right, forward.

    Args:
        view, seed: as `multi_room` has them.
        layouts: plans in the pool; 1 = the fixed one.
        time_cost: share of the reward that is lost by the last step.
        max_steps: an episode is cut off after so many; null = 200.
        size: cells a side of the grid, odd.
    """

    name: ClassVar[str] = "four_rooms"
    ACTIONS: ClassVar[int] = 3

    view: View = "place"
    layouts: int = 1
    time_cost: float = 0.0
    size: int = 19

    def __post_init__(self) -> None:
        if self.size < 7 or self.size % 2 == 0:
            raise ValueError(f"size must be odd and at least 7, got {self.size}")
        super().__post_init__()

    def patience(self) -> int:
        return 200

    def draw_plans(self) -> tuple[Plan, ...]:
        if self.layouts == 1:
            return (four_rooms(None, self.size),)
        return _pool(four_rooms, (self.size,), self.layouts, self.seed)


@lru_cache(maxsize=16)
def _pool(draw: Callable[..., Any], settings: tuple[int, ...], count: int, seed: int) -> tuple[Plan, ...]:
    return tuple(draw_plans(lambda rng: draw(rng, *settings), count, seed))
