"""What is put around batched environments: stacked observations, held actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gainstage.ops.masked import over
from gainstage.tasks.control.batched_env import TorchEnv
from gainstage.types.simulation import BatchedEnv, Stepped
from gainstage.types.spaces import Box, Piece, Space, describe_space


def stacked(space: Space, count: int) -> Box:
    """The space of `count` observations end to end along the last axis: a vector's entries, a picture's channels.

    Raises:
        ValueError: the observations are no Box with an axis.
    """
    if not isinstance(space, Box) or not space.shape:
        raise ValueError(f"stack: observations of {describe_space(space)} cannot be stacked")
    offset = (count - 1) * space.shape[-1]
    pieces = {name: Piece(p.start + offset, p.stop + offset, p.shape) for name, p in space.pieces.items()}
    low, high = (torch.cat([bound] * count, -1) for bound in (space.low, space.high))
    return Box(low, high, space.dtype, pieces)


class ObsStack:
    """Shows the last `count` observations together, the newest last. An episode begins with copies of its first one.

    Args:
        env: the environment; its `pieces` become those of the newest observation.
        count: observations that are shown, at least 2.
    """

    def __init__(self, env: BatchedEnv, count: int) -> None:
        if count < 2:
            raise ValueError(f"stack must be at least 2, got {count}")
        self.env, self.count = env, count
        self.observation_space = stacked(env.observation_space, count)
        self.action_space, self.size, self.device = env.action_space, env.size, env.device
        self._width = env.observation_space.shape[-1]
        self._seen = torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, seeds: Sequence[int]) -> Tensor:
        self._seen = self._first(self.env.reset(seeds))
        return self._seen

    def _first(self, obs: Tensor) -> Tensor:
        return torch.cat([obs] * self.count, -1)

    def step(self, action: Tensor) -> Stepped:
        stepped = self.env.step(action)
        after = torch.cat((self._seen[..., self._width :], stepped.next_obs), -1)
        obs = after
        if stepped.obs is not stepped.next_obs:
            obs = _rows(stepped.terminated | stepped.truncated, self._first(stepped.obs), after)
        self._seen = obs
        return replace(stepped, obs=obs, next_obs=after)

    def observation(self) -> Tensor:
        """What the copies show now."""
        return self._seen

    def state_dict(self) -> dict[str, Any]:
        return {"env": self.env.state_dict(), "seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.env.load_state_dict(state["env"])
        env: Any = self.env
        exact = getattr(env, "exact_resume", True)
        self._seen = state["seen"].to(self.device) if exact else self._first(env.observation())

    def close(self) -> None:
        self.env.close()


class ActionRepeat:
    """Holds every action for up to `count` steps and adds their rewards; an episode's end releases it.

    A copy whose episode ends before its batch mates are through waits at its successor's start. That needs an
    environment whose state is nothing but tensors `"B *"`; Gymnasium's have the setting `repeat`.

    Args:
        env: a torch environment.
        count: steps, at least 2. The environment's own limit goes on counting its own steps.
    """

    def __init__(self, env: TorchEnv, count: int) -> None:
        if count < 2:
            raise ValueError(f"repeat must be at least 2, got {count}")
        self.env, self.count = env, count
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.size, self.device = env.size, env.device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, seeds: Sequence[int]) -> Tensor:
        return self.env.reset(seeds)

    def step(self, action: Tensor) -> Stepped:
        total = self.env.step(action)
        for _ in range(self.count - 1):
            done = total.terminated | total.truncated
            if done.all():
                break
            waiting = self.env.state_dict()
            stepped = self.env.step(action)
            if done.any():
                self.env.load_state_dict(_choose(done, waiting, self.env.state_dict()))
            total = Stepped(
                obs=_rows(done, total.obs, stepped.obs),
                reward=total.reward + torch.where(done, 0.0, stepped.reward),
                terminated=torch.where(done, total.terminated, stepped.terminated),
                truncated=torch.where(done, total.truncated, stepped.truncated),
                next_obs=_rows(done, total.next_obs, stepped.next_obs),
                info={name: _rows(done, total.info[name], value) for name, value in stepped.info.items()},
            )
        return total

    def state_dict(self) -> dict[str, Any]:
        return self.env.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.env.load_state_dict(state)

    def close(self) -> None:
        self.env.close()


def _rows(flags: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(over(flags, yes), yes, no)


def _choose(flags: Tensor, yes: Mapping[str, Any], no: Mapping[str, Any]) -> dict[str, Any]:
    """Of two nested states the rows of one or the other."""
    return {
        name: _choose(flags, value, no[name]) if isinstance(value, Mapping) else _rows(flags, value, no[name])
        for name, value in yes.items()
    }
