"""Programs judged by their tests, in a sandbox. Thin over `ops/sandbox`, which tasks use too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gainstage.ops.programs import last_block
from gainstage.ops.sandbox import Limits, SandboxUnavailable, TestReport, isolation_available, run_tests
from gainstage.ops.workers import Failure
from gainstage.registry import component
from gainstage.types import Ctx, Trajectory

__all__ = ["Code", "Limits", "SandboxUnavailable", "TestReport", "isolation_available", "run_tests"]


@component("reward")
@dataclass
class Code:
    """Runs a problem's tests on the program in the answer (its last fenced block, or all of it).

    The tests stand in the problem's meta as a list: code that raises when it fails, or mappings with `call`, `args`,
    `returns` and / or `stdout`, or with `stdin` and `stdout`. Passing needs evidence from each test.

    Args:
        column: meta column of the tests.
        reward: `all` pays 1 when every test holds, `share` the share that does (denser, easier to exploit).
        seconds: time limit of one program's tests.
        memory_mb: memory limit of the program.
    """

    column: str = "tests"
    reward: Literal["all", "share"] = "all"
    seconds: float = 10.0
    memory_mb: int = 1024
    level = "row"
    verifies = True

    def judge(self, trajs: Sequence[Trajectory], ctx: Ctx) -> list[float | None]:
        """One reward a trajectory, None where the sandbox itself failed.

        Raises:
            ValueError: a problem without tests.
            SandboxUnavailable: this machine cannot isolate model-written code.
        """
        limits = Limits(seconds=self.seconds, memory_mb=self.memory_mb)
        scores: list[float | None] = []
        for trajectory in trajs:
            tests = trajectory.problem.meta.get(self.column) if trajectory.problem else None
            if not tests:
                name = trajectory.problem.id if trajectory.problem else "?"
                raise ValueError(f"code: problem {name} has no tests in column {self.column!r}")
            text = trajectory.info["completion"]
            report = run_tests(last_block(text) or text, tests, limits)
            if isinstance(report, Failure):
                scores.append(None)
                continue
            trajectory.info["feedback"] = report.log
            scores.append(report.share if self.reward == "share" else float(report.passed == report.total))
        if failed := sum(score is None for score in scores):
            ctx.log("failures/verifier", float(failed))
        return scores
