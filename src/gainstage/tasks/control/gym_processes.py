"""Copies of an environment spread over worker processes; observations and actions pass through shared memory.

A worker that dies, hangs or raises ends the whole with an error that names it; no worker outlives its parent.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gainstage.tasks.control.gym_copies import Copies, Moved, Plan

START_SECONDS = 180.0
STEP, DONE, FAILED = b"s", b"d", b"f"


class WorkerFailed(RuntimeError):
    """A worker process of an environment died, hung or raised."""


class Processes:
    """`size` copies in `workers` processes, neighbours together.

    Args:
        plan: the environment.
        again: makes the plan anew, for workers that inherit nothing from this process (there is no fork).
        size: copies.
        workers: processes; at most one a copy.
        seconds: how long a step may take before the worker counts as hung.

    Raises:
        WorkerFailed: a worker does not start.
    """

    def __init__(self, plan: Plan, again: Callable[[], Plan], size: int, workers: int, seconds: float = 60.0) -> None:
        self.plan, self.size, self.seconds = plan, size, seconds
        forked = sys.platform == "linux"
        context: Any = multiprocessing.get_context("fork" if forked else "spawn")
        self._arrays = _arrays(context, self.plan, size)
        self.views = {name: _view(*array) for name, array in self._arrays.items()}
        self._slices: list[slice] = []
        self._processes: list[Any] = []
        self._pipes: list[Any] = []
        self._finalizer = weakref.finalize(self, _end, self._processes, self._pipes)
        edges = np.linspace(0, size, min(workers, size) + 1).astype(int).tolist()
        for begin, end in itertools.pairwise(edges):
            ours, theirs = context.Pipe()
            self._pipes.append(ours)
            worker = context.Process(
                target=_work,
                args=(theirs, list(self._pipes), plan if forked else again, self._arrays, begin, end, os.getpid()),
                daemon=True,
            )
            with warnings.catch_warnings():  # Python warns of forks beside threads; the workers use none of torch's
                warnings.simplefilter("ignore", DeprecationWarning)
                worker.start()
            theirs.close()
            self._slices.append(slice(begin, end))
            self._processes.append(worker)
        for number in range(len(self._pipes)):
            self._wait(number, START_SECONDS)

    def _wait(self, number: int, seconds: float) -> Any:
        """The answer of a worker."""
        pipe = self._pipes[number]
        try:
            if not pipe.poll(seconds):
                self._fail(number, f"gave no answer within {seconds:g} s")
            kind = pipe.recv_bytes()
            if kind == STEP:
                return None
            answer = pipe.recv()
        except (EOFError, OSError):
            self._processes[number].join(2.0)
            self._fail(number, _ended(self._processes[number].exitcode))
        if kind == FAILED:
            self._fail(number, f"failed:\n{answer}")
        return answer

    def _fail(self, number: int, what: str) -> None:
        place = self._slices[number]
        self.close()
        raise WorkerFailed(
            f"{self.plan.name}: worker {number + 1} of {len(self._slices)} (copies {place.start} to {place.stop - 1}) "
            f"{what}"
        )

    def _send(self, number: int, message: Any) -> None:
        try:
            if message is STEP:
                self._pipes[number].send_bytes(STEP)
            else:
                self._pipes[number].send_bytes(DONE)
                self._pipes[number].send(message)
        except (BrokenPipeError, OSError):
            self._processes[number].join(2.0)
            self._fail(number, _ended(self._processes[number].exitcode))

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        for number, place in enumerate(self._slices):
            self._send(number, ("reset", (list(seeds[place]),)))
        self._gather(self.seconds)
        return self.views["obs"].copy()

    def step(self, actions: np.ndarray) -> Moved:
        self.views["actions"][:] = actions
        for number in range(len(self._slices)):
            self._send(number, STEP)
        self._gather(self.seconds)
        out = {name: view.copy() for name, view in self.views.items() if name not in ("actions", "obs")}
        done = (out["terminated"] | out["truncated"]).any()
        obs = self.views["obs"].copy() if done else out["next_obs"]
        return Moved(out["next_obs"], obs, out["reward"], out["terminated"], out["truncated"], out["facts"])

    def restore(self, seeds: Sequence[int], episodes: Sequence[int], actions: Sequence[np.ndarray]) -> np.ndarray:
        for number, place in enumerate(self._slices):
            self._send(number, ("restore", (seeds[place], episodes[place], list(actions[place]))))
        steps = max(len(piece) for piece in actions)
        self._gather(max(START_SECONDS, steps * self.seconds))
        return self.views["obs"].copy()

    def _gather(self, seconds: float) -> None:
        for number in range(len(self._pipes)):
            self._wait(number, seconds)

    def _ask(self, number: int, name: str, *args: Any) -> Any:
        self._send(number, (name, args))
        return self._wait(number, self.seconds)

    def of_goals(self, what: str, achieved: Any, goal: Any) -> np.ndarray:
        return self._ask(0, "of_goals", what, achieved, goal)

    def render(self, copy: int) -> np.ndarray:
        number = next(n for n, place in enumerate(self._slices) if place.start <= copy < place.stop)
        return self._ask(number, "render", copy - self._slices[number].start)

    def close(self) -> None:
        """End the workers. Closing twice is allowed."""
        self._finalizer()


def _ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _end(processes: list[Any], pipes: list[Any]) -> None:
    for pipe in pipes:
        with contextlib.suppress(OSError):
            pipe.close()
    until = time.monotonic() + 1.0
    for process in processes:
        process.join(max(until - time.monotonic(), 0.0))
        if process.is_alive():
            process.kill()
            process.join(5.0)


def _arrays(context: Any, plan: Plan, size: int) -> dict[str, tuple[Any, tuple[int, ...], Any]]:
    """Shared memory of a step: name -> (memory, shape, dtype)."""
    seen, acted = (size, *plan.observing.space.shape), (size, *plan.acting.space.shape)
    shapes = {
        "actions": (acted, plan.acting.dtype),
        "next_obs": (seen, plan.observing.dtype),
        "obs": (seen, plan.observing.dtype),
        "reward": ((size,), np.float32),
        "terminated": ((size,), np.bool_),
        "truncated": ((size,), np.bool_),
        "facts": ((len(plan.facts), size), np.float32),
    }
    return {
        name: (context.RawArray("b", max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 1)), shape, dtype)
        for name, (shape, dtype) in shapes.items()
    }


def _view(memory: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.frombuffer(memory, dtype, int(np.prod(shape))).reshape(shape)


def _work(
    pipe: Any, others: list[Any], plan: Plan | Callable[[], Plan], arrays: Any, begin: int, end: int, parent: int
) -> None:
    """A worker's life: make the environments, answer until the pipe closes or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()
    try:
        views = {name: _view(*array) for name, array in arrays.items()}
        copies = Copies(plan if isinstance(plan, Plan) else plan(), end - begin, begin)
        mine = slice(begin, end)
        pipe.send_bytes(STEP)
        while _heard(pipe, parent):
            if pipe.recv_bytes() == STEP:
                _share(views, mine, copies.step(views["actions"][mine]))
                pipe.send_bytes(STEP)
                continue
            name, args = pipe.recv()
            answer = getattr(copies, name)(*args)
            if name in ("reset", "restore"):
                views["obs"][mine] = answer
                answer = None
            pipe.send_bytes(DONE)
            pipe.send(answer)
        copies.close()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except BaseException:
        with contextlib.suppress(OSError):
            pipe.send_bytes(FAILED)
            pipe.send(traceback.format_exc())
    finally:
        os._exit(0)  # nothing of the parent's is to be cleaned up here


def _heard(pipe: Any, parent: int) -> bool:
    """Wait for a message; false when the parent is gone."""
    while not pipe.poll(1.0):
        if os.getppid() != parent:
            return False
    return True


def _share(views: dict[str, np.ndarray], mine: slice, moved: Moved) -> None:
    views["next_obs"][mine], views["obs"][mine] = moved.next_obs, moved.obs
    views["reward"][mine] = moved.reward
    views["terminated"][mine], views["truncated"][mine] = moved.terminated, moved.truncated
    views["facts"][:, mine] = moved.facts
