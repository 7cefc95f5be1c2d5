"""The task's own verdict as reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gainstage.registry import component
from gainstage.types import Ctx, Trajectory, Verdict


@component("reward")
@dataclass
class TaskVerdict:
    """Asks the task about every answer; verifiable rewards (RLVR, arXiv:2411.15124).

    A verdict without reward (the check does not apply, or its worker failed) adds nothing and is counted as
    `failures/verifier`. Named parts go to the trajectory's parts, feedback to its info.
    """

    requires = ("check",)
    level = "row"

    def judge(self, trajs: Sequence[Trajectory], ctx: Ctx) -> list[float | None]:
        """One reward a trajectory, None where there is no verdict.

        Raises:
            ValueError: a trajectory without problem or text, or a verdict that is not finite.
        """
        verdicts = _ask_all(trajs, ctx)
        names = sorted({name for verdict in verdicts for name in verdict.parts})
        for trajectory, verdict in zip(trajs, verdicts, strict=True):
            for name in names:
                trajectory.parts[name] = verdict.parts.get(name)
            if verdict.feedback is not None:
                trajectory.info["feedback"] = verdict.feedback
        failed = sum(verdict.reward is None for verdict in verdicts)
        if failed:
            ctx.log("failures/verifier", float(failed))
        return [verdict.reward for verdict in verdicts]


def _ask_all(trajs: Sequence[Trajectory], ctx: Ctx) -> list[Verdict]:
    """Verdicts in order; a task whose checks wait for worker processes states how many may wait at once."""
    threads = min(int(getattr(ctx.task, "concurrent_checks", 1)), len(trajs))
    if threads <= 1:
        return [_ask(trajectory, ctx) for trajectory in trajs]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda trajectory: _ask(trajectory, ctx), trajs))


def _ask(trajectory: Trajectory, ctx: Ctx) -> Verdict:
    if trajectory.problem is None or "completion" not in trajectory.info:
        raise ValueError(
            "task_verdict: a trajectory has no problem or no text (info['completion']); "
            "use a reward that reads steps, or a rollout that records text"
        )
    if ctx.judge is None:
        raise ValueError("task_verdict: the task has no check; choose another reward or a task that can check")
    verdict = ctx.judge(trajectory.problem, trajectory.info["completion"])
    for name, value in {"reward": verdict.reward, **verdict.parts}.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"task_verdict: the task gave {name} = {value} for problem {trajectory.problem.id}")
    return verdict
