"""Any environment of Gymnasium as a task: `task=gym:HalfCheetah-v5`."""

from __future__ import annotations

import copy
import functools
import importlib
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.ops.extras import MissingExtra, available, require
from gainstage.registry import component, near
from gainstage.tasks.control.batched_env import Simulation
from gainstage.tasks.control.gym_actions import acting
from gainstage.tasks.control.gym_copies import SUCCESS, Copies, Plan
from gainstage.tasks.control.gym_env import GymEnv
from gainstage.tasks.control.gym_processes import Processes
from gainstage.tasks.control.gym_spaces import GOAL_KEYS, observing
from gainstage.tasks.control.gym_vector import envpool_env
from gainstage.tasks.control.wrappers import ObsStack, stacked

BRINGERS = ("minigrid", "gymnasium_robotics", "ale_py")
"""Packages that add environments to Gymnasium's list when they are imported."""


@component("task", "gymnasium")
@dataclass
class Gymnasium(Simulation):
    """Any Gymnasium environment by its id. MiniGrid's and gymnasium-robotics' ids work as well.

    Dictionary observations are laid out end to end in one vector; of MiniGrid's, which hold a text, the picture is
    kept.
    """

    id: str
    """`HalfCheetah-v5`, or `my_module:MyEnv-v0` for one that importing `my_module` registers."""
    max_steps: int | None = None
    """Steps after which an episode is cut off; None takes the environment's own limit."""
    copies: Literal["auto", "sync", "process", "envpool"] = "auto"
    """Where copies run: in this process, in worker processes, in envpool's threads. `auto` measures whether worker
    processes pay; the numbers are the same. envpool has its own implementations, which cannot be resumed exactly."""
    workers: int | None = None
    """Worker processes; None is one a core."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment, as `gymnasium.make` takes them."""
    wrappers: list[str] = field(default_factory=list)
    """Gymnasium wrappers around every single environment, `module:Class`, the innermost first."""
    keys: list[str] | None = None
    """Entries of a dictionary observation that are kept; a single one keeps its shape. None is all of them."""
    info: list[str] = field(default_factory=list)
    """Numbers of the environment's `info` that are recorded at every step. `success` is, where there is one."""
    stack: int = 1
    """Observations that are shown together, the newest last."""
    repeat: int = 1
    """Steps that one action is held for; their rewards are added."""
    pixels: bool = False
    """Show the rendered picture instead of the environment's own observation."""
    exact_resume: bool = True
    """False for an environment whose episodes do not repeat from their seed: a resumed run starts new ones."""

    def __post_init__(self) -> None:
        self._settings = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        for name in ("stack", "repeat"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1 (or null for the environment's own), got {self.max_steps}")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        require("gymnasium", extra="control")
        self.name = f"gym:{self.id}"  # type: ignore[misc]
        self.spec = find_spec(self.id)
        self._limit = self.max_steps or self.spec.max_episode_steps
        self.keys = self.keys or default_keys(self.spec.id, self.wrappers)
        self._look()

    def _look(self) -> None:
        """Make one environment and take from it what the task has to say."""
        env = self.single()
        try:
            self.plan = Plan(
                name=self.name,
                make=self.single,
                observing=observing(env.observation_space, self.keys),
                acting=acting(env.action_space),
                limit=self._limit,
                repeat=self.repeat,
                facts=self._facts(env),
            )
        except ValueError as error:
            raise ValueError(f"{self.id}: {error}") from None
        finally:
            env.close()
        own = self._limit or getattr(env.unwrapped, "max_steps", None)
        self.max_steps = -(-own // self.repeat) if isinstance(own, int) else None
        self.observation_space, self.action_space = self.plan.observing.space, self.plan.acting.space
        if self.stack > 1:
            self.observation_space = stacked(self.observation_space, self.stack)
        pieces = getattr(self.plan.observing.space, "pieces", {})
        if all(key in pieces for key in GOAL_KEYS) and hasattr(env.unwrapped, "compute_reward"):
            self.capabilities = frozenset({"simulator", "goal"})  # type: ignore[misc]

    def _facts(self, env: Any) -> tuple[str, ...]:
        """Facts to be recorded, after a look at one step."""
        env.action_space.seed(0)
        try:
            env.reset(seed=0)
            info = dict(env.step(env.action_space.sample())[4])
        except Exception as error:
            said = f"its first steps raise {type(error).__name__}: {error}; look with gainstage check-env {self.id}"
            raise ValueError(said) from error
        for name in self.info:
            if name in info and getattr(info[name], "shape", ()) != ():
                raise ValueError(f"info: {name} is an array of shape {info[name].shape}; only numbers are recorded")
        found = [SUCCESS] if SUCCESS in info or "is_success" in info else []
        return tuple(dict.fromkeys([*found, *self.info]))

    def single(self) -> Any:
        """One environment, without the wrappers that count steps and check calls: both is done here."""
        return single_env(self.spec, self.kwargs, self.wrappers, pixels=self.pixels)

    def make(self, copies: int, device: torch.device | str = "cpu") -> Any:
        """Copies of the environment.

        Raises:
            ValueError: fewer than one.
        """
        if copies < 1:
            raise ValueError(f"copies must be at least 1, got {copies}")
        env = self._copies(copies, device)
        return ObsStack(env, self.stack) if self.stack > 1 else env

    def _copies(self, copies: int, device: torch.device | str) -> GymEnv:
        workers = min(self.workers or os.cpu_count() or 1, copies)
        if self.copies == "envpool":
            if self.repeat > 1 or self.wrappers or self.pixels:
                raise ValueError("copies: envpool knows no repeat, wrappers or pixels; use sync or process")
            limit = {"max_episode_steps": self._limit} if self._limit else {}
            return envpool_env(
                self.spec.id, copies, device, keys=self.keys, facts=self.plan.facts, **(limit | self.kwargs)
            )
        if self.copies == "process" or (self.copies == "auto" and self._processes_pay(copies, workers)):
            backend: Any = Processes(self.plan, functools.partial(_plan, self._settings), copies, workers)
        else:
            backend = Copies(self.plan, copies)
        return GymEnv(self.plan, backend, copies, device, exact_resume=self.exact_resume)

    def _processes_pay(self, copies: int, workers: int) -> bool:
        """Whether worker processes save more than passing messages costs."""
        if workers < 2 or multiprocessing.current_process().daemon:
            return False
        alone = copies * self.repeat * self._step_seconds
        return alone - alone / workers > 3 * MESSAGE_SECONDS

    @functools.cached_property
    def _step_seconds(self) -> float:
        """What a step of one environment takes, the median of a few."""
        env = self.single()
        env.reset(seed=0)
        env.action_space.seed(0)
        spent = []
        for _ in range(15):
            action = env.action_space.sample()
            begun = time.perf_counter()
            _, _, ended, cut, _ = env.step(action)
            spent.append(time.perf_counter() - begun)
            if ended or cut:
                env.reset(seed=0)
        env.close()
        return statistics.median(spent)

    def compute_reward(self, achieved: Tensor, goal: Tensor) -> Tensor:
        """The environment's own reward of `achieved "N G"` against `goal "N G"`, `Float32 "N"`."""
        return self._of_goals("compute_reward", achieved, goal)

    def compute_terminated(self, achieved: Tensor, goal: Tensor) -> Tensor:
        """`Bool "N"`: whether what was achieved ends an episode with that goal."""
        if not hasattr(self._judge.envs[0].unwrapped, "compute_terminated"):
            return torch.zeros(len(achieved), dtype=torch.bool, device=achieved.device)
        return self._of_goals("compute_terminated", achieved, goal).bool()

    def _of_goals(self, what: str, achieved: Tensor, goal: Tensor) -> Tensor:
        if "goal" not in self.capabilities:
            raise ValueError(f"{self.name}: its rewards do not depend on goals")
        said = self._judge.of_goals(what, achieved.numpy(force=True), goal.numpy(force=True))
        return torch.from_numpy(said).to(achieved.device)

    @functools.cached_property
    def _judge(self) -> Copies:
        return Copies(self.plan, 1)


MESSAGE_SECONDS = 1e-4
"""What a round of messages to the workers takes, roughly."""


def default_keys(id: str, wrappers: Sequence[str]) -> list[str] | None:
    """Entries of dictionary observations that are kept where nothing is said: MiniGrid's hold a text as well."""
    return ["image"] if not wrappers and id.startswith(("MiniGrid-", "BabyAI-")) else None


def single_env(spec: Any, kwargs: Mapping[str, Any], wrappers: Sequence[str] = (), *, pixels: bool = False) -> Any:
    """One environment without Gymnasium's wrappers that count steps, check calls and their order.

    Args:
        spec: Gymnasium's entry of it.
        kwargs: arguments of the environment.
        wrappers: `module:Class`, the innermost first.
        pixels: show the rendered picture.

    Raises:
        ValueError: Gymnasium cannot make it.
        MissingExtra: a package that it needs is not installed.
    """
    import gymnasium

    _hear_mujoco(spec)
    spec = copy.deepcopy(spec)
    spec.order_enforce, spec.disable_env_checker = False, True
    more: dict[str, Any] = {"render_mode": "rgb_array"} if pixels else {}
    try:
        env = gymnasium.make(spec, max_episode_steps=-1, **(more | dict(kwargs)))
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtra(f"{spec.id}: {error}") from None
    except Exception as error:  # whatever a constructor may raise
        raise ValueError(f"{spec.id} cannot be made: {type(error).__name__}: {error}") from error
    for wrapper in wrappers:
        env = _wrapper(wrapper)(env)
    return gymnasium.wrappers.AddRenderObservation(env, render_only=True) if pixels else env


def _plan(settings: dict[str, Any]) -> Plan:
    """The plan of a task with these settings, in a process that inherited nothing."""
    return Gymnasium(**settings).plan


def find_spec(id: str) -> Any:
    """Gymnasium's entry of an id; packages that are known to bring more of them are imported when it is not there.

    Raises:
        ValueError: nobody knows the id; the message lists near matches.
    """
    import gymnasium

    module, colon, name = id.rpartition(":")
    if colon:
        try:
            _module(module)
        except ModuleNotFoundError as error:
            raise ValueError(f"id {id!r}: there is no module {error.name!r} to import") from None
    for bringer in ("", *BRINGERS):
        if bringer and available(bringer):
            importlib.import_module(bringer)
        try:
            return gymnasium.spec(name)
        except gymnasium.error.Error as error:
            said = error
    if isinstance(said, gymnasium.error.DeprecatedEnv | gymnasium.error.VersionNotFound):
        raise ValueError(f"id {id!r}: {said}")
    if name.startswith(("MiniGrid-", "BabyAI-")):
        require("minigrid", extra="control")
    raise ValueError(f"id {id!r}: Gymnasium knows no such environment; {near(name, gymnasium.registry)}")


def _module(name: str) -> Any:
    """A module that a user names: installed, or in the working folder, as for `python -m`, however this was started."""
    here = os.getcwd()
    if "" not in sys.path and here not in sys.path:
        sys.path.append(here)
    return importlib.import_module(name)


def _hear_mujoco(spec: Any) -> None:
    """Turn MuJoCo's warnings into Python's: by itself it writes a file into the working directory. That Gymnasium's own
    model files use old attributes is nothing a user can mend."""
    if not any(word in str(spec.entry_point) for word in ("mujoco", "robotics")) or not available("mujoco"):
        return
    import mujoco

    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_warn_of_mujoco)


def _warn_of_mujoco(said: str) -> None:
    if "is deprecated and will be removed" not in said:
        warnings.warn(f"MuJoCo: {said}", stacklevel=2)


def _wrapper(place: str) -> Any:
    module, _, name = place.partition(":")
    try:
        return getattr(_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise ValueError(f"wrappers: {place!r} is no module:Class that can be imported") from None
