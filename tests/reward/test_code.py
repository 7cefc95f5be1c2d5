"""Programs are judged in a sandbox; passing needs evidence from every test."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gainstage import registry
from gainstage.ops import sandbox
from gainstage.ops.programs import complete_function, last_block
from gainstage.ops.sandbox import Limits, SandboxUnavailable, isolation_available, run_tests
from gainstage.types import Ctx, Problem, Stop, Trajectory

SLOW = Limits(seconds=60)  # for honest programs on a busy machine


@pytest.fixture(scope="module", autouse=True)
def isolated():
    if not isolation_available():
        pytest.skip("this kernel does not permit user namespaces")


def test_every_test_counts():
    report = run_tests("def add(a, b):\n    return a + b", ["assert add(1, 2) == 3", "assert add(1, 2) == 4"], SLOW)
    assert (report.passed, report.total, report.failure, report.share) == (1, 2, "error", 0.5)
    assert "AssertionError" in report.log
    assert run_tests("x = 1", ["assert x == 1"], SLOW).failure is None


def test_an_exception_is_not_the_empty_output():
    test = {"call": "solve", "args": [1], "stdout": ""}
    assert run_tests("def solve(x):\n    raise ValueError('no')", [test], SLOW).passed == 0
    assert run_tests("def solve(x):\n    pass", [test], SLOW).passed == 1  # control: it rightly prints nothing


@pytest.mark.parametrize(
    "leave",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "raise SystemExit(0)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.execv('/bin/true', ['true'])",
    ],
)
def test_leaving_early_is_not_passing(leave):
    report = run_tests(f"def add(a, b):\n    {leave}", ["assert add(1, 2) == 3", "assert add(1, 1) == 2"], SLOW)
    assert report.passed == 0 and report.failure is not None
    assert run_tests(leave, ["pass"], SLOW).passed == 0


def test_printed_evidence_does_not_count():
    source = (
        "print('0 ok 0'); print('ok 0')\nimport os\nfor fd in range(3, 20):\n"
        "    try: os.write(fd, b'ok 0\\n')\n    except OSError: pass\nos._exit(0)"
    )
    assert run_tests(source, ["assert False"], SLOW).passed == 0


@pytest.mark.parametrize("tests", [[], [""], [{"call": "f"}], [{"stdout": "x"}]])
def test_no_or_malformed_tests_are_an_error_in_the_data(tests):
    with pytest.raises(ValueError, match="test"):
        run_tests("x = 1", tests)


def test_whole_programs_by_input_and_output():
    tests = [{"stdin": "2 3\n", "stdout": "5"}, {"stdin": "1 1\n", "stdout": "3"}]
    assert run_tests("print(sum(map(int, input().split())))", tests, SLOW).passed == 1
    assert run_tests("import sys\nprint(sum(map(int, sys.stdin.read().split())))", tests[:1], SLOW).passed == 1


def test_returned_values_are_compared_as_plain_data():
    tests = [{"call": "f", "args": [], "returns": [1, {"a": None}]}]
    assert run_tests("def f():\n    return (1, {'a': None})", tests, SLOW).passed == 1
    liar = "class A(list):\n    def __eq__(self, other): return True\ndef f():\n    return A()"
    assert run_tests(liar, tests, SLOW).passed == 0
    assert run_tests("def f():\n    return [1, {'a': 0}]", tests, SLOW).passed == 0


@pytest.mark.parametrize(
    ("source", "failure"),
    [
        ("while True: pass", "time"),
        ("import time; time.sleep(60)", "time"),
        ("9 ** 9 ** 9", "time"),
        ("x = bytearray(4 << 30)", "memory"),
        ("open('f', 'wb').write(b'x' * (3 << 20))", "error"),
        ("def f(): f()\nf()", "error"),
        ("this is no Python", "error"),
    ],
)
def test_limits(source, failure):
    start = time.monotonic()
    report = run_tests(source, ["pass"], Limits(seconds=3, disk_mb=1))
    assert report.passed == 0 and report.failure == failure
    assert time.monotonic() - start < 30


def test_fork_bomb_and_output_flood_end_in_time():
    start = time.monotonic()
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert run_tests(bomb, ["pass"], Limits(seconds=1)).passed == 0
    flood = run_tests("while True: print('x' * 10000)", ["pass"], Limits(seconds=3))
    assert flood.passed == 0 and len(flood.log) <= 64 * 1024
    assert time.monotonic() - start < 60


def test_no_network_no_writing_no_secrets_no_neighbours(monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    victim = tmp_path / "victim"
    victim.write_text("whole")
    source = f"""
import os, socket
def refused(action):
    try:
        action()
    except OSError:
        return True
    return False
network = refused(lambda: socket.create_connection(("1.1.1.1", 53), 2))
writing = refused(lambda: open({str(victim)!r}, "w")) and refused(lambda: open("/tmp/gainstage-escape", "w"))
signal = refused(lambda: os.kill({os.getpid()}, 0)) if {os.getpid()} > 400 else True
alone = [p for p in os.listdir("/proc") if p.isdigit()] == ["1", "2"]
secrets = "SECRET_TOKEN" not in os.environ
own = open("note", "w").write("x") == 1
remount = os.system("mount -o remount,rw / 2>/dev/null") != 0
"""
    tests = [f"assert {name}" for name in ("network", "writing", "signal", "alone", "secrets", "own", "remount")]
    report = run_tests(source, tests, SLOW)
    assert report.passed == len(tests), report.log
    assert set(report.isolation) >= {"network", "processes", "mounts"}
    assert victim.read_text() == "whole"


def test_children_die_with_the_run():
    mark = f"300.{os.getpid()}{time.monotonic_ns() % 10**6}"
    source = f"import subprocess\nsubprocess.Popen(['sleep', '{mark}'], start_new_session=True)"
    assert run_tests(source, ["pass"], SLOW).passed == 1
    time.sleep(0.2)
    commands = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    commands.append(file.read())
            except OSError:
                pass
    assert not any(mark.encode() in command for command in commands)


def test_runs_from_threads_leave_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda i: run_tests(f"x = {i}", [f"assert x == {i}"], SLOW), range(8)))
    assert all(report.passed == 1 for report in reports)
    assert list(tmp_path.iterdir()) == []


def test_refuses_without_isolation_unless_told(monkeypatch, tmp_path):
    # a stand-in for a kernel that refuses: the same program with an isolation file that always fails
    here = tmp_path / "sandbox_main.py"
    here.write_text(Path(sandbox.__file__).with_name("sandbox_main.py").read_text())
    (tmp_path / "isolation.py").write_text(
        "NEWNS = NEWIPC = NEWUTS = NEWPID = NEWNET = 0\n"
        "def die_with_parent(): pass\n"
        "def enter_user_namespace(flags): raise PermissionError('not permitted')\n"
    )
    monkeypatch.setattr(sandbox, "__file__", str(tmp_path / "sandbox.py"))
    with pytest.raises(SandboxUnavailable, match="GAINSTAGE_ALLOW_UNSANDBOXED"):
        run_tests("x = 1", ["pass"], SLOW)
    report = run_tests("x = 1", ["pass"], SLOW, allow_unsandboxed=True)
    assert report.passed == 1 and report.isolation == ("limits",)
    monkeypatch.setenv("GAINSTAGE_ALLOW_UNSANDBOXED", "1")
    assert run_tests("import time; time.sleep(60)", ["pass"], Limits(seconds=1)).failure == "time"


HEAD = 'import math\n\ndef helper(x):\n    return x\n\n\ndef area(r):\n    """Area."""\n'


@pytest.mark.parametrize(
    "answer",
    [
        "    return math.pi * r * r\n",
        "    return math.pi * r * r\n\nprint(area(1))\nraise SystemExit",
        "Sure:\n```python\ndef area(r):\n    return helper(math.pi * r * r)\n```\nDone.",
        "```\nreturn math.pi * r * r\n```",
        "def area(r):\n    return math.pi * r ** 2",
        "```python\ndef area(r):\n    return math.pi * r * r",
    ],
)
def test_answers_become_programs(answer):
    scope: dict = {}
    exec(compile(complete_function(HEAD, "area", answer), "answer", "exec"), scope)
    assert scope["area"](1) == pytest.approx(3.14159, abs=1e-4)


def test_last_block():
    assert last_block("```python\na\n```\n```\nb\n```") == "b"
    assert last_block("none") is None


def humaneval():
    task = registry.build("task", "humaneval", {"seconds": 60})
    try:
        return task, list(task.problems("test"))
    except ValueError as error:
        pytest.skip(str(error)[:200])


def check_all(task, problems):
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(pool.map(lambda p: task.check(p, task.demonstrate(p, None)), problems))
    return [(p.meta["task_id"], v.feedback) for p, v in zip(problems, verdicts, strict=True) if v.reward != 1]


def test_canonical_solutions_pass_a_sample():
    task, problems = humaneval()
    assert check_all(task, problems[::8]) == []
    broken = problems[0]
    assert task.check(broken, "    return None").reward == 0
    assert task.check(broken, "").reward == 0


@pytest.mark.slow
@pytest.mark.parametrize("chat", [True, False])
def test_all_canonical_solutions_pass(chat):
    task, problems = humaneval()
    task = registry.build("task", "humaneval", {"seconds": 60, "chat": chat})
    assert len(problems) == 164
    assert check_all(task, list(task.problems("test"))) == []


class TestComponent:
    def judge(self, text, tests, **settings):
        problem = Problem("p", "?", meta={"tests": tests} if tests is not None else {})
        trajectory = Trajectory(problem, 0, 0, 0, "policy", 0, Stop.EOS, {}, info={"completion": text})
        component = registry.build("reward", "code", {"seconds": 60, **settings})
        return component.judge([trajectory], Ctx({}, None, None, None))

    def test_all_or_share(self):
        answer, tests = "```python\nx = 1\n```", ["assert x == 1", "assert x == 2"]
        assert self.judge(answer, tests) == [0.0]
        assert self.judge(answer, tests, reward="share") == [0.5]

    @pytest.mark.parametrize("tests", [None, []])
    def test_missing_tests_are_an_error(self, tests):
        with pytest.raises(ValueError, match="tests"):
            self.judge("x = 1", tests)
