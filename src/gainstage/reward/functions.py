"""Reward functions from a user's own file, in the signatures of the common libraries.

Recognised by parameter names; several signatures can live in one file:

- `f(prompts, completions, **columns) -> list[float | None]` (TRL), sync or async;
- `compute_score(data_source, solution_str, ground_truth, extra_info=None) -> float | dict` (verl), or its batched form;
- `reward_func(queries, prompts, labels, **kwargs) -> list | {"rewards", "scores", "extra_logs"}` (OpenRLHF);
- `f(completion, answer, info, ...) -> float`, any subset by name, plural names for a whole group (verifiers);
- `f(problem, text) -> float | Verdict | None` (this package).
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import linecache
import math
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gainstage.ops.leaving import said
from gainstage.registry import component, load_file
from gainstage.reward.signatures import SIGNATURES, Outcome, Row, row_of, signature_of
from gainstage.types import Ctx, Trajectory

SEARCH_SECONDS = 10.0
"""How long the sample that broke a batched function is looked for."""


class RewardFunctionError(ValueError):
    """A user's reward function failed or gave something that is no reward; the message names line and sample."""


@component("reward", "function")
@dataclass
class FunctionReward:
    """A reward function of the user's own, called once for all trajectories.

    Args:
        path: `my_file.py:my_reward`, or `package.module:my_reward`.
    """

    path: str
    function: Callable[..., Any] = field(init=False, repr=False)
    name: str = field(init=False)
    signature: str = field(init=False)
    level = "row"
    verifies = True

    def __post_init__(self) -> None:
        self.function = load_function(self.path)
        self.name = getattr(self.function, "__name__", type(self.function).__name__)
        self.signature = signature_of(self.function, self.path)

    def judge(self, trajs: Sequence[Trajectory], ctx: Ctx) -> list[float | None]:
        """One reward a trajectory; None where the function says that it does not apply.

        Raises:
            RewardFunctionError: the function raised, gave a wrong number of rewards, or one that is not finite.
        """
        if not trajs:
            return []
        rows = [row_of(trajectory, ctx) for trajectory in trajs]
        call = SIGNATURES[self.signature].call
        try:
            outcome = _await(call(self.function, rows, ctx))
        except (Exception, SystemExit) as error:
            raise self._explain(error, rows, ctx) from error
        rewards = self._check(outcome.rewards, rows)
        self._keep(outcome, trajs)
        return rewards

    def _check(self, rewards: Any, rows: Sequence[Row]) -> list[float | None]:
        where = f"reward function {self.name!r} ({self.path})"
        if hasattr(rewards, "tolist"):
            rewards = rewards.tolist()
        if not isinstance(rewards, Sequence) or isinstance(rewards, str):
            raise RewardFunctionError(f"{where}: it must return a list of {len(rows)} rewards, got {rewards!r}")
        if len(rewards) != len(rows):
            raise RewardFunctionError(f"{where}: {len(rewards)} rewards for {len(rows)} completions")
        checked: list[float | None] = []
        for index, (value, row) in enumerate(zip(rewards, rows, strict=True)):
            number = _number(value)
            if value is not None and (number is None or not math.isfinite(number)):
                raise RewardFunctionError(
                    f"{where}: row {index} got {value!r}, which is no finite number; return None where the reward "
                    f"does not apply\n{row.show()}"
                )
            checked.append(number)
        return checked

    def _keep(self, outcome: Outcome, trajs: Sequence[Trajectory]) -> None:
        for name, values in outcome.parts.items():
            for trajectory, value in zip(trajs, values, strict=True):
                trajectory.parts[f"{self.name}/{name}"] = value
        for name, shown in outcome.info.items():
            for trajectory, item in zip(trajs, shown, strict=True):
                if item is not None:
                    trajectory.info[name] = item

    def _explain(self, error: BaseException, rows: Sequence[Row], ctx: Ctx) -> RewardFunctionError:
        """The user's line, and the first sample that breaks the function alone."""
        call, index, until = SIGNATURES[self.signature].call, None, time.monotonic() + SEARCH_SECONDS
        for position, row in enumerate(rows):
            if time.monotonic() > until:
                break
            try:
                _await(call(self.function, [row], ctx))
            except (Exception, SystemExit) as single:
                index, error = position, single
                break
        sample = f"row {index}: {rows[index].show()}" if index is not None else f"in a batch of {len(rows)} rows"
        line = user_line(error, self.function)
        what = f"reward function {self.name!r} ({self.path}): {said(error)}"
        return RewardFunctionError("\n".join(part for part in (what, line, sample) if part))


def load_function(path: str) -> Callable[..., Any]:
    """The function that `file.py:name` or `package.module:name` names.

    Raises:
        ValueError: malformed path, missing file, a file that does not run, or no such function in it.
    """
    source, _, name = path.rpartition(":")
    if not source or not name:
        raise ValueError(f"reward path {path!r}: write it as my_file.py:my_reward")
    try:
        if source.endswith(".py"):
            if not Path(source).is_file():
                raise ValueError(f"reward path {path!r}: there is no file {source}")
            module = load_file(Path(source))
        else:
            module = importlib.import_module(source)
    except ValueError:
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(f"reward path {path!r}: {source} does not run: {said(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        own = {n: v for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__}
        known = sorted(n for n, v in own.items() if callable(v))
        raise ValueError(f"reward path {path!r}: no function {name!r} in {source}; it has {', '.join(known) or 'none'}")
    return function


def user_line(error: BaseException, function: Callable[..., Any]) -> str:
    """`file:line in name: source` of the innermost frame in the function's own file, empty where there is none."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        file = None
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if not own:
        return ""
    frame = own[-1]
    source = frame.line or linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{frame.filename}:{frame.lineno} in {frame.name}: {source}"


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, str | Mapping):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _await(result: Any) -> Any:
    """The result of a coroutine, also where an event loop is running in this thread already."""
    if not inspect.isawaitable(result):
        return result

    async def run() -> Any:
        return await result

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    box: dict[str, Any] = {}

    def inside() -> None:
        try:
            box["value"] = asyncio.run(run())
        except BaseException as error:
            box["error"] = error

    thread = threading.Thread(target=inside, name="gainstage-reward")
    thread.start()
    thread.join()
    if "error" in box:
        raise box["error"]
    return box["value"]
