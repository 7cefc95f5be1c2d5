"""What is wrong with a single Gymnasium environment, in words."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gainstage.tasks.control.findings import Findings
from gainstage.tasks.control.gym_actions import acting
from gainstage.tasks.control.gym_copies import FINAL
from gainstage.tasks.control.gym_spaces import follow, leaves, observing


@dataclass
class Episode:
    """What one episode of a single environment was."""

    seed: int
    actions: list[Any] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    end: str = ""


def check_single(
    make: Callable[[], Any], *, steps: int = 1000, limit: int | None = None, keys: Sequence[str] | None = None
) -> Findings:
    """Look at a Gymnasium environment for some steps of random actions.

    Args:
        make: makes one, without a wrapper that counts steps.
        steps: to be looked at.
        limit: steps after which an episode is cut off by the outside.
        keys: entries of a dictionary observation that are used.
    """
    out = Findings()
    env = make()
    _check_spaces(env, keys, out)
    env.action_space.seed(0)
    resets = _count_resets(env)
    episodes: list[Episode] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while out.steps < steps:
            episode = _episode(env, len(episodes), min(limit or steps, steps - out.steps), resets, out)
            if episode is None:
                break
            episodes.append(episode)
            out.lengths += [len(episode.actions)] if episode.end or len(episode.actions) == limit else []
        if episodes and len(episodes[0].actions):
            _check_seeds(make, env, episodes, out)
            _check_ends(episodes, limit, out)
    env.close()
    return out


def _check_spaces(env: Any, keys: Sequence[str] | None, out: Findings) -> None:
    from gymnasium import spaces

    for name, space, layout in (
        ("observation space", env.observation_space, lambda s: observing(s, keys)),
        ("action space", env.action_space, acting),
    ):
        try:
            layout(space)
        except ValueError as error:
            out.add(name, name, str(error))
    for path, leaf in leaves(env.action_space):
        if isinstance(leaf, spaces.Box) and not leaf.is_bounded():
            text = f"{_place(path)}the bounds are not finite, so that actions cannot be squashed into them: {leaf}"
            out.add("action space", "unbounded", text, error=False)


def _count_resets(env: Any) -> list[int]:
    """A counter of calls of the innermost environment's `reset`, which nobody but us should call."""
    inner, count = env.unwrapped, [0]
    reset = inner.reset

    def counted(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return reset(*args, **kwargs)

    inner.reset = counted
    return count


def _episode(env: Any, seed: int, limit: int, resets: list[int], out: Findings) -> Episode | None:
    """One episode, with everything that a step can get wrong; None where it could not go on."""
    episode = Episode(seed)
    try:
        got = env.reset(seed=seed)
    except Exception as error:
        out.add("reset", "reset raises", f"reset(seed={seed}) raises {type(error).__name__}: {error}")
        return None
    if not (isinstance(got, tuple) and len(got) == 2 and isinstance(got[1], dict)):
        out.add("reset", "reset returns", f"reset returns {_kind(got)}, wanted are an observation and a dictionary")
        return None
    _check_observation(env.observation_space, got[0], "after reset", out)
    episode.seen.append(_kept(got[0]))
    before, keys = got[0], None
    while not episode.end and len(episode.actions) < limit:
        action, number = env.action_space.sample(), len(episode.actions) + 1
        where = f"at step {number} of episode {seed}"
        given, calls = _kept(action), resets[0]
        begun = time.perf_counter()
        try:
            got = env.step(action)
        except Exception as error:
            out.add("step", "step raises", f"step raises {type(error).__name__} {where}: {error}")
            return None
        out.seconds += time.perf_counter() - begun
        if not (isinstance(got, tuple) and len(got) == 5 and isinstance(got[4], dict)):
            text = "observation, reward, terminated, truncated and a dictionary"
            out.add("step", "step returns", f"step returns {_kind(got)} {where}, wanted are {text}")
            return None
        seen, reward, terminated, truncated, info = got
        out.steps += 1
        episode.actions.append(given)
        _check_observation(env.observation_space, seen, where, out)
        _check_reward(reward, where, out)
        _check_flags(terminated, truncated, where, out)
        if not _equal(given, action):
            out.add("action", "action changed", f"step changes the action that it is given, {where}", error=False)
        if _shares(before, seen):
            text = "the same array is returned again with other contents: whoever keeps observations sees them change"
            out.add("observation", "reused", f"{text} ({where})", error=False)
        ended = bool(terminated or truncated)
        if keys is not None and set(info) != keys and not ended:
            text = f"the keys of info change {where}: {', '.join(sorted(map(str, set(info) ^ keys)))}"
            out.add("info", "keys", text, error=False)
        keys = set(info)
        _check_final(ended, resets[0] > calls, info, where, out)
        if resets[0] > calls:
            seen = next((info[key] for key in FINAL if info.get(key) is not None), seen)
        before = seen
        episode.seen.append(_kept(seen))
        episode.rewards.append(float(reward) if _is_number(reward) else math.nan)
        episode.end = "terminated" if terminated else "truncated" if truncated else ""
    if episode.end and seed == 0:
        _check_after_end(env, resets, out)
    return episode


def _check_after_end(env: Any, resets: list[int], out: Findings) -> None:
    calls = resets[0]
    with contextlib.suppress(Exception):  # raising there is right
        env.step(env.action_space.sample())
    if resets[0] > calls:
        text = (
            "a step after the end restarts the episode and ignores its action. Here nothing steps after an end, but a "
            "loop that stores such a step stores a transition that never happened"
        )
        out.add("end", "next step", text, error=False)


def _check_final(ended: bool, restarted: bool, info: dict[str, Any], where: str, out: Findings) -> None:
    if not restarted:
        return
    if not ended:
        out.add("end", "silent restart", f"step restarts the episode {where}, but neither flag says that it ended")
    elif not any(info.get(key) is not None for key in FINAL):
        text = (
            "step restarts the episode by itself and returns the next one's first observation: the one that the last "
            "action led to is lost. Leave the wrapper out that does it"
        )
        out.add("end", "final lost", f"{text} ({where})")


def _check_observation(space: Any, seen: Any, where: str, out: Findings) -> None:
    for path, part in leaves(space):
        place = _place(path)
        try:
            value = follow(seen, path)
        except (KeyError, IndexError, TypeError):
            out.add("observation", f"missing {path}", f"{place}missing {where}; the space is {space}")
            continue
        if fault := _fault(part, value):
            out.add("observation", f"{path} {fault[0]}", f"{place}{fault[1]} {where}")


def _fault(space: Any, value: Any) -> tuple[str, str] | None:
    """Kind and text of what keeps a value out of its space."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        if not isinstance(value, np.ndarray | np.generic):
            return "kind", f"is a {type(value).__name__}, not an array of {space.dtype},"
        value = np.asarray(value)
        if value.shape != space.shape:
            return "shape", f"has shape {value.shape}, not {space.shape},"
        if np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
            index = tuple(np.argwhere(~np.isfinite(value))[0].tolist())
            return "finite", f"is {value[index]} at {_index(index)}"
        outside = (value < space.low) | (value > space.high)
        if outside.any():
            index = tuple(np.argwhere(outside)[0].tolist())
            bounds = f"{space.low[index]:g} to {space.high[index]:g}"
            return "outside", f"lies outside its space: {value[index]:g} at {_index(index)}, allowed are {bounds},"
        if not np.can_cast(value.dtype, space.dtype):
            return "dtype", f"is {value.dtype}, its space says {space.dtype},"
        return None
    if not space.contains(value):
        return "outside", f"lies outside its space: {value!r:.60} is not in {space!s:.60},"
    return None


def _check_reward(reward: Any, where: str, out: Findings) -> None:
    if not _is_number(reward):
        out.add("reward", "kind", f"is {_kind(reward)}, not a number, {where}")
    elif not math.isfinite(reward):
        out.add("reward", "finite", f"is {float(reward)} {where}")


def _check_flags(terminated: Any, truncated: Any, where: str, out: Findings) -> None:
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            out.add("end", f"{name} kind", f"{name} is {_kind(flag)}, not a bool, {where}", error=False)


def _check_seeds(make: Callable[[], Any], env: Any, episodes: Sequence[Episode], out: Findings) -> None:
    """The first episode once more, in this environment and in a new one."""
    first = episodes[0]
    for what, again in (("the same environment", env), ("another copy", make())):
        apart = _repeat(again, first)
        if apart == 0:
            out.add("seed", "start", f"reset(seed={first.seed}) starts a different episode the second time, in {what}")
        elif apart is not None:
            text = f"the same seed and the same actions lead somewhere else from step {apart} on, in {what}"
            out.add("seed", "steps", f"{text}: something does not draw from the environment's np_random")
        if again is not env:
            again.close()
    if len(episodes) > 2 and all(_equal(first.seen[0], other.seen[0]) for other in episodes[1:]):
        text = f"all {len(episodes)} seeds start from the same observation; fine if that is meant"
        out.add("seed", "one start", text, error=False)


def _repeat(env: Any, episode: Episode) -> int | None:
    """The first step at which a repeated episode differs; 0 for its start, None where it does not."""
    try:
        if not _equal(env.reset(seed=episode.seed)[0], episode.seen[0]):
            return 0
        last = len(episode.actions)
        for number, action in enumerate(episode.actions, 1):
            seen, reward, terminated, truncated, info = env.step(_kept(action))
            if number == last and any(info.get(key) is not None for key in FINAL):
                seen = next(info[key] for key in FINAL if info.get(key) is not None)
            same = _equal(seen, episode.seen[number]) and _equal(float(reward), episode.rewards[number - 1])
            if not same or bool(terminated or truncated) != bool(episode.end and number == last):
                return number
    except Exception:  # what it raises has been said already, or differs too
        return None
    return None


def _check_ends(episodes: Sequence[Episode], limit: int | None, out: Findings) -> None:
    ended = [episode for episode in episodes if episode.end]
    lengths = {len(episode.actions) for episode in ended if episode.end == "terminated"}
    if limit is None and not ended:
        text = f"no episode ended within {out.steps} steps and nothing limits them: set max_steps"
        out.add("end", "never", text, error=False)
    if len(ended) > 2 and len(lengths) == 1 and all(episode.end == "terminated" for episode in ended):
        text = (
            f"all {len(ended)} episodes were terminated after exactly {lengths.pop()} steps: if that is a limit of "
            "time, it has to be truncated, for a value follows"
        )
        out.add("end", "limit terminates", text, error=False)


def _place(path: Sequence[Any]) -> str:
    return f"{'/'.join(map(str, path))} " if path else ""


def _index(index: tuple[int, ...]) -> str:
    return f"entry {', '.join(map(str, index))}" if index else "its only entry"


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} values"
    return f"{type(value).__name__} {value!r:.40}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number | np.bool_) and not isinstance(value, complex)


def _kept(value: Any) -> Any:
    """A copy that later steps cannot change."""
    if isinstance(value, dict):
        return {key: _kept(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_kept(part) for part in value)
    return np.array(value) if isinstance(value, np.ndarray) else value


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, str):
        return a == b
    a, b = np.asarray(a), np.asarray(b)
    return np.array_equal(a, b, equal_nan=np.issubdtype(a.dtype, np.floating))


def _shares(a: Any, b: Any) -> bool:
    """Whether two observations are in the same memory."""
    if isinstance(a, dict) and isinstance(b, dict):
        return any(_shares(a[key], b[key]) for key in a if key in b)
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.shares_memory(a, b)
