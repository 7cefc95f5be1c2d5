"""Vector environments made by somebody else, with each of their ways to restart; envpool."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from gainstage.ops.extras import MissingExtra, available
from gainstage.tasks.control.gym_actions import acting
from gainstage.tasks.control.gym_copies import FINAL, SUCCESS, Moved, Plan, episode_seed
from gainstage.tasks.control.gym_env import GymEnv
from gainstage.tasks.control.gym_spaces import observing


def from_vector_env(
    vec: Any,
    *,
    keys: Sequence[str] | None = None,
    facts: Sequence[str] = (),
    device: torch.device | str = "cpu",
    mode: str | None = None,
) -> GymEnv:
    """A Gymnasium vector environment as a batched environment.

    Each of its autoreset modes is met as it is: `Disabled` restarts the copies that ended within the step, each with a
    seed of its own; `SameStep` takes the final observation out of `info`; under `NextStep` the step after an end is the
    environment's own restart, which `Stepped.real` marks: it is no transition.

    Args:
        vec: the vector environment; it is closed with what is returned.
        keys: entries of dictionary observations that are kept.
        facts: numbers to be taken from `info` at every step; `success` also finds `is_success`.
        device: where tensors go.
        mode: `Disabled`, `SameStep` or `NextStep`, for an environment that does not say it in its metadata.

    Raises:
        ValueError: the mode is not known, or a space cannot be used.
    """
    said = mode if mode is not None else (vec.metadata or {}).get("autoreset_mode")
    said = getattr(said, "value", said)
    if said not in _MODES:
        raise ValueError(
            f"the vector environment says of its autoreset mode {said!r}; give mode= one of {', '.join(_MODES)}"
        )
    spec = getattr(vec, "spec", None)
    plan = Plan(
        name=spec.id if spec is not None else type(vec).__name__,
        make=lambda: vec,
        observing=observing(vec.single_observation_space, keys),
        acting=acting(vec.single_action_space),
        facts=tuple(facts),
    )
    return GymEnv(plan, _MODES[said](plan, vec), vec.num_envs, device, exact_resume=False)


class _Vector:
    """A vector environment that restarts nothing by itself."""

    def __init__(self, plan: Plan, vec: Any) -> None:
        self.plan, self.vec, self.size = plan, vec, vec.num_envs
        self.seeds: list[int] = [0] * self.size
        self.episodes = [0] * self.size

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        return self.restore(seeds, [0] * self.size, [])

    def restore(self, seeds: Sequence[int], episodes: Sequence[int], actions: Sequence[np.ndarray]) -> np.ndarray:
        self.seeds, self.episodes = list(seeds), list(episodes)
        return self.plan.observing.batch(self.vec.reset(seed=self._next_seeds())[0])

    def _next_seeds(self) -> list[int]:
        return [episode_seed(seed, number) for seed, number in zip(self.seeds, self.episodes, strict=True)]

    def _step(self, actions: np.ndarray) -> tuple[np.ndarray, Any, Any, np.ndarray, np.ndarray, np.ndarray]:
        """The raw observation beside what is common to all modes."""
        seen, reward, terminated, truncated, info = self.vec.step(self.plan.acting.batch(actions))
        reward, terminated, truncated = (
            np.array(value, dtype)
            for value, dtype in ((reward, np.float32), (terminated, np.bool_), (truncated, np.bool_))
        )
        return self.plan.observing.batch(seen), seen, info, reward, terminated, truncated

    def step(self, actions: np.ndarray) -> Moved:
        next_obs, _, info, reward, terminated, truncated = self._step(actions)
        facts = self._facts(info)
        obs, done = next_obs, terminated | truncated
        if done.any():
            for copy in np.nonzero(done)[0]:
                self.episodes[copy] += 1
            first, _ = self.vec.reset(seed=self._next_seeds(), options={"reset_mask": done})
            obs = next_obs.copy()
            obs[done] = self.plan.observing.batch(first)[done]
        return Moved(next_obs, obs, reward, terminated, truncated, facts)

    def _facts(self, info: dict[str, Any]) -> np.ndarray:
        """Facts of a step; those of an episode's last step may lie in `final_info`."""
        out = np.full((len(self.plan.facts), self.size), np.nan, np.float32)
        for row, name in enumerate(self.plan.facts):
            if name == SUCCESS:
                out[row] = 0.0
            for source in (info, info.get("final_info") or {}):
                key = "is_success" if name == SUCCESS and name not in source else name
                if key in source:
                    there = np.asarray(source.get(f"_{key}", np.ones(self.size, np.bool_)))
                    out[row][there] = np.asarray(source[key], np.float32)[there]
        return out

    def of_goals(self, what: str, achieved: Any, goal: Any) -> NoReturn:
        raise ValueError(f"{self.plan.name}: a vector environment offers no rewards of other goals; use task gym:ID")

    def render(self, copy: int) -> np.ndarray:
        frames = self.vec.render()
        if frames is None:
            raise ValueError(f"{self.plan.name}: nothing to see; make it with render_mode='rgb_array'")
        return np.asarray(frames[copy])

    def close(self) -> None:
        self.vec.close()


class _SameStep(_Vector):
    """Restarts within the step and hands the final observation over in `info`."""

    def step(self, actions: np.ndarray) -> Moved:
        obs, _, info, reward, terminated, truncated = self._step(actions)
        done, next_obs = terminated | truncated, obs
        if done.any():
            final = next((info[key] for key in FINAL if key in info), None)
            if final is None:
                raise ValueError(
                    f"{self.plan.name}: an episode ended, but info has no final_obs: the observation that its last "
                    "action led to is lost"
                )
            next_obs = obs.copy()
            for copy in np.nonzero(done)[0].tolist():
                self.plan.observing.write(next_obs, copy, _of_copy(final, copy))
        return Moved(next_obs, obs, reward, terminated, truncated, self._facts(info))


def _of_copy(final: Any, copy: int) -> Any:
    """One copy's final observation: of an array of objects, or of a dictionary or tuple of arrays."""
    if isinstance(final, dict):
        return {key: _of_copy(value, copy) for key, value in final.items()}
    if isinstance(final, tuple):
        return tuple(_of_copy(value, copy) for value in final)
    return final[copy]


class _NextStep(_Vector):
    """Spends the step after an end on the restart and ignores its action."""

    def restore(self, seeds: Sequence[int], episodes: Sequence[int], actions: Sequence[np.ndarray]) -> np.ndarray:
        self.ended = np.zeros(self.size, np.bool_)
        return super().restore(seeds, episodes, actions)

    def step(self, actions: np.ndarray) -> Moved:
        obs, _, info, reward, terminated, truncated = self._step(actions)
        real = ~self.ended
        self.ended = terminated | truncated
        return Moved(obs, obs, reward, terminated, truncated, self._facts(info), real)


_MODES: dict[Any, type[_Vector]] = {"Disabled": _Vector, "SameStep": _SameStep, "NextStep": _NextStep}


# -- envpool ----------------------------------------------------------------------------------------------------------


def envpool_env(
    id: str,
    size: int,
    device: torch.device | str = "cpu",
    *,
    keys: Sequence[str] | None = None,
    facts: Sequence[str] = (),
    **settings: Any,
) -> GymEnv:
    """Copies inside envpool's threads. Their episodes cannot be started again from a seed, so no resume is exact.

    Args:
        id: envpool's name of the environment, mostly Gymnasium's.
        size: copies.
        device, keys, facts: as `from_vector_env` has them.
        settings: further arguments of `envpool.make`, such as `max_episode_steps`.

    Raises:
        MissingExtra: envpool is not installed.
        ValueError: it has no such environment.
    """
    if not available("envpool"):
        raise MissingExtra("envpool is not installed: pip install envpool (or use copies: sync or process)")
    backend = _EnvPool(id, size, settings)
    with _quiet():
        seen, acted = backend.pool.observation_space, backend.pool.action_space
    backend.plan = Plan(
        name=f"envpool {id}",
        make=lambda: backend.pool,
        observing=observing(seen, keys),
        acting=acting(acted),
        facts=tuple(facts),
    )
    return GymEnv(backend.plan, backend, size, device, exact_resume=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Gymnasium's warnings of float64 bounds that envpool writes as float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


class _EnvPool:
    plan: Plan

    def __init__(self, id: str, size: int, settings: dict[str, Any]) -> None:
        self.id, self.size, self.settings = id, size, settings
        self.pool: Any = None
        self._make([*range(size)])

    def _make(self, seeds: list[int]) -> None:
        import envpool

        if self.id not in envpool.list_all_envs():
            raise ValueError(f"copies: envpool has no environment {self.id!r}; use copies: sync or process")
        self.close()
        with _quiet():
            self.pool = envpool.make(self.id, env_type="gymnasium", num_envs=self.size, env_seed=seeds, **self.settings)

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        return self.restore(seeds, [0] * self.size, [])

    def restore(self, seeds: Sequence[int], episodes: Sequence[int], actions: Sequence[np.ndarray]) -> np.ndarray:
        self._make([episode_seed(seed, number) for seed, number in zip(seeds, episodes, strict=True)])
        return self.plan.observing.batch(self.pool.reset()[0])

    def step(self, actions: np.ndarray) -> Moved:
        seen, reward, terminated, truncated, info = self.pool.step(self.plan.acting.batch(actions))
        next_obs = self.plan.observing.batch(seen)
        obs, done = next_obs, terminated | truncated
        if done.any():
            obs = next_obs.copy()
            obs[done] = self.plan.observing.batch(self.pool.reset(np.nonzero(done)[0].astype(np.int32))[0])
        facts = np.full((len(self.plan.facts), self.size), np.nan, np.float32)
        for row, name in enumerate(self.plan.facts):
            facts[row] = info.get(name, np.nan)
        return Moved(next_obs, obs, np.array(reward, np.float32), np.array(terminated), np.array(truncated), facts)

    def of_goals(self, what: str, achieved: Any, goal: Any) -> NoReturn:
        raise ValueError(f"{self.id}: envpool offers no rewards of other goals; use copies: sync or process")

    def render(self, copy: int) -> NoReturn:
        raise ValueError(f"{self.id}: envpool's environments are not rendered; use copies: sync or process")

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
            self.pool = None
