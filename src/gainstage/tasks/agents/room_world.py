"""The arithmetic of room-quest: a world as data, its moves, exact distances to the goal."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

ROOMS = ("den", "hall", "yard", "loft", "cave", "barn", "shed", "attic", "porch", "cellar", "tower", "garden")
ITEMS = ("egg", "cup", "hat", "pen", "map", "fan", "jar", "rug", "bell", "coin", "lamp", "rope")
COLOURS = ("red", "tan", "blue", "gray", "pink", "gold")
DIRECTIONS = {"n": (0, 1), "e": (1, 0), "s": (0, -1), "w": (-1, 0)}
OPPOSITE = {"n": "s", "s": "n", "e": "w", "w": "e"}


@dataclass(frozen=True)
class Thing:
    """A key, a box or an item, in a room or inside a box (`inside`: index of the box).

    `lock` of a key is the colour it opens, of a box the colour of the key it needs ("" = not locked).
    """

    name: str
    kind: str
    room: int
    inside: int = -1
    lock: str = ""


@dataclass(frozen=True)
class Door:
    """A way from one room to another; `lock`: the colour of the key it needs ("" = open)."""

    room: int
    direction: str
    to: int
    lock: str = ""


@dataclass(frozen=True)
class State:
    """Where the player is, what is held or opened (indices of things), which doors were unlocked (colours)."""

    room: int
    done: frozenset[int] = frozenset()
    unlocked: frozenset[str] = frozenset()


@dataclass(frozen=True)
class World:
    """A game. `goal` is the index of the thing to take (a key, an item) or to open (a box)."""

    rooms: tuple[str, ...]
    doors: tuple[Door, ...]
    things: tuple[Thing, ...]
    goal: int = 0

    def record(self) -> dict[str, Any]:
        """The world as plain JSON data."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> World:
        """The inverse of `record`."""
        doors = tuple(Door(**door) for door in record["doors"])
        return cls(tuple(record["rooms"]), doors, tuple(Thing(**thing) for thing in record["things"]), record["goal"])

    @property
    def start(self) -> State:
        return State(0)

    def reached(self, state: State) -> bool:
        """Whether the quest is done."""
        return self.goal in state.done

    def command(self, thing: int) -> str:
        """The command that takes or opens a thing."""
        return f"{'open' if self.things[thing].kind == 'box' else 'take'} {self.things[thing].name}"

    def present(self, state: State) -> list[int]:
        """Things that can be seen in the player's room: lying about, or inside an open box."""
        return [
            index
            for index, thing in enumerate(self.things)
            if thing.room == state.room
            and (thing.inside < 0 or thing.inside in state.done)
            and (thing.kind == "box" or index not in state.done)
        ]

    def exits(self, state: State) -> list[Door]:
        """Doors of the player's room."""
        return [door for door in self.doors if door.room == state.room]

    def holds_key(self, state: State, colour: str) -> bool:
        """Whether a key of that colour is held."""
        return any(self.things[index].kind == "key" and self.things[index].lock == colour for index in state.done)

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        """Every command that changes something, and the state it leads to."""
        for door in self.exits(state):
            if not door.lock or door.lock in state.unlocked:
                yield f"go {door.direction}", State(door.to, state.done, state.unlocked)
            elif self.holds_key(state, door.lock):
                yield f"open {door.lock} door", State(state.room, state.done, state.unlocked | {door.lock})
        for index in self.present(state):
            thing = self.things[index]
            if index in state.done or (thing.kind == "box" and thing.lock and not self.holds_key(state, thing.lock)):
                continue
            yield self.command(index), State(state.room, state.done | {index}, state.unlocked)


def milestones(world: World) -> State:
    """What every solution must have done: things to take or open, doors to unlock (the room says nothing).

    Rooms form a tree, a thing lies in one place and a lock has one key, so what the goal needs is needed always.
    """
    way = _ways(world)
    things: set[int] = set()
    unlocked: set[str] = set()
    open_questions = [world.goal]
    while open_questions:
        index = open_questions.pop()
        if index in things:
            continue
        things.add(index)
        thing = world.things[index]
        locks = {thing.lock} if thing.kind == "box" else set()
        locks |= way[thing.room]
        unlocked |= way[thing.room]
        open_questions += [thing.inside] if thing.inside >= 0 else []
        open_questions += [i for i, key in enumerate(world.things) if key.kind == "key" and key.lock in locks]
    return State(0, frozenset(things), frozenset(unlocked))


def _ways(world: World) -> dict[int, set[str]]:
    """Room -> locks on the way to it from the start."""
    found: dict[int, set[str]] = {0: set()}
    queue = deque([0])
    while queue:
        room = queue.popleft()
        for door in world.doors:
            if door.room == room and door.to not in found:
                found[door.to] = found[room] | ({door.lock} if door.lock else set())
                queue.append(door.to)
    return found


def essence(state: State, needed: State) -> State:
    """The state without what the goal does not need (`milestones`): the distance to the goal is the same."""
    return State(state.room, state.done & needed.done, state.unlocked & needed.unlocked)


@lru_cache(maxsize=4096)
def distances(world: World) -> Mapping[State, int]:
    """Commands to the goal from the `essence` of every state that can be reached; empty where the goal cannot be.

    Breadth first over all of them, then backwards from the goal. States grow like `rooms * 2**milestones`.
    """
    needed = milestones(world)
    before: dict[State, list[State]] = {}
    queue, seen, ends = deque([world.start]), {world.start}, []
    while queue:
        state = queue.popleft()
        if world.reached(state):
            ends.append(state)
            continue
        for _, moved in world.moves(state):
            after = essence(moved, needed)
            before.setdefault(after, []).append(state)
            if after not in seen:
                seen.add(after)
                queue.append(after)
    found = dict.fromkeys(ends, 0)
    queue = deque(ends)
    while queue:
        state = queue.popleft()
        for earlier in before.get(state, ()):
            if earlier not in found:
                found[earlier] = found[state] + 1
                queue.append(earlier)
    return found


def draw_world(rng: random.Random, rooms: int, objects: int, locked_doors: int) -> World:
    """A random layout: rooms in a random tree on a grid, keys, boxes and items. It has no goal yet.

    The player starts in room 0. Every locked door takes one object for its key; of the rest, some become a locked
    box with its key, some an open box, the others items.
    """
    doors = _draw_doors(rng, rooms)
    colours = rng.sample(COLOURS, len(COLOURS))
    things = []
    for index in rng.sample(range(rooms - 1), locked_doors):
        lock = colours.pop()
        for twin in (2 * index, 2 * index + 1):
            doors[twin] = Door(doors[twin].room, doors[twin].direction, doors[twin].to, lock)
        things.append(Thing(f"{lock} key", "key", rng.randrange(rooms), lock=lock))
    items = rng.sample(ITEMS, len(ITEMS))
    while (left := objects - len(things)) > 0:
        shape = rng.random()
        if left >= 2 and shape < 0.4 and colours:
            lock = colours.pop()
            things.append(Thing(f"{lock} key", "key", rng.randrange(rooms), lock=lock))
            things.append(Thing(f"{lock} box", "box", rng.randrange(rooms), lock=lock))
        elif shape < 0.6 and colours:
            things.append(Thing(f"{colours.pop()} box", "box", rng.randrange(rooms)))
        else:
            things.append(Thing(items.pop(), "item", rng.randrange(rooms)))
    return World(tuple(rng.sample(ROOMS, rooms)), tuple(doors), tuple(_put_away(rng, things)))


def _put_away(rng: random.Random, things: list[Thing]) -> Iterator[Thing]:
    """Some keys and items go into a box; never a key into the box it opens."""
    boxes = [index for index, thing in enumerate(things) if thing.kind == "box"]
    for thing in things:
        fitting = [index for index in boxes if not (thing.kind == "key" and things[index].lock == thing.lock)]
        if thing.kind != "box" and fitting and rng.random() < 0.5:
            box = rng.choice(fitting)
            yield Thing(thing.name, thing.kind, things[box].room, box, thing.lock)
        else:
            yield thing


def _draw_doors(rng: random.Random, rooms: int) -> list[Door]:
    """Both directions of every way, next to each other in the list."""
    places, doors = {(0, 0): 0}, []
    while len(places) < rooms:
        at = rng.choice(list(places))
        direction, (dx, dy) = rng.choice(list(DIRECTIONS.items()))
        near = (at[0] + dx, at[1] + dy)
        if near in places:
            continue
        places[near] = len(places)
        doors.append(Door(places[at], direction, places[near]))
        doors.append(Door(places[near], OPPOSITE[direction], places[at]))
    return doors
