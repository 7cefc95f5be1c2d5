"""Worlds of several agents that move at once: PettingZoo's parallel environments, one policy for all agents."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch

from gainstage.ops.extras import MissingExtra, require
from gainstage.registry import component
from gainstage.tasks.control.batched_env import Simulation
from gainstage.tasks.control.gym_actions import acting
from gainstage.tasks.control.gym_copies import Moved, Plan, episode_seed
from gainstage.tasks.control.gym_env import GymEnv
from gainstage.tasks.control.gym_spaces import observing


@component("task", "pettingzoo")
@dataclass
class PettingZoo(Simulation):
    """A parallel environment of PettingZoo. Every agent is a copy with its own observation, action and reward.

    The agents of one world are neighbours among the copies, whose number is a multiple of theirs. An agent that is out
    before its world restarts decides nothing until then.
    """

    id: str
    """`sisl/pursuit_v5`, or the name of any module with a `parallel_env`."""
    max_steps: int | None = None
    """Steps after which a world is cut off; None leaves it to the environment (`kwargs: {max_cycles: 500}`)."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    keys: list[str] | None = None
    """Entries of a dictionary observation that are kept; None is all of them."""
    exact_resume: bool = True
    """False for a world whose episodes do not repeat from their seed: a resumed run starts new ones."""

    def __post_init__(self) -> None:
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1 (or null for the environment's own), got {self.max_steps}")
        require("pettingzoo", extra="control")
        self.name = f"pettingzoo:{self.id}"  # type: ignore[misc]
        env = self.single()
        self.agents = list(env.possible_agents)
        spaces = [(env.observation_space(agent), env.action_space(agent)) for agent in self.agents]
        env.close()
        for agent, pair in zip(self.agents, spaces):
            if pair != spaces[0]:
                raise ValueError(
                    f"{self.id}: one policy cannot play all agents, their spaces differ: {self.agents[0]} has "
                    f"{spaces[0][0]} and {spaces[0][1]}, {agent} has {pair[0]} and {pair[1]}"
                )
        try:
            self.plan = Plan(
                name=self.name,
                make=self.single,
                observing=observing(spaces[0][0], self.keys),
                acting=acting(spaces[0][1]),
                limit=self.max_steps,
            )
        except ValueError as error:
            raise ValueError(f"{self.id}: {error}") from None
        self.observation_space, self.action_space = self.plan.observing.space, self.plan.acting.space

    def single(self) -> Any:
        """One world.

        Raises:
            ValueError: there is none of that name, or it has no parallel form.
            MissingExtra: a package that it needs is not installed.
        """
        place = f"pettingzoo.{self.id.replace('/', '.')}" if "/" in self.id else self.id
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is not None and not place.startswith(error.name):
                raise MissingExtra(f"{self.id} needs {error.name}, which is not installed") from None
            raise ValueError(f"id: there is no module {place}") from None
        except ImportError as error:  # PettingZoo says so of versions that are gone
            raise ValueError(f"id: {self.id}: {error}") from None
        if not hasattr(module, "parallel_env"):
            raise ValueError(f"id: {place} has no parallel_env; agents that take turns are not played here")
        try:
            return module.parallel_env(**self.kwargs)
        except Exception as error:  # whatever a constructor may raise
            raise ValueError(f"{self.id} cannot be made: {type(error).__name__}: {error}") from error

    def make(self, copies: int, device: torch.device | str = "cpu") -> GymEnv:
        """Worlds with `copies` agents in all.

        Raises:
            ValueError: their number is no multiple of the agents of one world.
        """
        if copies < 1 or copies % len(self.agents):
            raise ValueError(
                f"{self.name} has {len(self.agents)} agents: copies must be a multiple of that, got {copies}"
            )
        backend = Worlds(self.plan, self.agents, copies)
        return GymEnv(self.plan, backend, copies, device, exact_resume=self.exact_resume)


class Worlds:
    """Parallel environments whose agents are copies, side by side.

    Args:
        plan: the environment.
        agents: names of the agents of one world, in the order of the copies.
        size: copies, a multiple of the agents.
    """

    def __init__(self, plan: Plan, agents: Sequence[Any], size: int) -> None:
        self.plan, self.agents, self.size = plan, agents, size
        self.envs = [plan.make() for _ in range(size // len(agents))]
        self.elapsed = [0] * len(self.envs)
        self.seeds, self.episodes = [0] * size, [0] * size
        self.obs = plan.observing.empty(size)

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        return self.restore(seeds, [0] * self.size, [np.empty(0)] * self.size)

    def restore(self, seeds: Sequence[int], episodes: Sequence[int], actions: Sequence[np.ndarray]) -> np.ndarray:
        """Start every world's episode again and repeat its actions. The world has the seed of its first agent."""
        self.seeds, self.episodes = list(seeds), list(episodes)
        self.obs = self.plan.observing.empty(self.size)
        for number in range(len(self.envs)):
            self._start(number, self.obs)
            rows = slice(number * len(self.agents), (number + 1) * len(self.agents))
            for taken in zip(*actions[rows], strict=True):
                seen = self._act(number, np.stack(taken))[0]
                self._write(self.obs, number, seen)
        return self.obs.copy()

    def _start(self, number: int, into: np.ndarray) -> None:
        first = number * len(self.agents)
        self.elapsed[number] = 0
        seen, _ = self.envs[number].reset(seed=episode_seed(self.seeds[first], self.episodes[first]))
        self._write(into, number, seen)

    def _write(self, into: np.ndarray, number: int, seen: dict[Any, Any]) -> None:
        for index, agent in enumerate(self.agents):
            if agent in seen:
                self.plan.observing.write(into, number * len(self.agents) + index, seen[agent])

    def _act(self, number: int, actions: np.ndarray) -> Any:
        """A step of one world, of the agents that are still in it."""
        env = self.envs[number]
        rows = self.plan.acting.rows(actions)
        self.elapsed[number] += 1
        try:
            return env.step({agent: row for agent, row in zip(self.agents, rows, strict=True) if agent in env.agents})
        except Exception as error:
            error.add_note(f"in {self.plan.name}, world {number}, step {self.elapsed[number]} of its episode")
            raise

    def step(self, actions: np.ndarray) -> Moved:
        """Move every agent; a world without agents starts its next episode."""
        next_obs = self.obs.copy()  # of an agent that is out, its last
        reward = np.zeros(self.size, np.float32)
        flags = np.zeros((4, self.size), np.bool_)
        terminated, truncated, real, began = flags
        for number, env in enumerate(self.envs):
            first = number * len(self.agents)
            rows = slice(first, first + len(self.agents))
            playing = set(env.agents)
            seen, paid, ended, cut, _ = self._act(number, actions[rows])
            self._write(next_obs, number, seen)
            over = self.elapsed[number] == self.plan.limit
            for copy, agent in enumerate(self.agents, first):
                if agent in playing:
                    real[copy], reward[copy] = True, paid[agent]
                    terminated[copy], truncated[copy] = ended[agent], cut[agent] or over
            began[rows] = over or not env.agents
        self.obs = next_obs
        if began.any():
            self.obs = next_obs.copy()
            for number in np.unique(np.nonzero(began)[0] // len(self.agents)).tolist():
                for copy in range(number * len(self.agents), (number + 1) * len(self.agents)):
                    self.episodes[copy] += 1
                self._start(number, self.obs)
        return Moved(
            next_obs, self.obs, reward, terminated, truncated, np.zeros((0, self.size), np.float32),
            None if real.all() else real, began,
        )  # fmt: skip

    def of_goals(self, what: str, achieved: Any, goal: Any) -> NoReturn:
        raise ValueError(f"{self.plan.name}: its rewards do not depend on goals")

    def render(self, copy: int) -> np.ndarray:
        return np.asarray(self.envs[copy // len(self.agents)].render())

    def close(self) -> None:
        for env in self.envs:
            env.close()
