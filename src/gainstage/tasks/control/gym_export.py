"""Our environments as Gymnasium's, for libraries that train in those."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gainstage.ops.extras import require
from gainstage.tasks.control.gym_spaces import gym_space, in_pieces
from gainstage.types.spaces import Box, Discrete, Space


def to_gymnasium(what: Any, copies: int | None = None) -> Any:
    """A task or a batched environment as an environment of Gymnasium.

    Observations that are laid out in pieces are a dictionary again, as goal environments are expected to have it.

    Args:
        what: a control task, or an environment made by one.
        copies: None makes a `gymnasium.Env` of a task; a number makes a `gymnasium.vector.VectorEnv`, which a batched
            environment always becomes. Its copies restart within the step (`AutoresetMode.SAME_STEP`) and
            `info["final_obs"]` holds what the last action led to.

    Raises:
        MissingExtra: Gymnasium is not installed.
        ValueError: neither a task nor an environment, or copies for what has them already.
    """
    require("gymnasium", extra="control")
    single, vector = _classes()
    if hasattr(what, "make") and hasattr(what, "problems"):
        return single(what) if copies is None else vector(what.make(copies))
    if not (hasattr(what, "step") and hasattr(what, "size")):
        raise ValueError(f"to_gymnasium takes a control task or a batched environment, got {type(what).__name__}")
    if copies is not None and copies != what.size:
        raise ValueError(f"copies: the environment has {what.size} of them already, not {copies}")
    return vector(what)


def _shown(space: Space, obs: Tensor) -> Any:
    """Observations `"B *"` as Gymnasium has them in a batch."""
    return in_pieces(space, np.array(obs.detach().cpu().numpy()))


def _one(space: Space, obs: Any) -> Any:
    """The only observation of a batch of one."""
    if isinstance(obs, dict):
        return {name: value[0] for name, value in obs.items()}
    return np.int64(obs[0]) if isinstance(space, Discrete) else obs[0]


def _actions(space: Space, actions: Any, size: int, device: torch.device) -> Tensor:
    array = np.array(actions, np.float32 if isinstance(space, Box) else np.int64)
    return torch.from_numpy(array.reshape(size, *space.shape)).to(device)


@functools.cache
def _classes() -> tuple[Any, Any]:
    """The two classes; made here because Gymnasium's are their bases, and it is an optional package."""
    import gymnasium
    from gymnasium.vector import AutoresetMode
    from gymnasium.vector.utils import batch_space

    class Single(gymnasium.Env):
        """One copy of a task's environment."""

        metadata = {"render_modes": []}

        def __init__(self, task: Any) -> None:
            self.task, self.env = task, task.make(1)
            self.observation_space = gym_space(self.env.observation_space)
            self.action_space = gym_space(self.env.action_space)
            self._running = False

        def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            own = seed if seed is not None else int(self.np_random.integers(2**31))
            self._running = True
            return self._show(self.env.reset([own])), {}

        def step(self, action: Any) -> Any:
            if not self._running:
                raise gymnasium.error.ResetNeeded("the episode is over, or none was begun: call reset first")
            if not self.action_space.contains(action):
                raise ValueError(f"the action {action!r} lies outside of {self.action_space}")
            stepped = self.env.step(_actions(self.env.action_space, action, 1, self.env.device))
            terminated, truncated = bool(stepped.terminated[0]), bool(stepped.truncated[0])
            self._running = not (terminated or truncated)
            info = {name: value[0].cpu().numpy()[()] for name, value in stepped.info.items()}
            return self._show(stepped.next_obs), float(stepped.reward[0]), terminated, truncated, info

        def _show(self, obs: Tensor) -> Any:
            space = self.env.observation_space
            return _one(space, _shown(space, obs))

        def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
            """The reward of achieved against desired goals, of one or of many, as goal environments offer it."""
            achieved, goal = (torch.as_tensor(np.asarray(v, np.float32)) for v in (achieved_goal, desired_goal))
            paid = self.task.compute_reward(achieved.reshape(-1, achieved.shape[-1]), goal.reshape(-1, goal.shape[-1]))
            return float(paid[0]) if achieved.dim() == 1 else paid.numpy()

        def close(self) -> None:
            self.env.close()

    class Vector(gymnasium.vector.VectorEnv):
        """All copies of a batched environment."""

        metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

        def __init__(self, env: Any) -> None:
            self.env, self.num_envs = env, env.size
            self.single_observation_space = gym_space(env.observation_space)
            self.single_action_space = gym_space(env.action_space)
            self.observation_space = batch_space(self.single_observation_space, self.num_envs)
            self.action_space = batch_space(self.single_action_space, self.num_envs)

        def reset(self, *, seed: Any = None, options: Mapping[str, Any] | None = None) -> Any:
            if options is not None and "reset_mask" in options:
                raise ValueError("copies restart by themselves within the step: reset takes no reset_mask")
            super().reset(seed=seed if isinstance(seed, int) else None)
            if isinstance(seed, int):
                seeds = [seed + copy for copy in range(self.num_envs)]
            else:
                drawn = self.np_random.integers(2**31, size=self.num_envs).tolist()
                given = [None] * self.num_envs if seed is None else list(seed)
                seeds = [own if one is None else one for one, own in zip(given, drawn, strict=True)]
            return _shown(self.env.observation_space, self.env.reset(seeds)), {}

        def step(self, actions: Any) -> Any:
            space = self.env.observation_space
            stepped = self.env.step(_actions(self.env.action_space, actions, self.num_envs, self.env.device))
            terminated, truncated = stepped.terminated.cpu().numpy(), stepped.truncated.cpu().numpy()
            done = terminated | truncated
            facts = {name: value.cpu().numpy() for name, value in stepped.info.items()}
            infos: dict[str, Any] = {}
            for name, value in facts.items():
                infos[name], infos[f"_{name}"] = value, ~done
            if done.any():
                final = np.full(self.num_envs, None, object)
                after = _shown(space, stepped.next_obs)
                for copy in np.nonzero(done)[0]:
                    final[copy] = {k: v[copy] for k, v in after.items()} if isinstance(after, dict) else after[copy]
                infos |= {"final_obs": final, "_final_obs": done, "_final_info": done}
                infos["final_info"] = facts | {f"_{name}": done for name in facts}
            reward = stepped.reward.cpu().numpy().astype(np.float64)
            return _shown(space, stepped.obs), reward, terminated, truncated, infos

        def close_extras(self, **kwargs: Any) -> None:
            self.env.close()

    return Single, Vector
