"""The inside of a sandbox: separate from the machine, run the tests, leave evidence, kill what is left."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

WALL_SLACK = 0.2


def _isolation() -> ModuleType:
    """The neighbouring file, without putting this folder on the import path of the tested program."""
    spec = importlib.util.spec_from_file_location("isolation", Path(__file__).with_name("isolation.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(evidence: int) -> None:
    """Watch over one run; this process stays outside the namespaces of the program."""
    job = json.loads(sys.stdin.buffer.read().decode("utf-8", "surrogatepass"))
    say = _speaker(evidence, job["nonce"])
    isolation = _isolation()
    watcher = os.fork()  # entering a process namespace only counts for children: this one may enter and fork
    if watcher:
        os.close(evidence)
        _, status = os.waitpid(watcher, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    try:
        isolation.die_with_parent()
        flags = isolation.NEWNS | isolation.NEWIPC | isolation.NEWUTS | isolation.NEWPID | isolation.NEWNET
        isolation.enter_user_namespace(flags)
        entered = True
    except (OSError, AttributeError) as error:
        entered = False
        if not job["allow"]:
            say(f"refused {error}")
            return
    program = os.fork()
    if program == 0:
        _inside(job, say, isolation, entered)
        os._exit(0)
    _watch(program, job["limits"]["seconds"], say)


def _speaker(descriptor: int, nonce: str) -> Any:
    write = os.write
    return lambda text: write(descriptor, f"{nonce} {text}\n".encode("utf-8", "replace"))


def _watch(program: int, seconds: float, say: Any) -> None:
    """Wait for the program up to its time limit; with the first process of its namespace all others die."""
    parent, until, status = os.getppid(), time.monotonic() + seconds, None
    while time.monotonic() < until and os.getppid() == parent:
        done, status = os.waitpid(program, os.WNOHANG)
        if done:
            break
        time.sleep(0.005)
    else:
        status = None
        say("time")
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(program, signal.SIGKILL)
    if status is None:
        os.waitpid(program, 0)
    elif os.WIFSIGNALED(status):
        say("exit")


def _inside(job: dict[str, Any], say: Any, isolation: ModuleType, entered: bool) -> None:
    limits, folder = job["limits"], job["folder"]
    os.setsid()
    names = ["limits"]
    try:
        if entered:
            isolation.die_with_parent()
            isolation.close_file_system(folder, limits["disk_mb"])
            isolation.limit_processes(limits["processes"])
            isolation.drop_capabilities()
            names = ["user", "network", "processes", "mounts", "limits"]
    except OSError as error:
        if not job["allow"]:
            say(f"refused {error}")
            return
    os.chdir(folder)
    os.environ.clear()
    os.environ.update({"HOME": folder, "TMPDIR": folder, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _limit(limits)
    say("ready " + " ".join(names))
    child = os.fork()  # the first process of a namespace is spared its own signals: the program must not be it
    if child:
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            say("time" if os.WTERMSIG(status) == signal.SIGXCPU else "exit")
        return
    try:
        _run_tests(job["source"], job["tests"], say)
    finally:
        sys.stdout.flush()
        os._exit(0)


def _limit(limits: dict[str, Any]) -> None:
    megabyte = 2**20
    seconds = int(limits["seconds"] + 1)
    for name, value in {
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": seconds,
        "RLIMIT_AS": limits["memory_mb"] * megabyte,
        "RLIMIT_FSIZE": limits["disk_mb"] * megabyte,
        "RLIMIT_NPROC": limits["processes"],
        "RLIMIT_NOFILE": 128,
    }.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _run_tests(source: str, tests: list[Any], say: Any) -> None:
    scope: dict[str, Any] = {"__name__": "program"}
    try:
        code = compile(source, "<program>", "exec")
        programs = [test for test in tests if not isinstance(test, str) and "call" not in test]
        if len(programs) < len(tests):
            exec(code, scope)  # noqa: S102  (this process is the sandbox)
    except BaseException as error:
        _tell(error, say)
        return
    for index, test in enumerate(tests):
        try:
            _run_test(test, code, scope)
        except BaseException as error:
            _tell(error, say)
            continue
        say(f"ok {index}")


def _tell(error: BaseException, say: Any) -> None:
    say("memory" if isinstance(error, MemoryError) else "exit" if isinstance(error, SystemExit) else "error")
    with contextlib.suppress(BaseException):
        traceback.print_exception(error, limit=-3)


def _run_test(test: Any, code: Any, scope: dict[str, Any]) -> None:
    """One test; raises when it does not hold."""
    if isinstance(test, str):
        exec(compile(test, "<test>", "exec"), scope)  # noqa: S102
        return
    with _Captured(test.get("stdin", "")) as captured:
        if "call" in test:
            result = scope[test["call"]](*test.get("args", []), **test.get("kwargs", {}))
        else:
            exec(code, {"__name__": "__main__"})  # noqa: S102
            result = None
    if "returns" in test:
        found, wanted = _canonical(result), _canonical(test["returns"])
        if found != wanted:
            raise AssertionError(f"{test['call']} returned {found[:200]}, not {wanted[:200]}")
    if "stdout" in test and captured.text.split() != str(test["stdout"]).split():
        raise AssertionError(f"it printed {captured.text[:200]!r}, not {str(test['stdout'])[:200]!r}")


def _canonical(value: Any) -> str:
    """JSON of plain values; any other type, a subclass included, is refused, so no `__eq__` of the program's counts."""
    if type(value) in (bool, int, float, str, type(None)):
        return json.dumps(value)
    if type(value) in (list, tuple):
        return "[" + ",".join(_canonical(item) for item in value) + "]"
    if type(value) is dict:
        return "{" + ",".join(sorted(f"{_canonical(k)}:{_canonical(v)}" for k, v in value.items())) + "}"
    raise AssertionError(f"a {type(value).__name__} is no plain value")


class _Captured:
    """Standard output and input of one test, at the level of file descriptors."""

    def __init__(self, stdin: str) -> None:
        self.stdin, self.text = stdin, ""

    def __enter__(self) -> _Captured:
        sys.stdout.flush()
        self.kept, self.python_stdin = [os.dup(0), os.dup(1)], sys.stdin
        for name, number, flags in ((".in", 0, os.O_RDONLY), (".out", 1, os.O_RDWR | os.O_CREAT | os.O_TRUNC)):
            if number == 0:
                Path(name).write_text(self.stdin, encoding="utf-8")
            descriptor = os.open(name, flags, 0o600)
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin = open(0, encoding="utf-8", closefd=False)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.stdout.flush()
        self.text = os.pread(1, 1 << 20, 0).decode("utf-8", "replace")
        for number in (0, 1):
            os.dup2(self.kept[number], number)
            os.close(self.kept[number])
        sys.stdin = self.python_stdin


if __name__ == "__main__":
    main(int(sys.argv[1]))
