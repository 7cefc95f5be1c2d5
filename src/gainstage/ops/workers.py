"""Worker processes that can be killed: for calls that may hang, eat memory or die.

A worker is a fresh Python that imports one function and answers calls in JSON over pipes; nothing is pickled, no signal
is used in the parent, so any thread may call. The time limit starts when the check starts: neither waiting for a free
worker nor starting one counts.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_SECONDS = 180.0
LONGEST_REPLY = 16 * 2**20


@dataclass(frozen=True)
class Failure:
    """A call without result. Never to be read as a low score.

    Attributes:
        kind: `time`, `memory`, `died` (the process ended by itself), `error` (the function raised), `closed`.
        message: what is known about it.
    """

    kind: str
    message: str = ""

    def __bool__(self) -> bool:
        raise TypeError(f"a failure ({self.kind}) is neither true nor false: handle it")


class WorkerPool:
    """Calls of one function in worker processes.

    Args:
        target: `package.module:function`; takes and returns what JSON can carry. A function `warm_up` of that module
            runs once when a worker starts, for imports that should not count as checking.
        workers: processes at most; they are started when needed.
        seconds: default limit of one call.
        memory_mb: address space of a worker; a call that needs more is a `memory` failure.
    """

    def __init__(self, target: str, *, workers: int = 1, seconds: float = 5.0, memory_mb: int = 2048) -> None:
        if workers < 1 or seconds <= 0:
            raise ValueError(f"workers must be >= 1 and seconds > 0, got {workers} and {seconds}")
        self.target, self.seconds, self.memory_mb = target, seconds, memory_mb
        self.counts: Counter[str] = Counter()
        self._owner = os.getpid()
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()  # a warm worker before a new one
        for _ in range(workers):
            self._idle.put(None)
        self._alive: set[_Worker] = set()
        self._lock = threading.Lock()
        self._closed = False
        _POOLS.add(self)

    def call(self, *args: Any, seconds: float | None = None) -> Any:
        """The function's result, or a `Failure`. Waits for a free worker without a limit."""
        limit = self.seconds if seconds is None else seconds
        worker = self._idle.get()
        try:
            if self._closed:
                return Failure("closed", "the pool is closed")
            if worker is None or not worker.running:
                worker = self._start()
            result = worker.ask(args, limit)
        except OSError as error:
            result = Failure("died", f"the worker could not be started or reached: {error}")
        except BaseException:
            self._drop(worker)
            worker = None
            raise
        finally:
            if worker is not None and not worker.running:
                self._drop(worker)
                worker = None
            self._idle.put(worker)
        self.counts["calls"] += 1
        if isinstance(result, Failure):
            self.counts[result.kind] += 1
        return result

    def close(self) -> None:
        """Kill all workers; calls in progress come back as failures. Closing twice is allowed."""
        self._closed = True
        with self._lock:
            alive, self._alive = list(self._alive), set()
        for worker in alive:
            worker.kill()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def usable(self) -> bool:
        """Whether this process may use the pool (a forked child may not)."""
        return not self._closed and self._owner == os.getpid()

    def _start(self) -> _Worker:
        worker = _Worker(self.target, self.memory_mb)
        with self._lock:
            self._alive.add(worker)
        if self._closed:
            worker.kill()
        return worker

    def _drop(self, worker: _Worker | None) -> None:
        if worker is not None:
            worker.kill()
            with self._lock:
                self._alive.discard(worker)


class _Worker:
    def __init__(self, target: str, memory_mb: int) -> None:
        path = os.pathsep.join(p for p in sys.path if p)
        child = Path(__file__).with_name("worker_main.py")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-B", str(child), target, str(memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        assert self.process.stdin and self.process.stdout
        self.buffer = b""
        self.running = True
        ready = self._read(START_SECONDS)
        if isinstance(ready, Failure) or ready.get("ready") is not True:
            self.kill()
            detail = ready.message if isinstance(ready, Failure) else ready.get("error", "")
            raise OSError(f"{target} does not start: {detail}")

    def ask(self, args: tuple[Any, ...], seconds: float) -> Any:
        line = json.dumps({"args": args, "seconds": seconds}).encode() + b"\n"
        try:
            self.process.stdin.write(line)  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            return self._ended()
        reply = self._read(seconds)
        if isinstance(reply, Failure):
            self.kill()
            return reply
        if "failure" in reply:
            if reply["failure"] == "memory":
                self.kill()
            return Failure(reply["failure"], reply.get("message", ""))
        return reply["value"]

    def _read(self, seconds: float) -> Any:
        until = time.monotonic() + seconds
        descriptor = self.process.stdout.fileno()  # type: ignore[union-attr]
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not poll.poll(max(left * 1000, 1)):
                if left > 0.002:
                    continue
                return Failure("time", f"no result within {seconds:g} s")
            piece = os.read(descriptor, 65536)
            if not piece:
                return self._ended()
            self.buffer += piece
            if len(self.buffer) > LONGEST_REPLY:
                return Failure("error", "the reply is too long")
        line, _, self.buffer = self.buffer.partition(b"\n")
        return json.loads(line)

    def _ended(self) -> Failure:
        self.kill()
        return Failure("died", f"the worker ended with status {self.process.returncode}")

    def kill(self) -> None:
        """Kill the worker with whatever it started, and reap it."""
        self.running = False
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


_POOLS: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_SHARED: dict[str, WorkerPool] = {}
_SHARED_LOCK = threading.Lock()


def shared_pool(target: str) -> WorkerPool:
    """The process-wide pool of a function, as many workers as there are cores (at most four)."""
    with _SHARED_LOCK:
        pool = _SHARED.get(target)
        if pool is None or not pool.usable:
            pool = _SHARED[target] = WorkerPool(target, workers=min(os.cpu_count() or 1, 4))
        return pool


@atexit.register
def close_all() -> None:
    """Kill the workers of all pools of this process."""
    for pool in list(_POOLS):
        if pool._owner == os.getpid():
            pool.close()
