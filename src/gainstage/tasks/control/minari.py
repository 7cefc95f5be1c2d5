"""Recorded episodes as a task: `task=minari:PATH`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gainstage import registry
from gainstage.ops.extras import MissingExtra
from gainstage.tasks.control.batched_env import Simulation, Starts
from gainstage.tasks.control.gym_actions import acting
from gainstage.tasks.control.gym_spaces import observing
from gainstage.tasks.control.gymnasium import default_keys
from gainstage.tasks.control.minari_files import MinariSet, recorded_env
from gainstage.tasks.control.minari_spaces import piece_name
from gainstage.tasks.resolve import resolve
from gainstage.types.episodes import EpisodeSet
from gainstage.types.records import Problem
from gainstage.types.simulation import BatchedEnv
from gainstage.types.spaces import Box, Space, describe_space, same_space


@registry.component("task", "minari")
@dataclass
class Minari(Simulation):
    """Episodes in Minari's format, and the environment that they were recorded in where it can be made.

    Args:
        path: folder of the data set, or an id that Minari has downloaded.
        env: task to be evaluated in, as `task=` names it; null takes the one that the data set names.
        keys: entries of dictionary observations that are kept; null = all, of MiniGrid's the picture.
        info: numbers of the recorded `infos` that are kept.
        episodes: the first so many; null = all.
    """

    name: ClassVar[str] = "minari"

    path: str
    env: str | dict[str, Any] | None = None
    keys: list[str] | None = None
    info: list[str] = field(default_factory=list)
    episodes: int | None = None

    def __post_init__(self) -> None:
        if self.episodes is not None and self.episodes < 1:
            raise ValueError(f"episodes must be at least 1 (or null for all), got {self.episodes}")
        self.data = MinariSet(self.path)
        found = self.data.metadata
        self.keys = self.keys or default_keys(_id(found), ())
        self.observation_space = observing(self.data.observation_space, self.keys).space
        self.action_space = acting(self.data.action_space).space
        self._order: Tensor | None = None
        self.spec: dict[str, dict[str, Any]] = {}
        """Name and settings of the task that is stepped, where there is one."""
        self.inner, self.missing = self._inner()
        offered = {"transitions"} | (set(self.inner.capabilities) if self.inner else set())
        self.capabilities = frozenset(offered)  # type: ignore[misc]
        self.max_steps = self.inner.max_steps if self.inner else None
        scores = found.get("ref_min_score"), found.get("ref_max_score")
        self.reference: tuple[float, float] | None = None
        """Mean return of a random and of an expert policy, where the data set says them."""
        if all(isinstance(score, int | float) for score in scores):
            self.reference = (float(scores[0]), float(scores[1]))  # type: ignore[arg-type]

    def _inner(self) -> tuple[Any, str]:
        """The task that is stepped, or why there is none."""
        try:
            kind, settings = self._recorded() if self.env is None else resolve(self.env)
            task = registry.build("task", kind, settings, "task.env")
            self._compare(task)
        except (ValueError, MissingExtra) as error:
            if self.env is not None:
                raise
            return None, str(error)
        self.spec = {kind: settings}
        return task, ""

    def _recorded(self) -> tuple[str, dict[str, Any]]:
        own = self.data.metadata.get("gainstage_task")
        if isinstance(own, Mapping) and len(own) == 1:
            ((name, settings),) = own.items()
            settings = dict(settings or {})
            if settings.get("wrappers") or ":" in str(settings.get("id", "")):
                raise ValueError(f"it was recorded in {name} with code of its own: {settings}")
            return str(name), settings
        return "gymnasium", recorded_env(self.data.metadata) | {"keys": self.keys}

    def _compare(self, task: Any) -> None:
        """Take over the order in which the task lays its observations out.

        Raises:
            ValueError: its spaces are others than those of the data set.
        """
        order = _order(task.observation_space, self.observation_space)
        seen = _ordered(self.observation_space, order)
        for what, here in (("observation space", seen), ("action space", self.action_space)):
            there = getattr(task, what.replace(" ", "_"))
            if not same_space(here, there):
                raise ValueError(
                    f"the {what} of {task.name} is {describe_space(there)}, that of the data set "
                    f"{describe_space(here)} (shapes or bounds differ)"
                )
        self._order = order
        self.observation_space = task.observation_space

    @functools.cached_property
    def _episodes(self) -> EpisodeSet:
        found = self.data.episodes(keys=self.keys, info=self.info, limit=self.episodes)
        return found if self._order is None else replace(found, obs=found.obs[:, self._order])

    def transitions(self) -> EpisodeSet:
        """All recorded episodes, read once.

        Raises:
            ValueError: the data set is damaged.
        """
        return self._episodes

    def make(self, copies: int, device: torch.device | str = "cpu") -> BatchedEnv:
        """Copies of the environment that the episodes were recorded in.

        Raises:
            ValueError: it cannot be made; the message says why.
        """
        return self._stepped().make(copies, device)

    def problems(self, split: str) -> Sequence[Problem]:
        """Starts of episodes in the environment."""
        return self.inner.problems(split) if self.inner else Starts(self.name, split)

    def __getattr__(self, name: str) -> Any:
        if name in ("compute_reward", "compute_terminated"):
            return getattr(self._stepped(), name)
        raise AttributeError(name)

    def _stepped(self) -> Any:
        if self.inner is None:
            raise ValueError(
                f"{self.path}: there is no environment to act in: {self.missing}. Name one: task.env=gym:ID"
            )
        return self.inner


def _order(wanted: Space, found: Space) -> Tensor | None:
    """Where each entry of observations `wanted` lies in those `found`, which may have their parts in another order."""
    if not (isinstance(wanted, Box) and isinstance(found, Box)) or wanted.shape != found.shape:
        return None
    names = {piece_name(name): piece for name, piece in found.pieces.items()}
    parts = [names.get(piece_name(name)) for name in wanted.pieces]
    if not parts or len(parts) != len(names) or None in parts:
        return None
    order = torch.cat([torch.arange(part.start, part.stop) for part in parts if part is not None])
    return None if torch.equal(order, torch.arange(len(order))) or len(order) != wanted.shape[0] else order


def _ordered(space: Space, order: Tensor | None) -> Space:
    if order is None or not isinstance(space, Box):
        return space
    return Box(space.low[order], space.high[order], space.dtype)


def _id(metadata: Mapping[str, Any]) -> str:
    try:
        return str(recorded_env(metadata)["id"])
    except ValueError:
        return ""
