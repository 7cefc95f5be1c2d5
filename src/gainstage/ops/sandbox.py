"""Tests of model-written programs in a sandbox process.

Each run is a process tree of its own in fresh user, process, network, mount and IPC namespaces: no network, the file
system read-only, one small memory-backed folder to write to, no capabilities, limits on processor time, memory, file
size and processes, output cut, everything killed at the end. Passing needs positive evidence: for every test a line
that carries a nonce of this run; leaving early, dying or being killed gives none.

The tests run in the program's own process, so this protects the machine and keeps honest scores honest; a program
written to forge its own evidence is not excluded.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gainstage.ops.workers import Failure

ALLOW_VARIABLE = "GAINSTAGE_ALLOW_UNSANDBOXED"
FLOOD = 10 * 2**20
GRACE = 3.0
Test = str | Mapping[str, Any]


class SandboxUnavailable(RuntimeError):
    """This kernel does not permit the isolation that running model-written code needs."""


@dataclass(frozen=True)
class Limits:
    """What a run of all tests of one program may use.

    Attributes:
        seconds: wall-clock and processor time.
        memory_mb: address space of a process.
        disk_mb: writable folder, and the largest file.
        processes: processes and threads at once.
        output_kb: how much of the output is kept.
    """

    seconds: float = 10.0
    memory_mb: int = 1024
    disk_mb: int = 64
    processes: int = 32
    output_kb: int = 64


@dataclass(frozen=True)
class TestReport:
    """What the tests of one program showed.

    Attributes:
        passed, total: tests that ran to their end and held, of how many.
        log: output and messages, cut.
        failure: `time`, `memory`, `exit` (it ended before its tests did), `error`, or None where all passed.
        isolation: what separated it from the machine.
    """

    passed: int
    total: int
    log: str
    failure: str | None = None
    isolation: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        return self.passed / self.total


def run_tests(
    source: str, tests: Sequence[Test], limits: Limits | None = None, *, allow_unsandboxed: bool | None = None
) -> TestReport | Failure:
    """Run a program's tests in a sandbox.

    Args:
        source: Python code.
        tests: each either Python code that runs after `source` in its namespace and raises when it fails; or a
            mapping with `call` (a function's name), `args`, and `returns` and / or `stdout`; or `stdin` and `stdout`
            of the whole program.
        limits: what may be used.
        allow_unsandboxed: run with limits only where the kernel refuses namespaces; None asks the environment
            variable `GAINSTAGE_ALLOW_UNSANDBOXED=1`.

    Returns:
        The report, or a `Failure` of the machinery: no verdict.

    Raises:
        ValueError: no tests, or a malformed one.
        SandboxUnavailable: no isolation here, and it is not waived.
    """
    _check_tests(tests)
    limits = limits or Limits()
    allow = os.environ.get(ALLOW_VARIABLE) == "1" if allow_unsandboxed is None else allow_unsandboxed
    nonce = secrets.token_hex(16)
    folder = tempfile.mkdtemp(prefix="gainstage-sandbox-")
    job = {"source": source, "tests": [t if isinstance(t, str) else dict(t) for t in tests], "nonce": nonce,
           "folder": folder, "limits": asdict(limits), "allow": allow}  # fmt: skip
    try:
        evidence, log, ended = _run(job, limits)
    except OSError as error:
        return Failure("died", f"the sandbox could not be started: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _report(evidence, log, ended, nonce, len(tests))


def isolation_available() -> bool:
    """Whether this machine can run model-written code in isolation (tried once with a trivial program)."""
    try:
        report = run_tests("", ["pass"], Limits(seconds=20), allow_unsandboxed=False)
    except SandboxUnavailable:
        return False
    return isinstance(report, TestReport) and report.passed == 1


def _check_tests(tests: Sequence[Test]) -> None:
    if not tests:
        raise ValueError("run_tests: there are no tests, so passing them would say nothing; mend the data")
    for index, test in enumerate(tests):
        if isinstance(test, str):
            if not test.strip():
                raise ValueError(f"run_tests: test {index} is empty")
        elif not ("call" in test and {"returns", "stdout"} & set(test)) and not {"stdin", "stdout"} <= set(test):
            raise ValueError(
                f"run_tests: test {index} needs 'call' and 'returns' or 'stdout', or 'stdin' and 'stdout'; it has "
                f"{', '.join(test)}"
            )


def _run(job: dict[str, Any], limits: Limits) -> tuple[str, str, bool]:
    """Evidence, log, and whether the sandbox ended by itself."""
    read, write = os.pipe()
    child = Path(__file__).with_name("sandbox_main.py")
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(child), str(write)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[write],
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, start_new_session=True,
        )  # fmt: skip
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    assert process.stdin and process.stdout
    try:
        try:
            process.stdin.write(json.dumps(job).encode("utf-8", "surrogatepass"))
            process.stdin.close()
        except BrokenPipeError:
            pass
        pieces, ended = _drain(process.stdout.fileno(), read, limits)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        os.close(read)
    log = pieces[0][: limits.output_kb * 1024].decode("utf-8", "replace")
    return pieces[1].decode("utf-8", "replace"), log, ended


def _drain(log: int, evidence: int, limits: Limits) -> tuple[list[bytes], bool]:
    """Read both pipes to their end or the deadline; of the log only the start is kept."""
    until = time.monotonic() + limits.seconds + GRACE
    kept, total, open_ = [b"", b""], 0, {log: 0, evidence: 1}
    poll = select.poll()
    for descriptor in open_:
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    while open_:
        left = until - time.monotonic()
        if left <= 0 or total > FLOOD:
            return kept, False
        for descriptor, _ in poll.poll(left * 1000):
            piece = os.read(descriptor, 65536)
            if not piece:
                poll.unregister(descriptor)
                del open_[descriptor]
                continue
            place, total = open_[descriptor], total + len(piece)
            if place or len(kept[0]) < limits.output_kb * 1024:
                kept[place] += piece
    return kept, True


def _report(evidence: str, log: str, ended: bool, nonce: str, total: int) -> TestReport | Failure:
    passed: set[int] = set()
    failure: str | None = None
    isolation: tuple[str, ...] = ()
    started = False
    for line in evidence.splitlines():
        mark, _, said = line.partition(" ")
        if mark != nonce:
            continue
        word, _, rest = said.partition(" ")
        if word == "refused":
            raise SandboxUnavailable(
                f"model-written code is not run: this machine gives no isolation ({rest}). Use a kernel that permits "
                f"user namespaces, or set {ALLOW_VARIABLE}=1 to run it with resource limits only"
            )
        if word == "ready":
            started, isolation = True, tuple(rest.split())
        elif word == "ok" and rest.isdigit() and int(rest) < total:
            passed.add(int(rest))
        elif word in ("time", "memory", "exit", "error"):
            failure = failure or word
    if not started:
        return Failure("died", f"the sandbox did not start: {log[-500:]}")
    if len(passed) < total:
        failure = failure or ("exit" if ended else "time")
    return TestReport(len(passed), total, log, None if len(passed) == total else failure, isolation)
