"""Held-out evaluation: records per problem, and what they say in numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gainstage.measure.audits.calibration import Calibration, calibration, majority
from gainstage.measure.audits.pass_at_k import pass_at_k
from gainstage.measure.intervals import Estimate, clustered_rate, mean_interval, wilson
from gainstage.types import Problem, Stop

FEWEST_FOR_SHARE = 4
"""Answers a problem from which the share of the most frequent one is taken as confidence."""
DECLINED = "\0declined"
"""What an abstention counts as in a vote."""
TRUNCATED = frozenset({Stop.LENGTH, Stop.TURNS, Stop.CONTEXT, Stop.TIME_LIMIT})


@dataclass(frozen=True)
class Answer:
    """One sampled answer (or episode) with its verdict. What does not apply is None.

    `length` counts decisions (tokens, steps); `entropy` and `kl` are means over them in nats, `kl` against the weights
    that the run started from; `confidence` in [0, 1] is the model's own; `answer` is the final answer that was read
    out of the text (a digest where it is long), by which answers to one problem are counted as equal.
    """

    reward: float
    correct: bool | None = None
    length: int = 0
    stop: Stop = Stop.EOS
    confidence: float | None = None
    abstained: bool | None = None
    entropy: float | None = None
    kl: float | None = None
    answer: str | None = None

    @property
    def no_room(self) -> bool:
        """Whether the prompt filled the context."""
        return self.stop is Stop.CONTEXT and not self.length


@dataclass(frozen=True)
class EvalRecord:
    """All answers to one problem. `failed` counts answers lost to infrastructure: they are no verdict.

    `answerable` False: nothing but declining is right.
    """

    problem_id: str
    answers: tuple[Answer, ...]
    failed: int = 0
    answerable: bool = True

    @property
    def n(self) -> int:
        return len(self.answers)

    @cached_property
    def correct(self) -> list[bool]:
        """Verdicts of the answers that have one."""
        return [a.correct for a in self.answers if a.correct is not None]

    def to_dict(self) -> dict[str, Any]:
        rows = [{k: (str(v) if k == "stop" else v) for k, v in vars(a).items() if v is not None} for a in self.answers]
        data: dict[str, Any] = {"problem_id": self.problem_id, "failed": self.failed, "answers": rows}
        return data if self.answerable else {**data, "answerable": False}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> EvalRecord:
        answers = tuple(Answer(**{**row, "stop": Stop(row.get("stop", "eos"))}) for row in data["answers"])
        return cls(data["problem_id"], answers, data.get("failed", 0), data.get("answerable", True))


@dataclass(frozen=True)
class Evaluation:
    """Settings of an evaluation; part of every comparison's manifest."""

    samples: int = 16
    problems: int | None = None
    ks: tuple[int, ...] = field(default=(1, 4, 16))


def evaluate(
    sample: Callable[[list[Problem], int], list[list[Answer]]],
    problems: Iterable[Problem],
    k: int,
    batch: int | None = None,
) -> list[EvalRecord]:
    """Ask for `k` answers to every problem.

    Args:
        sample: `(problems, k) -> answers`, one list of `k` answers a problem, in order. How answers come about and
            who judges them is the caller's business.
        problems: held-out problems.
        k: answers per problem.
        batch: problems per call of `sample`; all at once where None.

    Raises:
        ValueError: no problem, k < 1, `sample` returned another number of answers, or no prompt left room for one.
    """
    asked = list(problems)
    if not asked:
        raise ValueError("evaluate: no problems; check the task's validation or test split")
    if k < 1:
        raise ValueError(f"evaluation.samples must be >= 1, got {k}")
    records = []
    for start in range(0, len(asked), batch or len(asked)):
        part = asked[start : start + (batch or len(asked))]
        answers = sample(part, k)
        if len(answers) != len(part) or any(len(row) != k for row in answers):
            raise ValueError(f"evaluate: asked for {len(part)} x {k} answers, got {[len(row) for row in answers][:8]}")
        for problem, row in zip(part, answers, strict=True):
            kept = tuple(a for a in row if a.stop is not Stop.FAILED)
            answerable = bool(problem.meta.get("answerable", True))
            records.append(EvalRecord(problem.id, kept, len(row) - len(kept), answerable))
    given = [answer for record in records for answer in record.answers]
    if given and all(answer.no_room for answer in given):
        raise ValueError(
            f"evaluate: all {len(records)} prompts fill the model's context and leave no room for an answer; load a "
            "model with a larger context, or shorten the prompts (the task, or the rollout's template)"
        )
    return records


def rate_interval(records: Sequence[EvalRecord], level: float = 0.95) -> Estimate | None:
    """pass@1 with its interval over problems: Wilson's for one answer a problem, clustered for several."""
    rows = [record.correct for record in records if record.correct]
    if not rows:
        return None
    if all(len(row) == 1 for row in rows):
        return wilson(sum(row[0] for row in rows), len(rows), level)
    return clustered_rate(rows, level)


def summarize(records: Sequence[EvalRecord], ks: Sequence[int] = (1, 4, 16), task: str = "") -> dict[str, float]:
    """Numbers of one evaluation under their log names; with `task`, prefixed by `eval/{task}/`.

    pass@1 with `pass@1/low` and `/high`, unbiased pass@k for every k that all problems have answers enough for and for
    the largest such k, reward (with its interval where answers have no verdicts), length, share cut off, answers that
    had no room (their prompt fills the context), and where the answers carry them entropy, KL from the start, distinct
    answers, abstention and hallucination rate (wrong share of attempted), and calibration: of stated confidences, else
    of the share of the most frequent answer.
    """
    answers = [answer for record in records for answer in record.answers]
    out: dict[str, float] = {"problems": len(records), "answers": len(answers)}
    if failed := sum(record.failed for record in records):
        out["failed"] = failed
    if answers:
        out["reward/mean"] = float(np.mean([a.reward for a in answers]))
        out["length/mean"] = float(np.mean([a.length for a in answers]))
        out["length/truncated"] = float(np.mean([a.stop in TRUNCATED for a in answers]))
        if full := sum(a.no_room for a in answers):
            out["dropped/no_room"] = full
        out |= _spread_of_returns(records)
        out |= _means_where_given(answers)
        out |= _pass_rates(records, ks)
        out |= _diversity(records)
        out |= _abstention(records)
        out |= _calibration(records)
    return {f"eval/{task}/{name}": value for name, value in out.items()} if task else out


def _spread_of_returns(records: Sequence[EvalRecord]) -> dict[str, float]:
    """The t interval of the mean reward over problems (starts), where answers (episodes) have no verdicts."""
    if any(record.correct for record in records):
        return {}
    found = returns_interval(records)
    if found.low is None or found.high is None:
        return {}
    return {"reward/mean/low": found.low, "reward/mean/high": found.high}


def _pass_rates(records: Sequence[EvalRecord], ks: Sequence[int]) -> dict[str, float]:
    rate = rate_interval(records)
    if rate is None or rate.low is None or rate.high is None:
        return {}
    out = {"pass@1": rate.value, "pass@1/low": rate.low, "pass@1/high": rate.high}
    judged = [record.correct for record in records if record.correct]
    fewest = min(len(row) for row in judged)
    for k in sorted({*ks, fewest}):
        if 1 < k <= fewest:
            out[f"pass@{k}"] = float(np.mean([pass_at_k(len(row), sum(row), k) for row in judged]))
    return out


def _means_where_given(answers: Sequence[Answer]) -> dict[str, float]:
    out = {}
    for name, key in (("entropy", "entropy/mean"), ("kl", "kl/start"), ("confidence", "confidence/mean")):
        values = [getattr(a, name) for a in answers if getattr(a, name) is not None]
        if values:
            out[key] = float(np.mean(values))
    return out


def _diversity(records: Sequence[EvalRecord]) -> dict[str, float]:
    """Mean number of distinct answers to a problem; samples without an answer count as one more kind."""
    rows = [record.answers for record in records if len(record.answers) > 1]
    if not rows or all(a.answer is None for row in rows for a in row):
        return {}
    return {"diversity": float(np.mean([len({_vote(a) for a in row}) for row in rows]))}


def _abstention(records: Sequence[EvalRecord]) -> dict[str, float]:
    """How often answers decline, and how often those that do not are wrong; both kinds of problems apart."""
    marked = [(r.answerable, a) for r in records for a in r.answers if a.abstained is not None]
    if not marked:
        return {}
    out = {"abstention": float(np.mean([bool(a.abstained) for _, a in marked]))}
    attempted = [a for _, a in marked if not a.abstained and a.correct is not None]
    if attempted:
        out["hallucination"] = float(np.mean([not a.correct for a in attempted]))
    hopeless = [bool(a.abstained) for answerable, a in marked if not answerable]
    needless = [bool(a.abstained) for answerable, a in marked if answerable]
    possible = [bool(a.correct) for answerable, a in marked if answerable and a.correct is not None]
    if hopeless and possible:
        out["abstention/unanswerable"] = float(np.mean(hopeless))
        out["abstention/answerable"] = float(np.mean(needless))
        out["pass@1/answerable"] = float(np.mean(possible))
    return out


def _calibration(records: Sequence[EvalRecord]) -> dict[str, float]:
    stated = [a for r in records for a in r.answers if a.confidence is not None and a.correct is not None]
    found: Calibration | None = None
    if stated:
        found = calibration(
            [a.confidence or 0.0 for a in stated], [bool(a.correct) for a in stated], [not a.abstained for a in stated]
        )
    elif votes := [vote for record in records if (vote := vote_of(record)) is not None]:
        found = calibration([share for share, _, _ in votes], [y for _, y, _ in votes], [a for _, _, a in votes])
    if found is None or found.ece is None or found.brier is None or found.aurc is None:
        return {}
    return {"ece": found.ece, "brier": found.brier, "aurc": found.aurc}


def vote_of(record: EvalRecord) -> tuple[float, bool, bool] | None:
    """(confidence, correct, attempted) of the most frequent answer to a problem; None with too few judged answers.

    Confidence is the share of all samples that gave it. A problem where most decline, or none answers, is no attempt.
    """
    judged = [a for a in record.answers if a.correct is not None]
    if len(judged) < FEWEST_FOR_SHARE or all(a.answer is None for a in judged):
        return None
    votes = [_vote(a) for a in judged]
    answer, share = majority(votes)
    if answer is None or answer == DECLINED:
        return 0.0, False, False
    return share, bool(judged[votes.index(answer)].correct), True


def _vote(answer: Answer) -> str | None:
    return DECLINED if answer.abstained else answer.answer


def returns_interval(records: Sequence[EvalRecord], level: float = 0.95) -> Estimate:
    """Mean reward over problems (start states) with its t interval."""
    return mean_interval([float(np.mean([a.reward for a in r.answers])) for r in records if r.answers], level)
