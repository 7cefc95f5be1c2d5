"""Rooms with doors and keys as a turning agent sees them: MiniGrid's rules as tensors, equal to it step by step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gainstage.tasks.control.batched_env import Simulation, State, TaskEnv
from gainstage.tasks.control.room_layouts import (
    BALL,
    BOX,
    CLOSED,
    DOOR,
    EMPTY,
    FLOOR,
    GOAL,
    GREY,
    KEY,
    LAVA,
    OPEN,
    STEPS,
    WALL,
    Plan,
)
from gainstage.types.spaces import Box, Discrete, Space

VIEW = 7
"""Cells a side of what the agent sees; it stands in the middle of the near edge."""
EDGE = VIEW - 1
"""Walls kept around every plan, so that no view leaves it."""
COLOURS, STATES = 6, 3
View = Literal["picture", "ones", "place"]
TILE = 16
"""Pixels a side of a cell in a picture for people."""
PAINT = ((210, 60, 60), (60, 160, 90), (60, 90, 220), (140, 70, 200), (225, 195, 40), (110, 110, 110))
"""The colours, in the order of their numbers."""


def code(kind: Any, colour: Any = 0, state: Any = 0) -> Any:
    """A cell as one number below 256."""
    return (kind * COLOURS + colour) * STATES + state


NOTHING = code(EMPTY)
CODES = 11 * COLOURS * STATES
TABLE = torch.tensor(
    [[c // (COLOURS * STATES), c // STATES % COLOURS, c % STATES] for c in range(CODES)], dtype=torch.uint8
)
"""Code -> (kind, colour, state)."""
KIND = TABLE[:, 0].long()
WALKABLE = torch.isin(KIND, torch.tensor([EMPTY, FLOOR, GOAL, LAVA])) | ((KIND == DOOR) & (TABLE[:, 2] == OPEN))
CLEAR = ((KIND != WALL) & ((KIND != DOOR) | (TABLE[:, 2] == OPEN))).to(torch.float32)
ONES = torch.cat([one_hot(TABLE[:, i].long(), n) for i, n in enumerate((11, COLOURS, STATES))], dim=1).to(torch.float32)
MOVABLE = torch.isin(KIND, torch.tensor([KEY, BALL, BOX]))


@dataclass
class Rooms(Simulation):
    """What the worlds of rooms share. A subclass draws the plans."""

    ACTIONS: ClassVar[int] = 7
    """turn left, turn right, forward, pick up, drop, toggle, nothing."""
    PRIZE: ClassVar[int] = GOAL
    """What ends an episode with success: walking onto a goal, or picking up a thing of this kind."""

    view: View = "picture"
    layouts: int = 512
    seed: int = 0
    time_cost: float = 0.9
    max_steps: int | None = None

    def __post_init__(self) -> None:
        if self.layouts < 1:
            raise ValueError(f"layouts must be at least 1, got {self.layouts}")
        self.max_steps = self.patience() if self.max_steps is None else self.max_steps
        self.action_space = Discrete(self.ACTIONS)

    def patience(self) -> int:
        """Steps of an episode where `max_steps` is not set."""
        raise NotImplementedError

    def draw_plans(self) -> tuple[Plan, ...]:
        """The pool of plans."""
        raise NotImplementedError

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        return self.draw_plans()

    @cached_property
    def observation_space(self) -> Space:  # type: ignore[override]
        if self.view == "picture":
            return Box.of(0, 255, (VIEW, VIEW, 3), dtype=torch.uint8)
        if self.view == "ones":
            return Box.of(0, 1, (VIEW * VIEW * (11 + COLOURS + STATES),))
        height, width, _ = self.plans[0].cells.shape
        return Box.of(0, 1, (height * width + 4,))

    def make(self, copies: int, device: torch.device | str = "cpu") -> RoomsEnv:
        return RoomsEnv(self, copies, device)


class RoomsEnv(TaskEnv[Rooms]):
    """State: `cells "B (H+12)(W+12)"` (codes, walls around), `place` (index into them), `direction` (0 right, 1 down,
    2 left, 3 up), `carried` (code, or that of nothing), `plan` (which one), all but the first `Int64 "B"`.

    Facts of a step: `success`; `place`, the cell of the plan in reading order; `room`, its number; `carrying`; and
    whether this step `opened` a door or `picked` something up.
    """

    def __init__(self, task: Rooms, size: int, device: torch.device | str = "cpu") -> None:
        super().__init__(task, size, device)
        plans = task.plans
        self.height, self.width, _ = plans[0].cells.shape
        self.pitch = self.width + 2 * EDGE
        cells = np.stack([plan.cells for plan in plans]).astype(np.int64)
        codes = np.pad(
            code(cells[..., 0], cells[..., 1], cells[..., 2]),
            ((0, 0), (EDGE, EDGE), (EDGE, EDGE)),
            constant_values=code(WALL, GREY),
        )
        on = self.device
        self.codes = torch.from_numpy(codes.reshape(len(plans), -1)).to(on, torch.uint8)
        self.rooms = torch.from_numpy(np.stack([plan.rooms.reshape(-1) for plan in plans])).to(on)
        self.starts = torch.tensor([(p.start[1] + EDGE) * self.pitch + p.start[0] + EDGE for p in plans], device=on)
        self.facing = torch.tensor([-1 if p.direction is None else p.direction for p in plans], device=on)
        self.ahead = torch.tensor([y * self.pitch + x for x, y in STEPS], device=on)
        self.window = _window(self.ahead)
        self.table, self.kind, self.walkable = TABLE.to(on), KIND.to(on), WALKABLE.to(on)
        self.movable, self.clear, self.ones = MOVABLE.to(on), CLEAR.to(on), ONES.to(on)
        self.lit, self.onward, self.unpacked = (t.to(on) for t in _light())
        self.bits = 2.0 ** torch.arange(VIEW, device=on)

    def start(self) -> State:
        drawn = self.draw(2)
        plan = (drawn[:, 0] * len(self.codes)).long()
        turned = (drawn[:, 1] * 4).long()
        return {
            "cells": self.codes[plan],
            "place": self.starts[plan],
            "direction": torch.where(self.facing[plan] < 0, turned, self.facing[plan]),
            "carried": torch.full_like(plan, NOTHING),
            "plan": plan,
        }

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        cells, carried = state["cells"], state["carried"]
        front = state["place"] + self.ahead[state["direction"]]
        seen = cells.gather(1, front.unsqueeze(1)).squeeze(1).long()
        kind, empty = self.kind[seen], carried == NOTHING
        walks = (action == 2) & self.walkable[seen]
        picks = (action == 3) & self.movable[seen] & empty
        drops = (action == 4) & (seen == NOTHING) & ~empty
        toggled = torch.where(action == 5, self._toggle(seen, carried), seen)
        new = torch.where(picks, NOTHING, torch.where(drops, carried, toggled))
        place = torch.where(walks, front, state["place"])
        direction = (state["direction"] + (action == 1).long() - (action == 0).long()) % 4
        after = {
            "cells": cells.scatter(1, front.unsqueeze(1), new.to(torch.uint8).unsqueeze(1)),
            "place": place,
            "direction": direction,
            "carried": torch.where(picks, seen, torch.where(drops, NOTHING, carried)),
            "plan": state["plan"],
        }
        prize = (walks if self.task.PRIZE == GOAL else picks) & (kind == self.task.PRIZE)
        worth = 1 - self.task.time_cost * (self.elapsed + 1) / (self.max_steps or 1)
        opened = (kind == DOOR) & (new != seen) & (new % STATES == OPEN)
        facts = {"success": prize, "opened": opened, "picked": picks, "carrying": after["carried"] != NOTHING}
        return after, worth * prize, prize | (walks & (kind == LAVA)), facts | self._where(place, state["plan"])

    def _where(self, place: Tensor, plan: Tensor) -> dict[str, Tensor]:
        """The cell without the walls around, and its room."""
        cell = (place // self.pitch - EDGE) * self.width + place % self.pitch - EDGE
        return {"place": cell, "room": self.rooms[plan, cell]}

    def _toggle(self, seen: Tensor, carried: Tensor) -> Tensor:
        """What a cell turns into: doors open and close, locked ones by their key alone; a box is gone."""
        state, kind = seen % STATES, self.kind[seen]
        fits = carried == code(KEY, seen // STATES % COLOURS)
        other = torch.where(state == OPEN, CLOSED, torch.where((state == CLOSED) | fits, OPEN, state))
        return torch.where(kind == DOOR, seen - state + other, torch.where(kind == BOX, NOTHING, seen))

    # -- what is seen -------------------------------------------------------------------------------------------------

    def observe(self, state: State) -> Tensor:
        if self.task.view == "place":
            return self._place(state)
        codes = self._look(state).flatten().int()
        if self.task.view == "picture":
            return self.table.index_select(0, codes).view(-1, VIEW, VIEW, 3)
        return self.ones.index_select(0, codes).view(len(state["place"]), -1)

    def _look(self, state: State) -> Tensor:
        """Codes `UInt8 "B 49"` of the cells in view, column by column as MiniGrid has them; 0 where none is seen."""
        at = state["place"].unsqueeze(1) + self.window[state["direction"]]
        codes = state["cells"].gather(1, at)
        clear = self.clear.index_select(0, codes.flatten().int()).view(-1, VIEW, VIEW)
        rows = torch.einsum("bij,i->bj", clear, self.bits).long()  # bit i of row j: column i lets light through
        light = torch.full_like(rows[:, 0], 1 << VIEW // 2)
        lit = []
        for row in range(VIEW - 1, -1, -1):
            key = light * 2**VIEW + rows[:, row]
            lit.append(self.lit[key])
            light = self.onward[key]
        seen = self.unpacked[torch.stack(lit[::-1], dim=1)]  # row, column
        codes *= seen.transpose(1, 2).reshape(-1, VIEW * VIEW)
        codes[:, VIEW // 2 * VIEW + EDGE] = state["carried"].to(torch.uint8)
        return codes

    def _place(self, state: State) -> Tensor:
        """Ones at the agent's cell and at its direction."""
        cell = self._where(state["place"], state["plan"])["place"]
        shown = torch.zeros(len(cell), self.height * self.width + 4, device=self.device)
        shown.scatter_(1, cell.unsqueeze(1), 1.0)
        return shown.scatter_(1, self.height * self.width + state["direction"].unsqueeze(1), 1.0)

    def render(self, copy: int) -> np.ndarray:
        """The whole plan of a copy as a picture `UInt8 "H W 3"`."""
        state = {name: value[copy].cpu().numpy() for name, value in self.state.items()}
        cells = state["cells"].reshape(-1, self.pitch)[EDGE:-EDGE, EDGE:-EDGE]
        at = int(state["place"])
        return _picture(
            cells, int(state["carried"]), (at // self.pitch - EDGE, at % self.pitch - EDGE), int(state["direction"])
        )


def _picture(cells: np.ndarray, carried: int, place: tuple[int, int], direction: int) -> np.ndarray:
    """`UInt8 "H W 3"`: codes `"H W"` as tiles; the agent is a triangle, what it carries a spot on it."""
    tile = np.indices((TILE, TILE)) / (TILE - 1) - 0.5  # down, right
    tiles = np.zeros((*cells.shape, TILE, TILE, 3), dtype=np.uint8)
    for y, x in np.ndindex(cells.shape):
        tiles[y, x] = _tile(int(cells[y, x]), tile)
    across, along = STEPS[(direction + 1) % 4], STEPS[direction]
    ahead = tile[1] * along[0] + tile[0] * along[1]
    aside = abs(tile[1] * across[0] + tile[0] * across[1])
    tiles[place][(ahead > -0.35) & (aside < (0.4 - ahead) / 2)] = (40, 110, 220)
    if carried != NOTHING:
        tiles[place][(tile**2).sum(0) < 0.02] = PAINT[carried // STATES % COLOURS]
    return tiles.transpose(0, 2, 1, 3, 4).reshape(cells.shape[0] * TILE, -1, 3)


def _tile(cell: int, at: np.ndarray) -> np.ndarray:
    kind, colour, state = cell // (COLOURS * STATES), PAINT[cell // STATES % COLOURS], cell % STATES
    edge, radius = np.abs(at).max(0), (at**2).sum(0) ** 0.5
    shape = {WALL: edge <= 1, GOAL: edge <= 1, LAVA: edge <= 1, BALL: radius < 0.35, BOX: (edge > 0.25) & (edge < 0.4)}
    shape[KEY] = (abs(radius - 0.25) < 0.1) | (edge < 0.05)
    shape[DOOR] = (edge > 0.4) if state == OPEN else (edge > 0.4) | (edge < 0.3) if state == CLOSED else edge <= 1
    painted = np.full((TILE, TILE, 3), 245, dtype=np.uint8)
    painted[shape.get(kind, edge > 1)] = (200, 70, 60) if kind == LAVA else colour
    return painted


def _window(ahead: Tensor) -> Tensor:
    """Offsets `Int64 "4 49"` of the cells in view, by direction: column i is i-3 to the right, row j 6-j ahead."""
    aside = ahead.roll(-1)  # what is ahead after a turn to the right
    column, row = torch.meshgrid(torch.arange(VIEW), torch.arange(VIEW), indexing="ij")
    column, row = (t.flatten().to(ahead.device) for t in (column - VIEW // 2, EDGE - row))
    return aside.unsqueeze(1) * column + ahead.unsqueeze(1) * row


@lru_cache(maxsize=1)
def _light() -> tuple[Tensor, Tensor, Tensor]:
    """How light spreads in a row, for every set of lit cells and of clear ones: what is lit here, and in the next row.

    Light goes from a clear cell to both sides within the row, and to the three cells before it in the next row. Sets
    are numbers of `VIEW` bits; the third table is their bits.
    """
    full = 2**VIEW - 1
    lit, clear = (t.flatten() for t in torch.meshgrid(torch.arange(full + 1), torch.arange(full + 1), indexing="ij"))
    for _ in range(VIEW):
        through = lit & clear
        lit = lit | ((through << 1 | through >> 1) & full)
    through = lit & clear
    unpacked = (torch.arange(full + 1).unsqueeze(1) >> torch.arange(VIEW) & 1).to(torch.uint8)
    return lit, (through | through << 1 | through >> 1) & full, unpacked
