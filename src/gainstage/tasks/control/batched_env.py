"""Batched torch environments: the base that restarts copies, draws their randomness and saves their state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from gainstage.ops.masked import over
from gainstage.ops.noise import mix, uniform32
from gainstage.types.records import Problem
from gainstage.types.simulation import BatchedEnv, Stepped
from gainstage.types.spaces import Space, contains, describe_space

State = dict[str, Tensor]
"""Everything that makes up the situation of the copies: tensors `"B *"` by name."""


class TorchEnv(ABC):
    """`size` copies of an environment written in torch; a subclass says how they start, move and look.

    Args:
        size: copies.
        device: where their state lives.
        max_steps: steps after which an episode is cut off; None = never.
    """

    observation_space: Space
    action_space: Space

    def __init__(self, size: int, device: torch.device | str = "cpu", max_steps: int | None = None) -> None:
        if size < 1:
            raise ValueError(f"copies must be at least 1, got {size}")
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps must be at least 1 (or null for none), got {max_steps}")
        self.size, self.device, self.max_steps = size, torch.device(device), max_steps
        self.keys = torch.zeros(size, dtype=torch.int64, device=self.device)
        self.counter = torch.zeros(size, dtype=torch.int64, device=self.device)
        self.elapsed = torch.zeros(size, dtype=torch.int64, device=self.device)
        self.state: State = {}
        self._some: Tensor | None = None
        self._drawing: Tensor | None = None
        self._unchecked = True

    # -- to be written by an environment ------------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> State:
        """First states `"S *"` of the copies that start, with `draw` as the only source of chance.

        Their number is that of the rows of what is drawn (`starting` says it without a draw): all copies at a reset,
        later those whose episode ended. On an accelerator always all, and what is not needed is dropped.
        """

    @abstractmethod
    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        """Next states, rewards `"B"`, real ends `Bool "B"`, further facts. Changes nothing in place."""

    @abstractmethod
    def observe(self, state: State) -> Tensor:
        """What the policy sees, `"B *"`."""

    # -- the protocol -------------------------------------------------------------------------------------------------

    def reset(self, seeds: Sequence[int]) -> Tensor:
        """Start every copy anew with its own seed.

        Raises:
            ValueError: not one seed a copy.
        """
        if len(seeds) != self.size:
            raise ValueError(f"reset: {self.size} copies need as many seeds, got {len(seeds)}")
        self.keys = torch.tensor([mix("copy", int(seed)) for seed in seeds], device=self.device)
        self.counter = torch.zeros_like(self.keys)
        self.elapsed = torch.zeros_like(self.keys)
        self._unchecked = True
        self.state = self.start()
        return self.observe(self.state)

    def step(self, action: Tensor) -> Stepped:
        """Move all copies by one action each. What comes back may share memory with the state: not to be written to.

        Raises:
            ValueError: the actions have not the space's shape; at the first step also if they lie outside of it.
        """
        self._check(action)
        state, reward, terminated, info = self.advance(self.state, action)
        self.elapsed = self.elapsed + 1
        truncated = torch.zeros_like(terminated) if self.max_steps is None else self.elapsed >= self.max_steps
        obs = after = self.observe(state)
        done = terminated | truncated
        if self.device.type != "cpu":
            state, obs = self._restart_masked(state, after, done)
        elif len(ended := done.nonzero().squeeze(1)):
            state, obs = self._restart_some(state, after, ended)
        self.state = state
        return Stepped(obs, reward.to(torch.float32), terminated, truncated, after, info)

    def _restart_some(self, state: State, after: Tensor, ended: Tensor) -> tuple[State, Tensor]:
        """Fresh states of the copies `ended`; nothing is computed for the others."""
        self._some = ended
        fresh = self.start()
        self._some = None
        self.elapsed = self.elapsed.index_fill(0, ended, 0)
        new = {name: value.clone().index_copy_(0, ended, fresh[name]) for name, value in state.items()}
        for name, value in state.items():
            if value is after:  # the state is what is seen
                return new, new[name]
        return new, after.clone().index_copy_(0, ended, self.observe(fresh))

    def _restart_masked(self, state: State, after: Tensor, done: Tensor) -> tuple[State, Tensor]:
        """The same without waiting for the device to tell which ended: all start, and a mask chooses."""
        self._drawing = done
        fresh = self.start()
        self._drawing = None
        self.elapsed = torch.where(done, 0, self.elapsed)
        state = {name: torch.where(over(done, value), fresh[name], value) for name, value in state.items()}
        return state, torch.where(over(done, after), self.observe(state), after)

    @property
    def starting(self) -> int:
        """Rows that `start` makes now."""
        return self.size if self._some is None else len(self._some)

    def draw(self, count: int) -> Tensor:
        """`Float32 "S count"` in (0, 1), each copy from its own stream; S is `starting`."""
        keys, counter = self.keys, self.counter
        if self._some is not None:
            keys, counter = keys.index_select(0, self._some), counter.index_select(0, self._some)
            self.counter = self.counter.index_copy(0, self._some, counter + count)
        else:
            self.counter = counter + (count if self._drawing is None else count * self._drawing)
        return uniform32(keys, counter, count)

    def pick(self, count: int, among: int) -> Tensor:
        """`Int64 "S count"`, each of 0 .. among-1 equally likely."""
        return (self.draw(count) * among).long()

    def _check(self, action: Tensor) -> None:
        shape = (self.size, *self.action_space.shape)
        if action.shape != shape:
            raise ValueError(
                f"step: actions of shape {tuple(action.shape)} do not fit {self.size} copies that take "
                f"{describe_space(self.action_space)}; expected shape {shape}"
            )
        if self._unchecked and self.action_space.dtype == torch.int64 and not contains(self.action_space, action):
            raise ValueError(
                f"step: actions outside of {describe_space(self.action_space)}: {action.dtype}, "
                f"{action.min().item()} to {action.max().item()}"
            )
        self._unchecked = False

    def set_state(self, state: Mapping[str, Tensor]) -> Tensor:
        """Put all copies into given states (those named; others stay); what they look like now.

        Raises:
            ValueError: a name or a shape that this environment's state has not.
        """
        for name, value in state.items():
            if name not in self.state or self.state[name].shape != value.shape:
                shapes = {key: tuple(own.shape) for key, own in self.state.items()}
                raise ValueError(f"set_state: {name} of shape {tuple(value.shape)} does not fit; the state is {shapes}")
        self.state = self.state | {n: v.to(self.device, self.state[n].dtype) for n, v in state.items()}
        return self.observe(self.state)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on bit for bit. Nothing in it is changed by later steps."""
        return {"keys": self.keys, "counter": self.counter, "elapsed": self.elapsed, "state": dict(self.state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.keys, self.counter, self.elapsed = (state[n].to(self.device) for n in ("keys", "counter", "elapsed"))
        self.state = {name: value.to(self.device) for name, value in state["state"].items()}

    def observation(self) -> Tensor:
        """What the copies show now."""
        return self.observe(self.state)

    def close(self) -> None:  # noqa: B027
        """Nothing is held."""


def columns(*values: Tensor) -> Tensor:
    """Numbers `"B"` side by side, `"B K"`; each column lies in one piece in memory, which makes steps fast."""
    return torch.stack(values).T


def normal(drawn: Tensor) -> Tensor:
    """Standard normal numbers `"B K"` from uniform ones `"B 2K"` (Box and Muller 1958)."""
    radius, angle = drawn.chunk(2, dim=1)
    return (-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()


class Starts(Sequence[Problem]):
    """Starts of episodes: the n-th has a seed of its own, and splits never share one."""

    COUNT = 100_000

    def __init__(self, name: str, split: str) -> None:
        if split not in ("train", "validation", "test"):
            raise ValueError(f"split must be train, validation or test, got {split!r}")
        self.name, self.split = name, split

    def __len__(self) -> int:
        return self.COUNT

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        seed = mix(self.name, self.split, index) % 2**31
        return Problem(f"{self.name}/{self.split}/{index}", f"start {seed}", meta={"seed": seed})


class Simulation:
    """A task that is stepped. A subclass is a dataclass of settings with `make`, the spaces and `max_steps`."""

    name: ClassVar[str] = ""
    capabilities: ClassVar[frozenset[str]] = frozenset({"simulator"})
    max_new: ClassVar[int] = 0

    observation_space: Space
    action_space: Space
    max_steps: int | None

    def make(self, copies: int, device: torch.device | str = "cpu") -> BatchedEnv:
        raise NotImplementedError

    def problems(self, split: str) -> Sequence[Problem]:
        """Starts of episodes of a split."""
        return Starts(self.name, split)


def seats(task: Any, episodes: int) -> int:
    """Copies for so many episodes side by side: agents of one world come together."""
    world = len(getattr(task, "agents", "1"))
    return -(-episodes // world) * world


T = TypeVar("T", bound=Simulation)


class TaskEnv(TorchEnv, Generic[T]):
    """A torch environment whose spaces, step limit and settings are those of its task.

    Args:
        task: its settings.
        size, device: as `TorchEnv` has them.
    """

    def __init__(self, task: T, size: int, device: torch.device | str = "cpu") -> None:
        super().__init__(size, device, task.max_steps)
        self.task = task
        self.observation_space, self.action_space = task.observation_space, task.action_space
