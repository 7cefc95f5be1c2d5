"""What is wrong with a task that is stepped in batches, in words."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gainstage.tasks.control.batched_env import seats
from gainstage.tasks.control.findings import Findings
from gainstage.types.simulation import BatchedEnv, Stepped
from gainstage.types.spaces import Box, Space, contains, describe_space, random_choices

FIELDS = ("obs", "next_obs", "reward", "terminated", "truncated")
COPIES = 4


def check_task(task: Any, *, steps: int = 1000) -> Findings:
    """Look at a control task for some steps of random actions in a few copies.

    Args:
        task: offers `make`, the spaces and `max_steps`.
        steps: to be looked at, of all copies together.
    """
    out = Findings()
    group = seats(task, 1)  # agents of one world are copies that belong together
    size = COPIES * group
    env = task.make(size)
    rounds = max(steps // size, 8)
    actions = random_actions(env.action_space, size, rounds)
    seeds = list(range(size))
    begun = time.perf_counter()
    walk = _walk(env, seeds, actions, out)
    out.seconds, out.steps = time.perf_counter() - begun, len(walk) * size
    if len(walk) < rounds:
        return out
    _check_finals(walk, out)
    _check_lengths(walk, task.max_steps, out)
    half = rounds // 2
    text = "the same seeds and actions bring other steps"
    _compare(_again(env, seeds, actions[: half + 1]), walk, "seed", text, out)
    second = slice(group, 2 * group)
    alone = task.make(group)
    again = _again(alone, seeds[second], [action[second] for action in actions[: half + 1]])
    text = "a copy does something else alone than in a batch, from the same seed"
    _compare(again, [_rows(step, second) for step in walk[: half + 1]], "copies", text, out)
    alone.close()
    _check_state(task, env, seeds, actions, walk, half, out)
    first = env.reset(seeds)
    if all(torch.equal(first[0], row) for row in first[1:]):
        text = "all seeds start from the same observation; fine if that is meant"
        out.add("seed", "one start", text, error=False)
    env.close()
    return out


def random_actions(space: Space, copies: int, steps: int) -> list[Tensor]:
    """`steps` actions `"B *"` within a space, the bounds themselves among them; 2 where there is no bound."""
    generator = torch.Generator().manual_seed(0)
    return [_random(space, copies, generator) for _ in range(steps)]


def _random(space: Space, copies: int, generator: torch.Generator) -> Tensor:
    if isinstance(space, Box):
        low, high = space.low.clamp(min=-2.0), space.high.clamp(max=2.0)
        share = (1.4 * torch.rand(copies, *space.shape, generator=generator) - 0.2).clamp(0, 1)
        return low + share * (high - low)
    return random_choices(space, copies, generator)


def _walk(env: BatchedEnv, seeds: Sequence[int], actions: Sequence[Tensor], out: Findings) -> list[Stepped]:
    """All steps, each looked at; fewer where one could not be taken."""
    steps: list[Stepped] = []
    try:
        seen = env.reset(seeds)
        _check_seen(env, seen, "after reset", out)
        for number, action in enumerate(actions, 1):
            step = env.step(action)
            _check_step(env, step, steps[-1] if steps else None, f"at step {number}", out)
            if out.errors:  # the next checks take right shapes for granted
                break
            steps.append(step)
    except Exception as error:
        out.add("step", "raises", f"raises {type(error).__name__} at step {len(steps) + 1}: {error}")
    return steps


def _check_seen(env: BatchedEnv, seen: Tensor, where: str, out: Findings) -> None:
    space = env.observation_space
    if contains(space, seen):
        return
    wanted = f"{describe_space(space)}, {space.dtype}"
    text = f"lies outside of {wanted}: {tuple(seen.shape)} {seen.dtype}"
    if tuple(seen.shape) == (env.size, *space.shape) and seen.dtype == space.dtype:
        if isinstance(space, Box):
            bad = ~((seen >= space.low) & (seen <= space.high)).reshape(env.size, -1)
            copy, entry = bad.nonzero()[0].tolist()
            low, high = (bound.reshape(-1)[entry] for bound in (space.low, space.high))
            value = seen.reshape(env.size, -1)[copy, entry]
            text = (
                f"lies outside its space: entry {entry} of copy {copy} is {value:g}, allowed are {low:g} to {high:g},"
            )
        else:
            text = f"lies outside of {describe_space(space)}: {seen.min()} to {seen.max()}"
    out.add("observation", "outside", f"{text} {where}")


def _check_step(env: BatchedEnv, step: Stepped, before: Stepped | None, where: str, out: Findings) -> None:
    _check_seen(env, step.obs, where, out)
    _check_seen(env, step.next_obs, where, out)
    for name, dtype in (("reward", torch.float32), ("terminated", torch.bool), ("truncated", torch.bool)):
        value = getattr(step, name)
        if value.dtype != dtype or tuple(value.shape) != (env.size,):
            text = (
                f"{name} is {value.dtype} of shape {tuple(value.shape)} {where}, wanted are {dtype} and ({env.size},)"
            )
            out.add("step", name, text)
    if not bool(torch.isfinite(step.reward).all()):
        out.add("reward", "finite", f"is {step.reward[~torch.isfinite(step.reward)][0].item()} {where}")
    if out.errors:
        return
    done = step.terminated | step.truncated
    same = ~done if step.real is None else ~done & step.real
    if not torch.equal(step.obs[same], step.next_obs[same]):
        out.add("observation", "two", f"obs and next_obs differ where no episode ended {where}")
    if before is not None and set(before.info) != set(step.info):
        text = f"the keys of info change {where}: {', '.join(sorted(set(before.info) ^ set(step.info)))}"
        out.add("info", "keys", text)
    for key, value in step.info.items():
        if not isinstance(value, Tensor) or len(value) != env.size:
            out.add("info", f"rows {key}", f"{key} is no tensor with a row for each of {env.size} copies {where}")


def _check_finals(walk: Sequence[Stepped], out: Findings) -> None:
    """Whether any episode's last observation differs from its successor's first one."""
    if all(torch.equal(step.next_obs, walk[0].next_obs) for step in walk):  # there is one observation only
        return
    done = [step.terminated | step.truncated for step in walk]
    ends = [(step.obs[flags], step.next_obs[flags]) for step, flags in zip(walk, done) if bool(flags.any())]
    if ends and all(torch.equal(first, last) for first, last in ends):
        text = "obs is next_obs at every end of an episode: the observation that the last action led to is lost"
        out.add("end", "final lost", f"{text}, or no episode begins anew")


def _check_lengths(walk: Sequence[Stepped], limit: int | None, out: Findings) -> None:
    """Lengths of episodes against the limit that the task says."""
    running = torch.zeros(len(walk[0].reward), dtype=torch.int64)
    for step in walk:
        running += 1 if step.real is None else step.real.cpu()
        done = (step.terminated | step.truncated).cpu()
        out.lengths += running[done].tolist()
        if limit is not None and bool((running[~done] >= limit).any()):
            text = f"an episode goes on after {limit} steps, where the task says that it is cut off"
            out.add("end", "limit", text)
        running[done] = 0
    if limit is None and not out.lengths:
        text = f"no episode ended within {len(walk)} steps and nothing limits them: set max_steps"
        out.add("end", "never", text, error=False)


def _again(env: BatchedEnv, seeds: Sequence[int], actions: Sequence[Tensor]) -> list[Stepped]:
    env.reset(seeds)
    return [env.step(action) for action in actions]


def _rows(step: Stepped, rows: slice) -> Stepped:
    obs, reward, terminated, truncated, after = (
        getattr(step, name)[rows] for name in ("obs", "reward", "terminated", "truncated", "next_obs")
    )
    return Stepped(obs, reward, terminated, truncated, after)


def _compare(got: Sequence[Stepped], wanted: Sequence[Stepped], about: str, text: str, out: Findings) -> None:
    for number, (a, b) in enumerate(zip(got, wanted), 1):
        if wrong := [name for name in FIELDS if not torch.equal(getattr(a, name), getattr(b, name))]:
            out.add(about, text, f"{text}: {', '.join(wrong)} at step {number}")
            return


def _check_state(
    task: Any, env: BatchedEnv, seeds: Sequence[int], actions: Sequence[Tensor], walk: Sequence[Stepped], half: int,
    out: Findings,
) -> None:  # fmt: skip
    """A saved state goes on as the environment did, in this process."""
    if not getattr(env, "exact_resume", True):
        out.add("state", "inexact", "its state cannot be saved: a resumed run starts new episodes", error=False)
        return
    _again(env, seeds, actions[:half])
    state: Mapping[str, Any] = env.state_dict()
    env.step(actions[half])
    other = task.make(env.size)
    other.reset([seed + 100 for seed in seeds])
    try:
        other.load_state_dict(state)
        _compare([other.step(actions[half])], [walk[half]], "state", "a loaded state does not go on as before", out)
    except Exception as error:
        out.add("state", "raises", f"a saved state cannot be loaded: {type(error).__name__}: {error}")
    other.close()
