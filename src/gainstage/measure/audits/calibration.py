"""Does confidence mean anything, and does a policy know when to decline? And the rule that stops a run that forgets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Calibration:
    """Honesty of a set of answers. What needs attempts is None where there is none."""

    answers: int
    attempts: int
    ece: float | None
    """Expected calibration error over the attempts."""
    brier: float | None
    """Mean squared distance of confidence and truth."""
    aurc: float | None
    """Mean risk over all coverages: what is left wrong when the least confident answers are withheld."""
    hallucination: float | None
    """Share of wrong answers among the attempts."""

    @property
    def attempt_rate(self) -> float:
        return self.attempts / self.answers

    @property
    def abstention(self) -> float:
        return 1 - self.attempt_rate


def calibration(
    confidence: Sequence[float],
    correct: Sequence[bool],
    attempted: Sequence[bool] | None = None,
    bins: int = 10,
) -> Calibration:
    """Calibration over attempts, and how often there was one.

    Args:
        confidence: in [0, 1], "N"; what stands beside an abstention is not looked at.
        correct: "N".
        attempted: "N"; all of them where None.
        bins: equal bins of the calibration error.

    Raises:
        ValueError: different lengths, no answer, or a confidence of an attempt outside [0, 1].
    """
    tried = [True] * len(correct) if attempted is None else [bool(a) for a in attempted]
    if not len(confidence) == len(correct) == len(tried) or not tried:
        raise ValueError(
            f"calibration: {len(confidence)} confidences and {len(tried)} marks of attempts for {len(correct)} verdicts"
        )
    kept = [(float(c), bool(y)) for c, y, a in zip(confidence, correct, tried, strict=True) if a]
    if not kept:
        return Calibration(len(tried), 0, None, None, None, None)
    conf, right = [c for c, _ in kept], [y for _, y in kept]
    return Calibration(
        answers=len(tried),
        attempts=len(kept),
        ece=calibration_error(conf, right, bins),
        brier=brier(conf, right),
        aurc=float(np.mean(risk_coverage(conf, right))),
        hallucination=1 - float(np.mean(right)),
    )


def calibration_error(confidence: Sequence[float], correct: Sequence[bool], bins: int = 10) -> float:
    """Expected calibration error `sum_b n_b / N |acc_b - conf_b|` with equal bins closed on the left.

    Source: Guo et al., arXiv 1706.04599, equation 3 (there the bins are closed on the right).

    Raises:
        ValueError: different lengths, no answer, or a confidence outside [0, 1].
    """
    c, y = _checked("calibration_error", confidence, correct)
    if bins < 1:
        raise ValueError(f"calibration_error: bins must be >= 1, got {bins}")
    place = np.minimum(bins - 1, np.floor(bins * c + 1e-9).astype(int))
    return math.fsum(
        float((place == b).mean() * abs(y[place == b].mean() - c[place == b].mean())) for b in np.unique(place)
    )


def brier(confidence: Sequence[float], correct: Sequence[bool]) -> float:
    """Mean of `(confidence - truth)^2`.

    Raises:
        ValueError: as `calibration_error`.
    """
    c, y = _checked("brier", confidence, correct)
    return float(np.mean((c - y) ** 2))


def risk_coverage(confidence: Sequence[float], correct: Sequence[bool]) -> list[float]:
    """Share of wrong answers among the i most confident ones, for i = 1..N; ties stay in order of input.

    Source: Geifman and El-Yaniv, arXiv 1705.08500, section 2.

    Raises:
        ValueError: as `calibration_error`.
    """
    c, y = _checked("risk_coverage", confidence, correct)
    wrong = 1 - y[np.argsort(-c, kind="stable")]
    return [float(risk) for risk in np.cumsum(wrong) / np.arange(1, len(wrong) + 1)]


def shared_attempts(
    a: tuple[Sequence[float], Sequence[bool], Sequence[bool]],
    b: tuple[Sequence[float], Sequence[bool], Sequence[bool]],
    bins: int = 10,
) -> tuple[Calibration, Calibration]:
    """Calibration of two models on the problems that both attempted, so that neither gains by declining.

    Args:
        a, b: confidence, correct and attempted of each model, "N" each, over the same problems in the same order.

    Raises:
        ValueError: different numbers of problems, or none that both attempted.
    """
    if len(a[0]) != len(b[0]):
        raise ValueError(f"shared_attempts: {len(a[0])} and {len(b[0])} problems; both models must face the same ones")
    both = [i for i, (x, y) in enumerate(zip(a[2], b[2], strict=True)) if x and y]
    if not both:
        raise ValueError("shared_attempts: there is no problem that both models attempted")
    left, right = (calibration([s[0][i] for i in both], [s[1][i] for i in both], bins=bins) for s in (a, b))
    return left, right


def majority(answers: Sequence[str | None]) -> tuple[str | None, float]:
    """The most frequent answer and its share of all answers; the first given wins a tie. `(None, 0.0)` without any.

    Where no number was stated, this share serves as confidence. A share of few answers is coarse and too high on
    average: compare it between models with equally many answers only.

    Args:
        answers: one entry a sample; None where a sample gave no answer.
    """
    counts = Counter(answer for answer in answers if answer is not None)
    if not counts:
        return None, 0.0
    answer, count = counts.most_common(1)[0]
    return answer, count / len(answers)


def _checked(name: str, confidence: Sequence[float], correct: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    if len(confidence) != len(correct) or not len(correct):
        raise ValueError(f"{name}: {len(confidence)} confidences for {len(correct)} verdicts")
    c, y = np.asarray(confidence, dtype=float), np.asarray(correct, dtype=float)
    if not ((c >= 0) & (c <= 1)).all():
        raise ValueError(f"{name}: confidences must lie in [0, 1]")
    return c, y


@dataclass(frozen=True)
class Gate:
    """Acts on a run whose calibration gets worse while its accuracy stands still.

    Whether it closes is a function of the looks alone, so that it keeps no state and survives a restart.

    Args:
        tolerance: rise of the calibration error above that of the start which is too much.
        gain: accuracy that a look has to win over the one before to be forgiven.
        weight: of the calibration error in the score that the best weights are chosen by.
        action: what happens where it closes: `stop` the run, or `halve` the policy's learning rate.
    """

    tolerance: float = 0.05
    gain: float = 0.01
    weight: float = 1.0
    action: str = "stop"

    def __post_init__(self) -> None:
        for name in ("tolerance", "gain", "weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"gate.{name} must be >= 0, got {getattr(self, name)}")
        if self.action not in ("stop", "halve"):
            raise ValueError(f"gate.action must be stop or halve, got {self.action!r}")

    def score(self, accuracy: float, ece: float) -> float:
        """`accuracy - weight * ece`."""
        return accuracy - self.weight * ece

    def closed(self, looks: Sequence[tuple[float, float]]) -> bool:
        """Whether the gate closes at the newest look.

        Args:
            looks: (accuracy, ece) of the start and of every look since, oldest first.
        """
        if len(looks) < 2:
            return False
        (before, _), (accuracy, ece) = looks[-2:]
        return ece - looks[0][1] > self.tolerance and accuracy - before < self.gain

    def best(self, looks: Sequence[tuple[float, float]]) -> int:
        """Index of the look with the best score; the first of equals.

        Raises:
            ValueError: no look.
        """
        if not looks:
            raise ValueError("gate: there was no look yet")
        scores = [self.score(*look) for look in looks]
        return scores.index(max(scores))
