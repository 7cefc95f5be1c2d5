"""A data set that is recorded on first use, by scripted controllers: offline learning without a download."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gainstage import registry
from gainstage.tasks.control.batched_env import Simulation
from gainstage.tasks.control.recording import controller, mean_return, mixed, parse_mix, start_seeds
from gainstage.tasks.resolve import resolve
from gainstage.types.episodes import STEPS, EpisodeSet
from gainstage.types.records import Problem
from gainstage.types.simulation import BatchedEnv

FORMAT = 1
"""Goes up when the same settings record other episodes than before."""


def cache_folder() -> Path:
    """Where recorded episodes are kept: below `GAINSTAGE_CACHE` where it is set, else `~/.cache/gainstage`."""
    return Path(os.environ.get("GAINSTAGE_CACHE", "~/.cache/gainstage")).expanduser() / "recorded"


@registry.component("task")
@dataclass
class Recorded(Simulation):
    """Episodes of scripted controllers in an environment, and that environment to be judged in.

    The same settings give the same episodes everywhere; they are recorded once and kept in the cache.

    Args:
        task: environment, as `task=` names it; it needs a scripted expert (pendulum, point_maze, positioning, ...).
        mix: who acts, by shares of episodes: random, medium, expert, medium-expert, random-expert, or
            `expert=0.05,random=0.95`.
        episodes: their number.
        data_seed: of starts and draws; independent of the run's seed.
    """

    name: ClassVar[str] = "recorded"

    task: str | dict[str, Any] = "pendulum"
    mix: str | dict[str, float] = "medium-expert"
    episodes: int = 200
    data_seed: int = 0

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {self.episodes}")
        self.shares = parse_mix(self.mix)
        kind, settings = resolve(self.task)
        self.inner = registry.build("task", kind, settings, "task.task")
        if "simulator" not in self.inner.capabilities:
            raise ValueError(f"task: {self.inner.name} is no environment that is stepped")
        for name in self.shares:
            controller(name, self.inner)
        self.spec = {kind: settings}
        self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space
        self.max_steps = self.inner.max_steps
        self.capabilities = self.inner.capabilities | {"transitions"}  # type: ignore[misc]
        said = self.mix if isinstance(self.mix, str) and "=" not in self.mix else "mix"
        self.name = f"{self.inner.name}-{said}"  # type: ignore[misc]

    @property
    def path(self) -> Path:
        """The file with the episodes."""
        what = [FORMAT, self.spec, self.shares, self.episodes, self.data_seed]
        digest = hashlib.blake2b(json.dumps(what, sort_keys=True).encode(), digest_size=8).hexdigest()
        return cache_folder() / f"{self.name}-{self.episodes}-{digest}.safetensors"

    @functools.cached_property
    def _set(self) -> EpisodeSet:
        try:
            columns = load_file(self.path)
            return EpisodeSet(**{n: columns[n] for n in ("lengths", *STEPS)}, info={"source": columns["source"]})
        except (OSError, SafetensorError, KeyError):  # not there yet, or damaged: recorded (again)
            pass
        found = EpisodeSet.join(list(self._record()))
        columns = {n: getattr(found, n).contiguous() for n in ("lengths", *STEPS)} | {"source": found.info["source"]}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=self.path.parent, prefix=".writing-")
        os.close(handle)
        try:
            save_file(columns, partial)
            os.replace(partial, self.path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
        return found

    def _record(self) -> Any:
        starts = start_seeds(self.inner, self.episodes, self.data_seed)
        return mixed(
            self.inner, lambda name, seed: controller(name, self.inner, seed), self.shares, starts, self.data_seed
        )

    def transitions(self) -> EpisodeSet:
        """All episodes. The fact `source` numbers the controllers in the order of `mix`."""
        return self._set

    @functools.cached_property
    def reference(self) -> tuple[float, float]:
        """Mean return of the random and of the expert controller."""
        low, high = (mean_return(self.inner, controller(name, self.inner)) for name in ("random", "expert"))
        return low, high

    def make(self, copies: int, device: torch.device | str = "cpu") -> BatchedEnv:
        return self.inner.make(copies, device)

    def problems(self, split: str) -> Sequence[Problem]:
        return self.inner.problems(split)

    def __getattr__(self, name: str) -> Any:
        if name in ("compute_reward", "compute_terminated"):  # offered by worlds with goals alone
            return getattr(self.inner, name)
        raise AttributeError(name)
