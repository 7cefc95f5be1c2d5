"""Copies of a Gymnasium environment as a batched environment: tensors, checks, exact resume."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gainstage.tasks.control.gym_copies import Backend, Plan
from gainstage.types.simulation import Stepped
from gainstage.types.spaces import Box, choices


class GymEnv:
    """Copies of a Gymnasium environment, each episode started from its own seed.

    Args:
        plan: the environment.
        backend: what moves the copies.
        size: copies.
        device: where tensors go; the environments themselves are on the CPU.
        exact_resume: whether an episode is a function of its seed and its actions. Where it is not, a loaded state
            starts new episodes.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        size: int,
        device: torch.device | str = "cpu",
        *,
        exact_resume: bool = True,
    ) -> None:
        self.plan, self.backend, self.size, self.exact_resume = plan, backend, size, exact_resume
        self.device = torch.device(device)
        self._on_cpu = self.device.type == "cpu"
        self.observation_space, self.action_space = plan.observing.space, plan.acting.space
        self._shape = (size, *self.action_space.shape)
        self._float = plan.observing.dtype == np.float32
        self._tops = None if isinstance(self.action_space, Box) else choices(self.action_space).numpy()
        self._seeds: list[int] = [0] * size
        self._episodes = np.zeros(size, np.int64)
        self._log = ActionLog(size, self.action_space.shape, plan.acting.dtype)
        self._obs = plan.observing.empty(0)

    def reset(self, seeds: Sequence[int]) -> Tensor:
        """Start every copy anew with its own seed.

        Raises:
            ValueError: not one seed a copy.
            FloatingPointError: an observation is not finite.
        """
        if len(seeds) != self.size:
            raise ValueError(f"reset: {self.size} copies need as many seeds, got {len(seeds)}")
        self._seeds = [int(seed) for seed in seeds]
        self._episodes[:] = 0
        self._log.clear()
        self._obs = self.backend.reset(self._seeds)
        self._check_obs(self._obs, "first observation")
        return self.observation()

    def step(self, action: Tensor) -> Stepped:
        """Move all copies by one action each.

        Raises:
            ValueError: the actions have not the space's shape or lie outside of a discrete one.
            FloatingPointError: an action, a reward or an observation is not finite.
        """
        actions = action.numpy(force=True)
        if actions.dtype != self.plan.acting.dtype:
            actions = actions.astype(self.plan.acting.dtype)
        self._check_actions(actions)
        self._log.append(actions)
        moved = self.backend.step(actions)
        if not _finite(moved.reward):
            self._complain("reward", moved.reward)
        self._check_obs(moved.next_obs, "observation")
        if moved.obs is not moved.next_obs:
            began = moved.terminated | moved.truncated if moved.began is None else moved.began
            self._check_obs(moved.obs, "first observation of the next episode")
            self._episodes += began
            self._log.restart(began)
        self._obs = moved.obs
        after = self._tensor(moved.next_obs)
        return Stepped(
            after if moved.obs is moved.next_obs else self._tensor(moved.obs),
            self._tensor(moved.reward),
            self._tensor(moved.terminated),
            self._tensor(moved.truncated),
            after,
            {name: self._tensor(row) for name, row in zip(self.plan.facts, moved.facts)} if self.plan.facts else {},
            None if moved.real is None else self._tensor(moved.real),
        )

    def observation(self) -> Tensor:
        """What the copies show now."""
        return self._tensor(self._obs)

    def render(self, copy: int = 0) -> np.ndarray:
        """The picture of a copy, `UInt8 "H W 3"`; needs an environment made with `render_mode="rgb_array"`."""
        return self.backend.render(copy)

    def state_dict(self) -> dict[str, Any]:
        """Seed, episode number and actions since its start of every copy. Nothing in it is changed by later steps."""
        if not self.exact_resume:
            return {"seeds": torch.tensor(self._seeds), "episodes": torch.from_numpy(self._episodes.copy())}
        lengths, actions = self._log.since_start()
        return {
            "seeds": torch.tensor(self._seeds),
            "episodes": torch.from_numpy(self._episodes.copy()),
            "elapsed": torch.from_numpy(lengths),
            "actions": torch.from_numpy(actions),
            "obs": torch.from_numpy(self._obs.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Repeat the actions of every copy's episode.

        Raises:
            ValueError: another number of copies, or the repeated episode looks different.
        """
        seeds = [int(seed) for seed in state["seeds"].tolist()]
        if len(seeds) != self.size:
            raise ValueError(f"{self.plan.name}: the saved state has {len(seeds)} copies, this environment {self.size}")
        episodes = state["episodes"].cpu().numpy()
        if not self.exact_resume:
            self._begin_anew(seeds, episodes)
            return
        lengths = state["elapsed"].cpu().numpy()
        pieces = np.split(state["actions"].cpu().numpy(), np.cumsum(lengths)[:-1])
        obs = self.backend.restore(seeds, episodes.tolist(), pieces)
        saved = state["obs"].cpu().numpy()
        if not np.array_equal(obs, saved):
            copy = int(np.nonzero((obs != saved).reshape(self.size, -1).any(1))[0][0])
            raise ValueError(
                f"{self.plan.name}: the same seed and the same {lengths[copy]} actions led copy {copy} somewhere else "
                "than before, so its episodes cannot be resumed exactly; set exact_resume: false, and a resumed run "
                "starts new episodes (gainstage check-env says what is not repeated)"
            )
        self._seeds, self._episodes, self._obs = seeds, episodes.copy(), obs
        self._log.fill(pieces)

    def _begin_anew(self, seeds: list[int], episodes: np.ndarray) -> None:
        warnings.warn(
            f"{self.plan.name}: its episodes cannot be resumed in their middle; every copy starts a new one",
            stacklevel=3,
        )
        self._log.clear()
        self._seeds, self._episodes = seeds, episodes + 1
        self._obs = self.backend.restore(seeds, self._episodes.tolist(), [self._log.none()] * self.size)

    def close(self) -> None:
        self.backend.close()

    def _tensor(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._on_cpu else tensor.to(self.device)

    def _check_actions(self, actions: np.ndarray) -> None:
        if actions.shape != self._shape:
            raise ValueError(
                f"{self.plan.name}: actions of shape {actions.shape} do not fit {self.size} copies, "
                f"expected {self._shape}"
            )
        if self._tops is not None:
            if actions.min() < 0 or (actions >= self._tops).any():
                raise ValueError(
                    f"{self.plan.name}: an action lies outside of the space: {actions.min()} to {actions.max()}, "
                    f"allowed are 0 to {self._tops.max() - 1}"
                )
        elif not _finite(actions):
            self._complain("action", actions)

    def _check_obs(self, obs: np.ndarray, what: str) -> None:
        if self._float and not _finite(obs):
            self._complain(what, obs)

    def _complain(self, what: str, values: np.ndarray) -> None:
        bad = ~np.isfinite(values.reshape(self.size, -1))
        copy = int(np.nonzero(bad.any(1))[0][0])
        value = values.reshape(self.size, -1)[copy][bad[copy]][0]
        raise FloatingPointError(
            f"{self.plan.name}: {what} of copy {copy} is {value} at step {self._log.elapsed(copy)} of its episode "
            f"{self._episodes[copy]} (copy seed {self._seeds[copy]})"
        )


def _finite(values: np.ndarray) -> bool:
    """Whether all numbers are finite. A dot product is the quicker look; where it overflows, the slower one decides."""
    return math.isfinite(np.vdot(values, values)) or bool(np.isfinite(values).all())


class ActionLog:
    """The actions of all copies since their episodes began, in one array that grows when it must.

    Args:
        size: copies.
        shape, dtype: of one action.
    """

    ROOM = 1024

    def __init__(self, size: int, shape: tuple[int, ...], dtype: Any) -> None:
        self._rows = np.empty((self.ROOM, size, *shape), dtype)
        self._end = 0
        self._begun = np.zeros(size, np.int64)

    def clear(self) -> None:
        self._end = 0
        self._begun[:] = 0

    def none(self) -> np.ndarray:
        """No action."""
        return self._rows[:0, 0]

    def append(self, actions: np.ndarray) -> None:
        if self._end == len(self._rows):
            self._make_room()
        self._rows[self._end] = actions
        self._end += 1

    def _make_room(self) -> None:
        """Drop what belongs to ended episodes; double the room where most of it is still needed."""
        first = int(self._begun.min())
        kept = self._rows[first : self._end]
        if 2 * len(kept) > len(self._rows):
            self._rows = np.empty((2 * len(self._rows), *self._rows.shape[1:]), self._rows.dtype)
        self._rows[: len(kept)] = kept
        self._begun -= first
        self._end = len(kept)

    def restart(self, done: np.ndarray) -> None:
        """The copies `Bool "B"` begin a new episode."""
        self._begun[done] = self._end

    def elapsed(self, copy: int) -> int:
        return int(self._end - self._begun[copy])

    def since_start(self) -> tuple[np.ndarray, np.ndarray]:
        """Lengths `Int64 "B"` of the running episodes, and their actions end to end."""
        pieces = [self._rows[begin : self._end, copy] for copy, begin in enumerate(self._begun)]
        return self._end - self._begun, np.concatenate(pieces)

    def fill(self, pieces: Sequence[np.ndarray]) -> None:
        """Take over the actions of running episodes, one array a copy."""
        self._end = max(len(piece) for piece in pieces)
        if self._end > len(self._rows):
            self._rows = np.empty((2 * self._end, *self._rows.shape[1:]), self._rows.dtype)
        for copy, piece in enumerate(pieces):
            self._begun[copy] = self._end - len(piece)
            self._rows[self._begun[copy] : self._end, copy] = piece
