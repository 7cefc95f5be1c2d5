"""Worlds every learner must solve: answer what is shown, in every kind of action and view; or what was shown before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gainstage.registry import component
from gainstage.tasks.control.batched_env import Simulation, State, TaskEnv
from gainstage.types.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Piece, Space

Kind = Literal["discrete", "box", "multi_discrete", "multi_binary"]
View = Literal["plain", "pieces", "picture"]

PICTURE = 36
"""Pixels a side, of one channel: no network for pictures is too large for it."""


@component("task")
@dataclass
class Identity(Simulation):
    """Answer what is shown. The next thing that is shown depends on nothing, so a discount or a trace cannot matter.

    Reward: 1 for the right choice; of several choices or switches the share that is right; of numbers minus the mean
    squared error. The best mean reward is 1, or 0 for `box`.

    Args:
        space: what an answer is: one of `choices`, `count` numbers in [-1, 1], `count` choices, or `count` switches.
        view: `plain` shows the answer as it is (one choice as its number, several one after the other as ones and
            zeros), `pieces` puts it between two pieces of noise, `picture` paints it, brighter for more.
        choices: of each choice.
        count: numbers, choices or switches of an answer.
        max_steps: an episode is cut off after so many (null = never).
    """

    name: ClassVar[str] = "identity"

    space: Kind = "discrete"
    view: View = "plain"
    choices: int = 3
    count: int = 2
    max_steps: int | None = 10

    def __post_init__(self) -> None:
        if self.choices < 2 or self.count < 1:
            raise ValueError(f"choices must be at least 2 and count at least 1, got {self.choices} and {self.count}")
        if max(self.cells) > PICTURE:
            raise ValueError(f"choices and count can be at most {PICTURE}, got {self.choices} and {self.count}")
        self.action_space = self._answers()
        self.observation_space = self._views()

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of an answer as a table of numbers in [0, 1]."""
        tables = {"discrete": (1, self.choices), "multi_discrete": (self.count, self.choices)}
        return tables.get(self.space, (1, self.count))

    def _answers(self) -> Space:
        if self.space == "discrete":
            return Discrete(self.choices)
        if self.space == "multi_discrete":
            return MultiDiscrete((self.choices,) * self.count)
        return MultiBinary(self.count) if self.space == "multi_binary" else Box.of(-1, 1, (self.count,))

    def _views(self) -> Space:
        size = self.cells[0] * self.cells[1]
        if self.view == "picture":
            return Box.of(0, 255, (PICTURE, PICTURE, 1), dtype=torch.uint8)
        if self.view == "pieces":
            pieces = {"before": Piece(0, 2, (2,)), "cue": Piece(2, 2 + size, self.cells)}
            return Box.of(-1, 1, (size + 5,), pieces=pieces | {"after": Piece(2 + size, size + 5, (3, 1))})
        return Discrete(self.choices) if self.space == "discrete" else Box.of(-1, 1, (size,))

    def make(self, copies: int, device: torch.device | str = "cpu") -> IdentityEnv:
        return IdentityEnv(self, copies, device)


class IdentityEnv(TaskEnv[Identity]):
    """State: `answer`, of the action space, and `noise "B 5"` for the pieces around it."""

    def start(self) -> State:
        return self._show()

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        answer = state["answer"]
        if self.task.space == "box":
            reward = -(action - answer).square().mean(1)
            right = (action - answer).abs().amax(1) < 0.1
        else:
            equal = (action == answer).reshape(self.size, -1)
            reward, right = equal.to(torch.float32).mean(1), equal.all(1)
        return self._show(), reward, torch.zeros_like(right), {"success": right}

    def _show(self) -> State:
        p = self.task
        if p.space == "discrete":
            answer = self.pick(1, p.choices).squeeze(1)
        elif p.space == "multi_discrete":
            answer = self.pick(p.count, p.choices)
        else:
            answer = self.pick(p.count, 2) if p.space == "multi_binary" else self.draw(p.count) * 2 - 1
        return {"answer": answer, "noise": self.draw(5) * 2 - 1}

    def observe(self, state: State) -> Tensor:
        p, answer = self.task, state["answer"]
        if p.view == "plain" and p.space in ("discrete", "box"):
            return answer
        if p.space in ("discrete", "multi_discrete"):
            table = one_hot(answer, p.choices).reshape(-1, *p.cells).to(torch.float32)
        else:
            table = answer.reshape(-1, *p.cells).to(torch.float32)
        if p.view == "picture":
            return _paint(table / 2 + 0.5 if p.space == "box" else table)
        if p.view == "plain":
            return table.flatten(1)
        return torch.cat((state["noise"][:, :2], table.flatten(1), state["noise"][:, 2:]), dim=1)


def _paint(table: Tensor) -> Tensor:
    """A table `"B R C"` of numbers in [0, 1] as pictures `UInt8 "B PICTURE PICTURE 1"`, each number a rectangle."""
    rows = torch.arange(PICTURE, device=table.device) * table.shape[1] // PICTURE
    across = torch.arange(PICTURE, device=table.device) * table.shape[2] // PICTURE
    return (table[:, rows][:, :, across] * 255).round().to(torch.uint8).unsqueeze(3)


@component("task")
@dataclass
class MemoryCue(Simulation):
    """A cue is shown, then nothing, then the question: a policy without memory is right once in `choices` times.

    Shown: the cue as ones and zeros at the first step, zeros while it has to be kept, and at the last step a 1 in the
    last place. Reward 1 for the cue as answer to the question, which ends the episode; other actions do nothing.

    Args:
        choices: of the cue.
        delay: steps from the cue to the question, at least 1.
    """

    name: ClassVar[str] = "memory_cue"

    choices: int = 2
    delay: int = 4

    def __post_init__(self) -> None:
        if self.choices < 2 or self.delay < 1:
            raise ValueError(f"choices must be at least 2 and delay at least 1, got {self.choices} and {self.delay}")
        self.max_steps = None  # the answer ends an episode
        self.observation_space = Box.of(0, 1, (self.choices + 1,))
        self.action_space = Discrete(self.choices)

    def make(self, copies: int, device: torch.device | str = "cpu") -> MemoryCueEnv:
        return MemoryCueEnv(self, copies, device)


class MemoryCueEnv(TaskEnv[MemoryCue]):
    """State: `cue` and `age` (steps since it was shown), both `Int64 "B"`."""

    def start(self) -> State:
        cue = self.pick(1, self.task.choices).squeeze(1)
        return {"cue": cue, "age": torch.zeros_like(cue)}

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        asked = state["age"] >= self.task.delay
        right = asked & (action == state["cue"])
        return {"cue": state["cue"], "age": state["age"] + 1}, right.to(torch.float32), asked, {"success": right}

    def observe(self, state: State) -> Tensor:
        shown = one_hot(state["cue"], self.task.choices) * (state["age"] == 0).unsqueeze(1)
        return torch.cat((shown, (state["age"] == self.task.delay).unsqueeze(1)), dim=1).to(torch.float32)
