"""Mathematical answers: extraction, exact and symbolic equality. Thin over `ops`, which tasks use too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gainstage.ops.answers import EXTRACTORS, extract, extract_boxed, extract_hash, last_number, math_equal
from gainstage.ops.workers import Failure
from gainstage.registry import component
from gainstage.types import Ctx, Trajectory

__all__ = ["Maths", "extract", "extract_boxed", "extract_hash", "grade", "last_number", "math_equal"]


def grade(
    text: str, gold: str, *, order: Sequence[str] = ("boxed", "hash", "phrase", "number"), seconds: float = 5.0
) -> tuple[float | None, str | None]:
    """Score and extracted answer of one response: always both, whatever goes wrong.

    Returns:
        1 or 0, None where the comparison ran out of time or memory; and the answer, None where there is none (score 0).
    """
    answer = extract(text, order)
    if answer is None:
        return 0.0, None
    verdict = math_equal(answer, gold, seconds=seconds)
    return (None if isinstance(verdict, Failure) else float(verdict)), answer


@component("reward")
@dataclass
class Maths:
    """1 where the final answer equals the problem's gold answer, 0 where it does not or there is none.

    The extracted answer is kept in `info["extracted"]`. A comparison that fails gives no reward and is counted as
    `failures/verifier`.

    Args:
        order: extractors in order of preference: `boxed`, `hash` (`#### N`), `phrase` ("the answer is"), `number`
            (the last one), `whole`.
        seconds: limit of one comparison; longer lets harder algebra be decided.
    """

    order: tuple[str, ...] = ("boxed", "hash", "phrase", "number")
    seconds: float = 5.0
    requires = ("answer",)
    level = "row"
    verifies = True

    def __post_init__(self) -> None:
        if not self.order or (unknown := set(self.order) - set(EXTRACTORS)):
            raise ValueError(
                f"order: choose from {', '.join(EXTRACTORS)}, got {self.order}"
                if not self.order
                else f"order: unknown extractor {sorted(unknown)}; choose from {', '.join(EXTRACTORS)}"
            )
        if self.seconds <= 0:
            raise ValueError(f"seconds must be > 0, got {self.seconds}")

    def judge(self, trajs: Sequence[Trajectory], ctx: Ctx) -> list[float | None]:
        """One reward a trajectory.

        Raises:
            ValueError: a problem without gold answer.
        """
        scores: list[float | None] = []
        for trajectory in trajs:
            problem = trajectory.problem
            if problem is None or problem.answer is None:
                raise ValueError("maths: a problem has no gold answer; use a task with answers")
            score, answer = grade(
                trajectory.info["completion"], str(problem.answer), order=self.order, seconds=self.seconds
            )
            trajectory.info["extracted"] = answer
            scores.append(score)
        if failed := sum(score is None for score in scores):
            ctx.log("failures/verifier", float(failed))
        return scores
