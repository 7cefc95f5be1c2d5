"""Steps per second: thousands of copies in one tensor against a Python loop over as many Gymnasium environments.

    ./gs python benchmarks/batched_envs.py
    ./gs python benchmarks/batched_envs.py --tasks cart_pole --copies 256 1024 4096

Both take the same random actions and start again where an episode ends; the two take turns, so that a noisy machine
hits both, and the ratio of the medians is what counts. The loop does not even gather what its environments return.
Needs the extra `control`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import gymnasium
import torch

from gainstage.registry import build
from gainstage.types.spaces import Discrete, Space

TWINS = {
    "cart_pole": "CartPole-v1",
    "pendulum": "Pendulum-v1",
    "mountain_car": "MountainCar-v0",
    "mountain_car_continuous": "MountainCarContinuous-v0",
    "acrobot": "Acrobot-v1",
}
ACTIONS = 16
"""Batches of random actions, drawn before the clock starts and taken in turn."""


def random_actions(space: Space, copies: int) -> list[torch.Tensor]:
    if isinstance(space, Discrete):
        return [torch.randint(space.n, (copies,)) for _ in range(ACTIONS)]
    return [torch.rand(copies, *space.shape) * 2 - 1 for _ in range(ACTIONS)]


def batched(name: str, copies: int, steps: int, device: str) -> Callable[[], float]:
    """A function that takes `steps` steps of all copies and says how many steps a second that made."""
    env = build("task", name).make(copies, device)
    env.reset(range(copies))
    actions = [action.to(device) for action in random_actions(env.action_space, copies)]

    def run() -> float:
        started = time.perf_counter()
        for step in range(steps):
            env.step(actions[step % ACTIONS])
        if device != "cpu":
            torch.cuda.synchronize()
        return copies * steps / (time.perf_counter() - started)

    return run


def looped(name: str, copies: int, steps: int) -> Callable[[], float]:
    """The same of a list of Gymnasium environments."""
    envs = [gymnasium.make(TWINS[name]) for _ in range(copies)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    space = build("task", name).action_space
    actions = [list(action.numpy()) for action in random_actions(space, copies)]

    def run() -> float:
        started = time.perf_counter()
        for step in range(steps):
            for env, action in zip(envs, actions[step % ACTIONS], strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        return copies * steps / (time.perf_counter() - started)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TWINS), choices=list(TWINS))
    parser.add_argument("--copies", nargs="+", type=int, default=[4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200, help="steps of all copies a round of the tensors")
    parser.add_argument("--loop-steps", type=int, default=4, help="the same of the loop")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    print(f"steps a second, medians of {options.rounds} rounds, {options.threads} thread(s), {options.device}")
    for name in options.tasks:
        for copies in options.copies:
            ours = batched(name, copies, options.steps, options.device)
            theirs = looped(name, copies, options.loop_steps)
            ours(), theirs()
            pairs = [(ours(), theirs()) for _ in range(options.rounds)]
            fast, slow = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratios = sorted(a / b for a, b in pairs)
            print(
                f"  {name:24} {copies:6} copies: {fast / 1e6:7.2f} M against {slow / 1e3:7.1f} k, "
                f"ratio {fast / slow:6.0f} (rounds {ratios[0]:.0f} to {ratios[-1]:.0f})"
            )


if __name__ == "__main__":
    main()
