"""Worker processes: limits that start with the check, typed failures, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gainstage.ops.workers import Failure, WorkerPool, shared_pool

SOURCE = """
import os, sys, time
def double(x):
    print("noise that must not reach the protocol")
    return 2 * x
def sleep(seconds):
    time.sleep(seconds)
    return os.getpid()
def spin():
    return 9 ** 9 ** 9
def eat():
    return len(bytearray(8 << 30))
def leave(status):
    os._exit(status)
def fail():
    raise KeyError("x")
"""


@pytest.fixture
def target(tmp_path, monkeypatch):
    (tmp_path / "worker_functions.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    pools = []

    def make(name, **settings):
        pools.append(WorkerPool(f"worker_functions:{name}", **settings))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def gone(pid, seconds=10.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        with open(f"/proc/{pid}/stat") as stat:
            if stat.read().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        time.sleep(0.05)
    return False


def test_values_come_back_and_workers_are_reused(target):
    pool = target("sleep", workers=2)
    assert len({pool.call(0.0) for _ in range(4)}) == 1
    assert target("double").call([1, "a"]) == [1, "a", 1, "a"]


def test_a_hanging_call_is_killed_and_the_next_one_served(target):
    pool = target("sleep")
    start = time.monotonic()
    failure = pool.call(60, seconds=0.5)
    assert isinstance(failure, Failure) and failure.kind == "time"
    assert time.monotonic() - start < 40
    assert isinstance(pool.call(0.0), int)
    assert pool.counts == {"calls": 2, "time": 1}


def test_a_call_stuck_in_c_code_is_killed(target):
    assert target("spin").call(seconds=0.5).kind == "time"


def test_waiting_for_a_worker_is_not_checking(target):
    pool = target("sleep", workers=1)
    pool.call(0.0)
    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(lambda _: pool.call(0.7, seconds=1.9), range(3)))
    assert not any(isinstance(result, Failure) for result in results)


def test_memory_death_and_errors_are_told_apart(target):
    pool = target("eat", memory_mb=512)
    assert pool.call(seconds=60).kind == "memory"
    died = target("leave").call(3, seconds=60)
    assert died.kind == "died" and "3" in died.message
    failed = target("fail").call(seconds=60)
    assert failed.kind == "error" and "KeyError" in failed.message


def test_a_target_that_does_not_start_is_a_failure(target):
    assert "no_such" in target("no_such").call().message


def test_close_leaves_no_process(target):
    pool = target("sleep", workers=2)
    pid = pool.call(0.0)
    thread = threading.Thread(target=lambda: results.append(pool.call(60, seconds=60)))
    results: list = []
    thread.start()
    time.sleep(0.3)
    pool.close()
    thread.join(20)
    assert results and isinstance(results[0], Failure)
    assert gone(pid)
    assert pool.call(0.0).kind == "closed"
    pool.close()


def test_no_orphan_after_the_parent_is_killed(target, tmp_path):
    program = (
        "import sys, threading, time\n"
        "from gainstage.ops.workers import WorkerPool\n"
        "idle, busy = (WorkerPool('worker_functions:sleep') for _ in range(2))\n"
        "pids = idle.call(0.0), busy.call(0.0)\n"
        "threading.Thread(target=lambda: busy.call(60, seconds=1.0)).start()\n"
        "time.sleep(0.2)\n"
        "print(*pids, flush=True)\n"
        "time.sleep(60)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert len(pids) == 2 and all(gone(pid) for pid in pids)


def test_shared_pool_is_one_and_renewed_after_closing(target, tmp_path):
    pool = shared_pool("worker_functions:double")
    assert shared_pool("worker_functions:double") is pool
    pool.close()
    fresh = shared_pool("worker_functions:double")
    assert fresh is not pool and fresh.call(2) == 4
    fresh.close()


@pytest.mark.parametrize("settings", [{"workers": 0}, {"seconds": 0}])
def test_wrong_settings(settings):
    with pytest.raises(ValueError, match="workers"):
        WorkerPool("a:b", **settings)
