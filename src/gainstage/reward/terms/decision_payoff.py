"""Rewards that also pay for declining and for grounded answers, so that guessing does not pay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gainstage.registry import component
from gainstage.types import Ctx, Trajectory

SUCCESS = 1 - 1e-6
"""A verdict of at least this much is a right answer."""


@dataclass(frozen=True)
class Payoffs:
    """What is paid for each decision; `wrong` is a cost.

    Raises:
        ValueError: a pay-off that is not finite, or costs that are negative.
    """

    correct: float = 1.0
    grounded: float = 0.2
    wrong: float = 0.5
    abstain: float = 0.1

    def __post_init__(self) -> None:
        for name in ("correct", "grounded", "wrong", "abstain"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be a finite number, got {getattr(self, name)}")
        if self.wrong < 0 or self.correct + self.wrong <= 0:
            raise ValueError(f"wrong is a cost (>= 0) and correct must be worth more than it, got {self}")


def decision_payoff(payoffs: Payoffs, correct: bool, abstained: bool, grounded: float = 0.0) -> float:
    """`w_c correct + w_g grounded - w_f wrong_attempt + w_a abstained`; who declines attempts nothing."""
    if abstained:
        return payoffs.abstain
    return (payoffs.correct if correct else -payoffs.wrong) + payoffs.grounded * grounded


def break_even(payoffs: Payoffs) -> float:
    """Chance of being right above which an attempt pays more than declining: `(w_a + w_f) / (w_c + w_f)`.

    0 or less: always attempt; 1 or more: never (the policy collapses to declining).
    """
    return (payoffs.abstain + payoffs.wrong) / (payoffs.correct + payoffs.wrong)


@component("reward")
@dataclass
class DecisionPayoff:
    """Pays right answers, charges wrong attempts, and pays a little for declining.

    The best policy attempts a problem exactly where its chance of being right exceeds
    `(abstain + wrong) / (correct + wrong)`. The task says what declining looks like (its `abstains`) and may give the
    verdict a part `grounded` in [0, 1]: the share of cited items or intermediate steps that hold.
    """

    correct: float = 1.0
    """Paid for a right answer."""
    grounded: float = 0.2
    """Paid for an attempt whose every step holds, in proportion."""
    wrong: float = 0.5
    """Cost of a wrong attempt."""
    abstain: float = 0.1
    """Paid for declining."""

    requires = ("check",)
    level = "row"

    def __post_init__(self) -> None:
        self.payoffs = Payoffs(self.correct, self.grounded, self.wrong, self.abstain)

    def judge(self, trajs: Sequence[Trajectory], ctx: Ctx) -> list[float | None]:
        """One reward a trajectory, None where there is no verdict. The parts `correct` and `abstained` are logged.

        Raises:
            ValueError: the task does not say what declining looks like.
        """
        task = ctx.task
        if not hasattr(task, "abstains") or task.abstains("") is None:
            raise ValueError(
                f"reward decision_payoff: the task {task.name} does not say what declining looks like; set its "
                "`abstain` (arithmetic: task.abstain='?'), or give your task abstains(text)"
            )
        return [self._judge(trajectory, ctx) for trajectory in trajs]

    def _judge(self, trajectory: Trajectory, ctx: Ctx) -> float | None:
        assert trajectory.problem is not None and ctx.judge is not None, "the task checks"
        text = trajectory.info["completion"]
        verdict = ctx.judge(trajectory.problem, text)
        if verdict.reward is None:
            return None
        right, declined = verdict.reward >= SUCCESS, bool(ctx.task.abstains(text))  # type: ignore[attr-defined]
        trajectory.parts["correct"], trajectory.parts["abstained"] = float(right), float(declined)
        return decision_payoff(self.payoffs, right, declined, verdict.parts.get("grounded", 0.0))
