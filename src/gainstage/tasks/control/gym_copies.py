"""Single Gymnasium environments stepped one after the other, without more around them than a loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from gainstage.ops.noise import mix
from gainstage.tasks.control.gym_actions import Acting
from gainstage.tasks.control.gym_spaces import Observing

SUCCESS = "success"
FINAL = ("final_obs", "final_observation")
"""Where wrappers that restart by themselves leave the observation that they took away."""


def episode_seed(seed: int, number: int) -> int:
    """The seed of a copy's n-th episode. The first one is the copy's own, so that it is the episode that
    `env.reset(seed=seed)` starts."""
    if number == 0 and 0 <= seed < 2**31:
        return seed
    return mix("episode", seed, number) % 2**31


@dataclass(frozen=True)
class Plan:
    """What all copies of an environment have in common.

    Args:
        name: for messages.
        make: makes a single environment, without a wrapper that counts its steps.
        observing, acting: layouts of observations and actions.
        limit: steps of the environment after which an episode is cut off.
        repeat: steps of the environment that one action is held for; their rewards are added.
        facts: numbers to be taken from `info` at every step.
    """

    name: str
    make: Callable[[], Any]
    observing: Observing
    acting: Acting
    limit: int | None = None
    repeat: int = 1
    facts: tuple[str, ...] = ()


class Moved(NamedTuple):
    """One step of all copies in numpy: see `Stepped`. `obs` is `next_obs` itself where no episode began; `began` says
    which did, absent where those did that ended."""

    next_obs: np.ndarray
    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    facts: np.ndarray
    real: np.ndarray | None = None
    began: np.ndarray | None = None


class Backend(Protocol):
    """Something that moves copies: in this process or in others."""

    def reset(self, seeds: Sequence[int]) -> np.ndarray: ...

    def step(self, actions: np.ndarray) -> Moved: ...

    def restore(self, seeds: Sequence[int], episodes: Sequence[int], actions: Sequence[np.ndarray]) -> np.ndarray: ...

    def of_goals(self, what: str, achieved: Any, goal: Any) -> np.ndarray: ...

    def render(self, copy: int) -> np.ndarray: ...

    def close(self) -> None: ...


class Copies:
    """`size` environments, each with its own seed, episode number and step count.

    Args:
        plan: what they have in common.
        size: how many.
        first: number of the first one, for messages.
    """

    def __init__(self, plan: Plan, size: int, first: int = 0) -> None:
        self.plan, self.size, self.first = plan, size, first
        self.envs = [plan.make() for _ in range(size)]
        single = [env.step for env in self.envs]
        self._steps = single if plan.repeat == 1 else [functools.partial(self._held, copy) for copy in range(size)]
        self.seeds = [0] * size
        self.episodes = [0] * size
        self.elapsed = [0] * size

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """First observations of first episodes."""
        self.seeds, self.episodes, self.elapsed = [int(s) for s in seeds], [0] * self.size, [0] * self.size
        obs = self.plan.observing.empty(self.size)
        for copy in range(self.size):
            self.plan.observing.write(obs, copy, self._start(copy))
        return obs

    def _start(self, copy: int) -> Any:
        self.elapsed[copy] = 0
        return self.envs[copy].reset(seed=episode_seed(self.seeds[copy], self.episodes[copy]))[0]

    def step(self, actions: np.ndarray) -> Moved:
        """Move every copy by its action and start the next episode of those whose episode ended."""
        plan, size, elapsed, steps = self.plan, self.size, self.elapsed, self._steps
        write, limit, facts_wanted = plan.observing.write, plan.limit, bool(plan.facts)
        next_obs = plan.observing.empty(size)
        reward = np.empty(size, np.float32)
        terminated, truncated = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        facts = np.zeros((len(plan.facts), size), np.float32)
        fresh: list[tuple[int, Any]] = []
        for copy, action in enumerate(plan.acting.rows(actions)):
            elapsed[copy] += 1
            try:
                seen, paid, ended, cut, info = steps[copy](action)
            except Exception as error:
                error.add_note(f"in {self._where(copy)}")
                raise
            try:
                write(next_obs, copy, seen)
                reward[copy] = paid
                if facts_wanted:
                    self._note(facts, copy, info)
            except (TypeError, ValueError, KeyError, IndexError) as error:
                raise ValueError(self._misfit(copy, seen, paid, error)) from error
            if limit is not None and elapsed[copy] >= limit:
                cut = True
            if ended or cut:
                terminated[copy], truncated[copy] = ended, cut
                for key in FINAL:
                    if info.get(key) is not None:
                        write(next_obs, copy, info[key])
                self.episodes[copy] += 1
                fresh.append((copy, self._start(copy)))
        obs = next_obs
        if fresh:
            obs = next_obs.copy()
            for copy, seen in fresh:
                write(obs, copy, seen)
        return Moved(next_obs, obs, reward, terminated, truncated, facts)

    def _held(self, copy: int, action: Any) -> Any:
        """Up to `repeat` steps with the same action. The caller has counted the first one."""
        total, limit = 0.0, self.plan.limit
        for left in range(self.plan.repeat - 1, -1, -1):
            seen, paid, ended, cut, info = self.envs[copy].step(action)
            total += float(paid)
            if ended or cut or not left or self.elapsed[copy] == limit:
                break
            self.elapsed[copy] += 1
        return seen, total, ended, cut, info

    def _where(self, copy: int) -> str:
        return f"{self.plan.name}, copy {self.first + copy}, step {self.elapsed[copy]} of its episode"

    def _misfit(self, copy: int, seen: Any, paid: Any, error: Exception) -> str:
        shape = f" of shape {seen.shape}" if hasattr(seen, "shape") else ""
        return (
            f"{self._where(copy)}: reward {paid!r}, observation {type(seen).__name__}{shape} or info do not fit: "
            f"{error}; gainstage check-env says which"
        )

    def _note(self, facts: np.ndarray, copy: int, info: dict[str, Any]) -> None:
        for row, name in enumerate(self.plan.facts):
            value = info.get(name)
            if value is None and name == SUCCESS:
                value = info.get("is_success", 0.0)
            facts[row, copy] = np.nan if value is None else value

    def restore(self, seeds: Sequence[int], episodes: Sequence[int], actions: Sequence[np.ndarray]) -> np.ndarray:
        """Bring every copy to where it was: start its episode again and repeat its actions.

        A copied MuJoCo environment goes on differently, without an error; a repeated one does not.
        """
        self.seeds, self.episodes = [int(s) for s in seeds], [int(n) for n in episodes]
        obs = self.plan.observing.empty(self.size)
        for copy, taken in enumerate(actions):
            seen = self._start(copy)
            for action in self.plan.acting.rows(taken):
                self.elapsed[copy] += 1
                seen = self._steps[copy](action)[0]
            self.plan.observing.write(obs, copy, seen)
        return obs

    def of_goals(self, what: str, achieved: Any, goal: Any) -> np.ndarray:
        """What the environment says of `achieved "N G"` against `goal "N G"`, `Float32 "N"`.

        Args:
            what: the method that is asked, `compute_reward` or `compute_terminated`.
        """
        function = getattr(self.envs[0].unwrapped, what)
        info: list[dict[str, Any]] = [{} for _ in range(len(achieved))]
        try:
            said: Any = np.asarray(function(achieved, goal, info), np.float32)
        except (TypeError, ValueError, AttributeError, IndexError, KeyError):  # written for a single goal
            said = np.empty(0)
        if said.shape != (len(achieved),):
            said = np.array([function(a, g, {}) for a, g in zip(achieved, goal, strict=True)], np.float32)
        return said.reshape(len(achieved))

    def render(self, copy: int) -> np.ndarray:
        """The picture of a copy, `UInt8 "H W 3"`."""
        return np.asarray(self.envs[copy].render())

    def close(self) -> None:
        for env in self.envs:
            env.close()
