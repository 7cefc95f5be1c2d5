"""Looking on at tasks that are stepped: episodes from held-out starts, played by a policy that does not learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gainstage.chain import build_task
from gainstage.measure.evaluate import Answer, EvalRecord
from gainstage.ops.masked import over
from gainstage.ops.noise import mix
from gainstage.policies.snapshots import Models
from gainstage.recipe import of_run
from gainstage.registry import RecipeError
from gainstage.tasks.control.batched_env import seats
from gainstage.types import Problem, Stop

COPIES = 64
"""Episodes that are played side by side, at most."""
LONGEST = 100_000
"""Steps after which an episode that nothing ends is given up."""


def play(
    task: Any, policy: Any, problems: Sequence[Problem], samples: int, *, explore: bool,
    copies: int = COPIES, frames: Callable[[Any], None] | None = None,
) -> list[EvalRecord]:  # fmt: skip
    """`samples` episodes from each start; an answer is an episode, its reward the undiscounted return.

    Where the world tells `success`, an episode is right if it says so at its last step.

    The policy's statistics do not move. Everybody who is asked for the same problems starts from the same states.

    Args:
        explore: draw actions as in training; false: the likeliest action.
        copies: episodes at once.
        frames: called with the environment before every step of the first wave, for films.
    """
    starts = [(place, sample) for place in range(len(problems)) for sample in range(samples)]
    seeds = [mix(int(problems[place].meta["seed"]), "sample", sample) for place, sample in starts]
    answers: list[Answer] = []
    size = seats(task, min(copies, len(seeds)))
    env = task.make(size, policy.device)
    try:
        for first in range(0, len(seeds), size):
            wave = seeds[first : first + size]
            spare = [mix("spare", copy) for copy in range(size - len(wave))]
            answers += _wave(env, policy, [*wave, *spare], explore, frames if first == 0 else None)[: len(wave)]
    finally:
        env.close()
    rows = [answers[first : first + samples] for first in range(0, len(answers), samples)]
    return [EvalRecord(problem.id, tuple(row)) for problem, row in zip(problems, rows, strict=True)]


def player(run: Path, task: Any = None, device: torch.device | str = "cpu") -> tuple[Any, Any]:
    """The task of a finished run and the policy that it left, ready to play.

    Args:
        run: its folder, with `recipe.yaml` and `final/`.
        task: another task with the same spaces, as a recipe names it.

    Raises:
        RecipeError: no finished run, one of a language model, or weights that do not fit the other task.
    """
    made = build_task(of_run(run).task if task is None else task).it
    if "simulator" not in made.capabilities:
        raise RecipeError(f"{run}: {made.name} is no task that is stepped; use gainstage evaluate --policy {run}")
    return made, final_policy(run, made, device)


def final_policy(run: Path, task: Any, device: torch.device | str = "cpu") -> Any:
    """The policy that a finished run left, made for a task with the same spaces.

    Args:
        run: its folder, with `recipe.yaml` and `final/`.
        task: one that is stepped.

    Raises:
        RecipeError: no finished run, one of a language model, or weights that do not fit the task.
    """
    recipe = of_run(run)
    if not (run / "final").is_dir():
        raise RecipeError(f"{run} is not finished (no final/); go on with gainstage train --resume {run}")
    policy = Models(recipe.models, ["policy"], device=device, task=task)["policy"]
    if not hasattr(policy, "to_env"):
        raise RecipeError(f"{run}: its policy writes text and acts in no environment")
    policy.load(run / "final")
    return policy


def _wave(env: Any, policy: Any, seeds: Sequence[int], explore: bool, frames: Any) -> list[Answer]:
    """One episode of every copy; a copy that is done is stepped on unheeded until all are."""
    obs = env.reset(seeds)
    size = len(seeds)
    total, length = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.int64)
    running = torch.ones(size, dtype=torch.bool)
    ended = torch.zeros(size, dtype=torch.bool)
    success: Tensor | None = None
    memory = policy.initial_state(size) if hasattr(policy, "initial_state") else None
    for _ in range(LONGEST):
        if frames is not None:
            frames(env)
        act = policy.act(obs, memory, explore=explore)
        stepped = env.step(policy.to_env(act.action))
        obs, memory = stepped.obs, act.state
        if hasattr(policy, "rewarded"):  # a policy that is asked for a return
            memory = policy.rewarded(memory, stepped.reward)
        total += torch.where(running, stepped.reward.cpu().double(), 0.0)
        length += running
        if "success" in stepped.info:
            now = stepped.info["success"].cpu().bool()
            success = now if success is None else torch.where(running, now, success)
        done = (stepped.terminated | stepped.truncated).cpu()
        ended |= running & stepped.terminated.cpu()
        running &= ~done
        if not bool(running.any()):
            break
        if memory is not None and bool(done.any()):
            memory = torch.where(over(done.to(memory.device), memory), 0.0, memory)
    return [
        Answer(
            float(total[copy]),
            None if success is None else bool(success[copy]),
            int(length[copy]),
            Stop.TERMINATED if ended[copy] else Stop.TIME_LIMIT,
        )
        for copy in range(size)
    ]
