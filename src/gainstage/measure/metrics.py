"""What the measured names mean: label, unit, one line of meaning, and how a value is written."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gainstage.measure.budget import AXES

MINUS = "\u2212"
NONE = "\u2013"


@dataclass(frozen=True)
class Metric:
    """A named number. `rate`: it lies in [0, 1] and is written in percent, its differences in points.

    `signed`: the number is a difference of rates itself. `positive`: it is never below zero.
    `less`: a smaller number is the better one.
    """

    name: str
    label: str
    unit: str
    meaning: str
    rate: bool = False
    signed: bool = False
    positive: bool = False
    less: bool = False

    @property
    def better(self) -> str:
        """`lower` or `higher`: what counts as a gain."""
        return "lower" if self.less else "higher"

    @property
    def bounds(self) -> tuple[float, float] | None:
        if self.rate:
            return (-1.0, 1.0) if self.signed else (0.0, 1.0)
        return (0.0, math.inf) if self.positive else None

    @property
    def difference_bounds(self) -> tuple[float, float] | None:
        return None if not self.rate else (-2.0, 2.0) if self.signed else (-1.0, 1.0)

    def text(self, value: float | None) -> str:
        """The value with its unit where it is short."""
        if value is None or not math.isfinite(value):
            return NONE
        if self.signed:
            return f"{self.change(value)} points"
        return f"{number(100 * value, 1)} %" if self.rate else short(value)

    def change(self, value: float | None, beside: float | None = None) -> str:
        """A signed difference; of rates in percentage points. `beside`: with the digits of that value's text."""
        if value is None or not math.isfinite(value):
            return NONE
        if self.rate:
            body = number(abs(100 * value), 1)
        elif beside is not None and 1e-3 <= abs(beside) < 9_999:
            body = number(abs(value), len(short(beside).partition(".")[2]))
        else:
            body = short(abs(value))
        zero = not any(digit in "123456789" for digit in body)
        return ("" if zero else "+" if value > 0 else MINUS) + body

    @property
    def change_unit(self) -> str:
        return "points" if self.rate else self.unit


_KNOWN = (
    Metric("reward/mean", "reward", "", "mean reward of an answer or episode"),
    Metric("length/mean", "length", "tokens", "mean length of an answer or episode, in decisions", positive=True),
    Metric(
        "length/truncated",
        "cut off",
        "",
        "share of answers cut off by a limit of length, turns or time",
        True,
        less=True,
    ),
    Metric(
        "groups/zero_variance", "dead groups", "", "share of groups whose answers all got one reward", True, less=True
    ),
    Metric("entropy/mean", "entropy", "nats", "mean entropy of the policy per decision, in nats", positive=True),
    Metric("kl/start", "KL from start", "nats", "mean divergence from the starting weights per decision, in nats"),
    Metric("kl/ref", "KL from reference", "nats", "mean divergence from the reference policy per decision, in nats"),
    Metric("kl/sampler", "KL from sampler", "nats", "divergence of the trainer's numbers from the engine's, in nats"),
    Metric("greedy", "greedy pass@1", "", "share of problems that the likeliest answer (temperature 0) solves", True),
    Metric("abstention", "abstained", "", "share of answers that decline to answer", True),
    Metric("hallucination", "wrong if attempted", "", "share of wrong answers among those attempted", True, less=True),
    Metric(
        "ece",
        "calibration error",
        "",
        "expected calibration error over 10 bins: stated confidence, else the share "
        "of the most frequent answer, against truth",
        True,
        less=True,
    ),
    Metric(
        "ece/shared",
        "calibration error, shared",
        "",
        "calibration error on the problems that both arms attempted",
        True,
        less=True,
    ),
    Metric("brier", "Brier score", "", "mean squared distance of confidence and truth", less=True),
    Metric(
        "aurc",
        "risk over coverage",
        "",
        "mean share of wrong answers over all coverages, most confident first",
        True,
        less=True,
    ),
    Metric("diversity", "distinct answers", "", "mean number of distinct answers to a problem"),
    Metric(
        "abstention/unanswerable",
        "abstained rightly",
        "",
        "share of answers to unanswerable problems that decline",
        True,
    ),
    Metric(
        "abstention/answerable",
        "abstained wrongly",
        "",
        "share of answers to answerable problems that decline",
        True,
        less=True,
    ),
    Metric("pass@1/answerable", "pass@1, answerable", "", "share of right answers to problems that have one", True),
    Metric("confidence/mean", "confidence", "", "mean confidence that the policy states", True),
)
_BY_NAME = {metric.name: metric for metric in _KNOWN}
_OF_EPISODES = {
    metric.name: metric
    for metric in (
        Metric("length/mean", "episode length", "steps", "mean steps of an episode", positive=True),
        Metric("length/truncated", "cut off", "", "share of episodes cut off by a limit of time", True, less=True),
        Metric("budget/trained_tokens", "trained steps", "steps", "steps that an optimizer saw, each epoch counted"),
        Metric("budget/scored_tokens", "scored steps", "steps", "steps that a net only scored, without training"),
    )
}
"""What is said otherwise where a decision is an environment's step and no token."""

TAX = ("greedy", "length/mean", "length/truncated", "entropy/mean", "diversity", "kl/start", "kl/ref", "abstention",
       "abstention/unanswerable", "abstention/answerable", "pass@1/answerable", "hallucination", "ece")  # fmt: skip
"""Side effects that stand beside every gain, and so does pass@k for the largest k and every retained task."""
RETAINED = "retained/"
"""In front of a task that is looked at before and after training on another one: `retained/{task}` is its pass@1 at
the end, `retained/{task}/change` its change since the start."""


def known_names() -> list[str]:
    """Names that are known beforehand, without pass@k."""
    return list(_BY_NAME)


def describe(name: str, episodes: bool = False) -> Metric:
    """The metric of a log name; `eval/{task}/` in front of it is left out. Unknown names describe themselves.

    Args:
        episodes: decisions are an environment's steps, no tokens.
    """
    bare = name.split("/", 2)[2] if name.startswith("eval/") and name.count("/") >= 2 else name
    if episodes and bare in _OF_EPISODES:
        return _OF_EPISODES[bare]
    if bare in _BY_NAME:
        return _BY_NAME[bare]
    if bare.startswith("budget/") and bare[7:] in AXES:
        axis = AXES[bare[7:]]
        return Metric(bare, bare[7:].replace("_", " "), axis.unit, axis.meaning)
    if bare.startswith("pass@"):
        k = bare[5:]
        meaning = "share of answers that are right" if k == "1" else (
            f"chance that at least one of {k} answers is right (unbiased estimate), mean over problems"
        )  # fmt: skip
        return Metric(bare, bare, "", meaning, True)
    if bare.startswith(RETAINED):
        task = bare[len(RETAINED) :].removesuffix("/change")
        if bare.endswith("/change"):
            return Metric(
                bare, f"change on {task}", "", f"pass@1 on {task} at the end minus before training", True, True
            )
        return Metric(bare, f"pass@1 on {task}", "", f"share of right answers on {task}, which was not trained", True)
    return Metric(bare, bare, "", bare)


def number(value: float, digits: int) -> str:
    """Fixed digits with a real minus sign; never a negative zero."""
    text = f"{value:,.{digits}f}".replace(",", "\u202f")
    if text.startswith("-"):
        return MINUS + text[1:] if any(digit in "123456789" for digit in text) else text[1:]
    return text


def short(value: float | None) -> str:
    """Three significant digits, with k, M, G, T for large amounts."""
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    if size >= 9_999.5:
        power = min(int(math.log10(size * 1.0005)) // 3, 6)
        digits = 0 if size / 1000**power >= 99.95 else 1
        return number(value / 1000**power, digits).removesuffix(".0") + "_kMGTPE"[power]
    if size >= 99.95 or value == int(value):
        return number(value, 0)
    if size < 1e-3:
        return f"{value:.1e}".replace("-", MINUS)
    return number(value, max(0, 2 - math.floor(math.log10(size * 1.0005))))
