"""room-quest: a text world with knobs for rooms, objects and quest length, and an exact distance to its goal."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from gainstage.registry import component
from gainstage.tasks.agents.room_world import (
    COLOURS,
    ITEMS,
    ROOMS,
    State,
    World,
    distances,
    draw_world,
    essence,
    milestones,
)
from gainstage.tasks.text.generated import GeneratedTask
from gainstage.types import Author, EnvStep, Problem, Verdict

Density = Literal["single", "sub_goal", "turn"]
Segment = tuple[Author, str]

ATTEMPTS = 1000
"""Layouts that are tried for a quest of the wanted length."""


@dataclass(frozen=True)
class GridSpec:
    """A cell of the grid of settings: rooms, objects, quest length."""

    w: int
    o: int
    q: int

    @property
    def name(self) -> str:
        return f"w{self.w}-o{self.o}-q{self.q}"


class QuestEnv:
    """One game. Commands: `go n|e|s|w`, `take THING`, `open THING`; anything else gets an error text and goes on.

    The rewards of a game sum to 1 where the quest is done, whatever the density: `single` pays at the end; `sub_goal`
    pays equal shares for the things every solution must take or open; `turn` pays every new least distance to the
    goal, as a share of the distance at the start. `info["distance"]` is the exact number of commands left.
    """

    def __init__(self, world: World, limit: int, density: Density = "single") -> None:
        self.world, self.limit, self.density = world, limit, density
        self.far, self.needed = distances(world), milestones(world)
        self.state = world.start
        self.total = self.least = self.distance(world.start)
        self.turns = 0
        self.invalid = 0

    def start(self) -> str:
        return f"goal: {self.world.command(self.world.goal)}\n{self.look()}>"

    def distance(self, state: State) -> int:
        """Commands of the shortest way to the goal."""
        return self.far[essence(state, self.needed)]

    def look(self) -> str:
        """The room, what is in it, the ways out: `den: red key, blue box; n, e red door`."""
        things = ", ".join(self.world.things[index].name for index in self.world.present(self.state)) or "-"
        ways = ", ".join(
            door.direction + (f" {door.lock} door" if door.lock and door.lock not in self.state.unlocked else "")
            for door in self.world.exits(self.state)
        )
        return f"{self.world.rooms[self.state.room]}: {things}; {ways or '-'}\n"

    def step(self, text: str) -> EnvStep:
        self.turns += 1
        before = self.state
        command = " ".join(text.strip().lower().split())
        after = dict(self.world.moves(before)).get(command)
        if after is None:
            self.invalid += 1
            told, known = self._error(command)
        else:
            told, known = self._move(command, after), True
        reward = self._reward(before)
        success = self.world.reached(self.state)
        cut = not success and self.turns >= self.limit
        info = {
            "distance": self.distance(self.state),
            "invalid": after is None,
            "malformed": not known,
            "success": success,
        }
        if success:
            return EnvStep("done\n", reward, True, info)
        return EnvStep(f"{told}>", reward, cut, {**info, "truncated": True} if cut else info)

    @property
    def parts(self) -> dict[str, float | None]:
        """Success, share of the way that was done, share of commands without effect."""
        return {
            "success": float(self.world.reached(self.state)),
            "progress": 1 - self.least / self.total,
            "invalid_commands": self.invalid / max(self.turns, 1),
        }

    def _move(self, command: str, after: State) -> str:
        new = after.done - self.state.done
        moved, self.state = after.room != self.state.room, after
        if moved:
            return self.look()
        if command.startswith("open") and new:
            (box,) = new
            inside = [
                self.world.things[i].name for i in self.world.present(after) if self.world.things[i].inside == box
            ]
            return f"ok: {', '.join(inside) or '-'}\n"
        return "ok\n"

    def _reward(self, before: State) -> float:
        gained = max(self.least - self.distance(self.state), 0)
        self.least -= gained
        if self.density == "turn":
            return gained / self.total
        if self.density == "sub_goal":
            now, then = essence(self.state, self.needed), essence(before, self.needed)
            new = len(now.done) - len(then.done) + len(now.unlocked) - len(then.unlocked)
            return new / (len(self.needed.done) + len(self.needed.unlocked))
        return float(self.world.reached(self.state))

    def _error(self, command: str) -> tuple[str, bool]:
        """What is said to a command without effect, and whether it was a command at all."""
        verb, _, what = command.partition(" ")
        if verb not in ("go", "take", "open") or not what:
            return "what? go, take, open\n", False
        if verb == "go":
            locked = any(door.direction == what for door in self.world.exits(self.state))
            return ("no: locked\n" if locked else "no: no such way\n"), True
        here = [self.world.things[index] for index in self.world.present(self.state)]
        if verb == "open" and any(thing.name == what and thing.kind == "box" for thing in here):
            opened = any(self.world.things[i].name == what for i in self.state.done)
            return ("no: it is open\n" if opened else "no: it is locked\n"), True
        if verb == "open" and any(f"{door.lock} door" == what for door in self.world.exits(self.state) if door.lock):
            return ("no: it is open\n" if what.split()[0] in self.state.unlocked else "no: it is locked\n"), True
        if any(thing.name == what for thing in here):
            return f"no: cannot {verb} it\n", True
        return "no: not here\n", True


@component("task")
@dataclass(frozen=True, kw_only=True)
class RoomQuest(GeneratedTask):
    """Find and take or open something in a few rooms: `goal: take egg`, then one command a turn.

    Rooms form a random tree; boxes may be locked and hold things, keys fit by colour. The shortest solution of every
    game has exactly `quest` commands (breadth first over all states). After `budget` times that many turns the game
    is cut off.

    Args:
        rooms: of the world; more make longer ways and transfer less.
        objects: keys, boxes and items together; more mean more to overlook.
        quest: commands of the shortest solution; success falls with it fastest.
        locked_doors: ways that need a key; each takes one of the objects.
        density: what is paid when: `single`, `sub_goal` or `turn` (see `QuestEnv`).
        budget: turns, as a multiple of `quest`; 1 makes every mistake fatal.
    """

    name: ClassVar[str] = "room_quest"
    capabilities: ClassVar[frozenset[str]] = frozenset({"env", "demonstrations"})
    turn_stop: ClassVar[tuple[str, ...]] = ("\n",)

    rooms: int = 2
    objects: int = 3
    quest: int = 4
    locked_doors: int = 0
    density: Density = "single"
    budget: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.rooms <= len(ROOMS):
            raise ValueError(f"rooms must lie in 1..{len(ROOMS)}, got {self.rooms}")
        if not 1 <= self.objects <= len(ITEMS):
            raise ValueError(f"objects must lie in 1..{len(ITEMS)}, got {self.objects}")
        if not 0 <= self.locked_doors <= min(self.rooms - 1, self.objects, len(COLOURS)):
            raise ValueError(f"locked_doors must lie in 0..{min(self.rooms - 1, self.objects, len(COLOURS))} here")
        if self.quest < 1:
            raise ValueError(f"quest must be at least 1, got {self.quest}")
        if self.budget < 1:
            raise ValueError(f"budget must be at least 1, or no game could be won; got {self.budget}")

    @property
    def spec(self) -> GridSpec:
        """The cell of the grid these settings belong to."""
        return GridSpec(self.rooms, self.objects, self.quest)

    @property
    def max_new(self) -> int:
        return max(len(f"take {colour} door\n") for colour in COLOURS) + 1

    @property
    def max_turns(self) -> int:
        """Limit of turns of an episode."""
        return math.ceil(self.budget * self.quest)

    def draw(self, rng: random.Random, index: int) -> Problem:
        for _ in range(ATTEMPTS):
            layout = draw_world(rng, self.rooms, self.objects, self.locked_doors)
            games = [dataclasses.replace(layout, goal=index) for index in range(self.objects)]
            fitting = [game for game in games if self._fits(game)]
            items = [game for game in fitting if game.things[game.goal].kind == "item"]
            if fitting:
                return self._problem(rng.choice(items or fitting))
        raise ValueError(
            f"room_quest: no game of quest={self.quest} among {ATTEMPTS} with rooms={self.rooms}, "
            f"objects={self.objects}, locked_doors={self.locked_doors}: ask for a shorter quest, or for more rooms or "
            "objects"
        )

    def _fits(self, world: World) -> bool:
        needed = milestones(world)
        count = len(needed.done) + len(
            needed.unlocked
        )  # each costs a command, and at most rooms - 1 moves to get there
        return count <= self.quest <= count * self.rooms and distances(world).get(world.start) == self.quest

    def open(self, problem: Problem) -> QuestEnv:
        """A fresh game."""
        return QuestEnv(World.from_record(problem.meta["world"]), self.max_turns, self.density)

    def segments(self, problem: Problem, rng: random.Random, noise: float = 0.0) -> list[Segment]:
        """A played game behind the prompt: a shortest solution from wherever it stands; with probability `noise` a
        command is any other that could be written here, sensible or not."""
        env, segments, done = self.open(problem), [], False
        while not done:
            command = rng.choice(self._slips(env)) if rng.random() < noise else self._best(env, rng)
            step = env.step(command)
            segments.append((Author.POLICY, f"{command}\n"))
            done = step.done
            if not done:
                segments.append((Author.ENV, step.observation))
        return segments

    def demonstrate(self, problem: Problem, rng: random.Random, noise: float = 0.0) -> str:
        """The played game as one text, what the world says included."""
        return "".join(text for _, text in self.segments(problem, rng, noise))

    def solution(self, problem: Problem) -> list[str]:
        """A shortest list of commands."""
        env, commands = self.open(problem), []
        while not env.world.reached(env.state):
            commands.append(self._best(env, None))
            env.step(commands[-1])
        return commands

    def check(self, problem: Problem, output: str) -> Verdict:
        """Plays the commands of a whole game, one a line: 1 where they reach the goal within the limit of turns."""
        env = self.open(problem)
        for line in output.strip().split("\n")[: self.max_turns]:
            if env.step(line).done:
                break
        return Verdict(env.parts["success"], {"progress": env.parts["progress"] or 0.0})

    def _problem(self, world: World) -> Problem:
        env = QuestEnv(world, self.max_turns)
        meta = {"world": world.record(), "optimal": self.quest, "spec": self.spec.name}
        return self.problem(repr(world), env.start(), None, float(self.quest), **meta)

    def _best(self, env: QuestEnv, rng: random.Random | None) -> str:
        commands = self._good(env)
        return rng.choice(commands) if rng else commands[0]

    def _good(self, env: QuestEnv) -> list[str]:
        left = env.distance(env.state)
        return [command for command, after in env.world.moves(env.state) if env.distance(after) < left]

    def _slips(self, env: QuestEnv) -> Sequence[str]:
        world, best = env.world, self._good(env)
        written = [f"go {direction}" for direction in "nesw"]
        written += [f"{verb} {world.things[i].name}" for verb in ("take", "open") for i in world.present(env.state)]
        return [command for command in written if command not in best] or ["go n"]


@component("task")
@dataclass(frozen=True, kw_only=True)
class KeyDoor(RoomQuest):
    """The smallest quest with a lock: take the key, open the door, go through, take or open what lies behind."""

    name: ClassVar[str] = "key_door"

    rooms: int = 2
    objects: int = 2
    quest: int = 4
    locked_doors: int = 1
    budget: float = 3.0
