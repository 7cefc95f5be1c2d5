"""How many answers it takes: pass@k against k, the untrained policy included, and how rates spread over problems.

Sources: Chen et al., arXiv 2107.03374, equation 1 (pass@k); Agarwal et al., arXiv 2108.13264 (performance profiles);
Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 8 (a drawn problem brings the answers of all arms
along, so that what makes it hard for all of them cancels).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gainstage.measure.audits.pass_at_k import pass_at_k
from gainstage.measure.curves.learning import Curve
from gainstage.measure.evaluate import EvalRecord
from gainstage.measure.intervals import mean_interval
from gainstage.measure.runs import Arm

RESAMPLES = 1000
THRESHOLDS = 41
Counts = dict[tuple[str, str], tuple[int, int]]
"""(task, problem) -> answers with a verdict, right ones among them."""


@dataclass(frozen=True)
class Saturation:
    """What more answers bring, by arm."""

    arms: dict[str, Curve] = field(default_factory=dict)
    """pass@k over k: mean over seeds with its t interval."""
    start: Curve | None = None
    """The same before training: answers of all seeds' first looks together, interval from a bootstrap over problems."""
    start_answers: int = 0
    reached: dict[str, int | None] = field(default_factory=dict)
    """Smallest k at which the untrained policy's pass@k is the arm's pass@1; None where `start_answers` do not do."""
    profile: dict[str, Curve] = field(default_factory=dict)
    """Share of problems that a run answers right more often than a threshold."""
    tokens: dict[str, Curve] = field(default_factory=dict)
    """The curves of `arms` over the tokens that k answers to a problem take on average."""
    start_tokens: Curve | None = None
    over_baseline: dict[str, Curve] = field(default_factory=dict)
    """pass@k minus the baseline's (the first arm's) over k, interval from a bootstrap over problems, paired."""
    over_start: dict[str, Curve] = field(default_factory=dict)
    """The same against the untrained policy."""


def saturation(arms: Sequence[Arm], tasks: Sequence[str], level: float = 0.95) -> Saturation:
    """Curves of all arms on these tasks; empty where verdicts are missing or there is one answer to each problem."""
    by_arm = {arm.name: [counts(arm.runs[seed].evaluation, tasks) for seed in arm.seeds] for arm in arms}
    if not all(by_run and all(by_run) for by_run in by_arm.values()):
        return Saturation()
    fewest = min(n for by_run in by_arm.values() for table in by_run for n, _ in table.values())
    if fewest < 2:
        return Saturation()
    base = arms[0]
    start = pooled([counts(run.before, tasks) for run in base.runs.values()])
    curves = {name: _over_seeds([rates(table, powers(fewest)) for table in t], powers(fewest), level)
              for name, t in by_arm.items()}  # fmt: skip
    untrained = _start_curve(start, level)
    length = mean_length([run.before for run in base.runs.values()], tasks)
    return Saturation(
        arms=curves,
        start=untrained,
        start_answers=min((n for n, _ in start.values()), default=0),
        reached={name: reached(start, by_run) for name, by_run in by_arm.items()} if start else {},
        profile={name: profile(by_run, level) for name, by_run in by_arm.items()},
        tokens={arm.name: _stretched(curves[arm.name], mean_length([r.evaluation for r in arm.runs.values()], tasks))
                for arm in arms},
        start_tokens=untrained and _stretched(untrained, length),
        over_baseline={name: paired(by_run, by_arm[base.name], level) for name, by_run in by_arm.items()
                       if name != base.name},
        over_start={name: paired(by_run, [start], level) for name, by_run in by_arm.items()} if start else {},
    )  # fmt: skip


def counts(records: dict[str, list[EvalRecord]], tasks: Sequence[str]) -> Counts:
    """Answers and right answers by problem; problems without a verdict are left out."""
    rows = [((task, r.problem_id), r.correct) for task in tasks for r in records.get(task, [])]
    return {key: (len(correct), sum(correct)) for key, correct in rows if correct}


def pooled(tables: Sequence[Counts]) -> Counts:
    """Answers of several runs of one policy together."""
    out: Counts = {}
    for table in tables:
        for key, (n, c) in table.items():
            before = out.get(key, (0, 0))
            out[key] = (before[0] + n, before[1] + c)
    return out


def powers(n: int) -> list[int]:
    """1, 2, 4, ... and n."""
    return sorted({2**i for i in range(n.bit_length())} | {n})


def rates(table: Counts, ks: Sequence[int]) -> np.ndarray:
    """pass@k, mean over the problems of a task and then over tasks, "K"."""
    return np.array([_by_task(table, values).mean(0) for values in _problem_rates(table, ks).T])


def _problem_rates(table: Counts, ks: Sequence[int]) -> np.ndarray:
    """Unbiased pass@k of each problem, "P K"."""
    known = {pair: [pass_at_k(*pair, k) for k in ks] for pair in set(table.values())}
    return np.array([known[pair] for pair in table.values()])


def _by_task(table: Counts, values: np.ndarray) -> np.ndarray:
    """Mean over the problems of each task, "T"."""
    names = np.array([task for task, _ in table])
    return np.array([values[names == task].mean() for task in dict.fromkeys(names)])


def _over_seeds(rows: Sequence[np.ndarray], x: Sequence[float], level: float) -> Curve:
    """Mean and t interval over seeds of values "K" in [0, 1]."""
    band = [mean_interval(column, level, (0.0, 1.0)) for column in np.array(rows).T]
    low = [e.value if e.low is None else e.low for e in band] if len(rows) > 1 else []
    high = [e.value if e.high is None else e.high for e in band] if len(rows) > 1 else []
    return Curve([float(v) for v in x], [e.value for e in band], low, high)


def _start_curve(table: Counts, level: float) -> Curve | None:
    """pass@k of one policy with a percentile bootstrap over the problems within each task."""
    fewest = min((n for n, _ in table.values()), default=0)
    if fewest < 1:
        return None
    ks = powers(fewest)
    return _over_problems([task for task, _ in table], _problem_rates(table, ks), ks, level)


def _over_problems(tasks: Sequence[str], values: np.ndarray, ks: Sequence[int], level: float) -> Curve:
    """Mean of values "P K" with a percentile bootstrap over the problems within each task."""
    rng, names = np.random.default_rng(0), np.array(tasks)
    means, drawn = [], []
    for task in dict.fromkeys(tasks):
        own = values[names == task]
        means.append(own.mean(0))
        drawn.append(rng.multinomial(len(own), np.full(len(own), 1 / len(own)), RESAMPLES) @ own / len(own))
    low, high = np.quantile(np.mean(drawn, 0), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Curve([float(k) for k in ks], np.mean(means, 0).tolist(), low.tolist(), high.tolist())


def paired(by_run: Sequence[Counts], base: Sequence[Counts], level: float) -> Curve:
    """pass@k of some runs minus that of others over k, on the problems that all of them share.

    Runs are averaged problem by problem, then problems are drawn for both sides at once: the interval tells how far
    other problems might have changed the difference, with these very runs. Empty without a common problem.
    """
    tables = [*by_run, *base]
    keys = [key for key in tables[0] if all(key in table for table in tables)]
    if not keys:
        return Curve([], [])
    ks = powers(min(table[key][0] for table in tables for key in keys))
    sides = [np.mean([_problem_rates({key: table[key] for key in keys}, ks) for table in side], 0)
             for side in (by_run, base)]  # fmt: skip
    return _over_problems([task for task, _ in keys], sides[0] - sides[1], ks, level)


def mean_length(runs: Sequence[dict[str, list[EvalRecord]]], tasks: Sequence[str]) -> float:
    """Tokens of an answer: mean over the judged answers to a problem, over problems, tasks and runs.

    k answers drawn from those to a problem take k times as many on average.
    """
    found = []
    for records in runs:
        for task in tasks:
            rows = [[a.length for a in r.answers if a.correct is not None] for r in records.get(task, [])]
            if means := [float(np.mean(row)) for row in rows if row]:
                found.append(float(np.mean(means)))
    return float(np.mean(found)) if found else 0.0


def _stretched(curve: Curve, length: float) -> Curve:
    """The curve over tokens instead of answers; empty where lengths are not known."""
    return replace(curve, x=[k * length for k in curve.x]) if length > 0 else Curve([], [])


def reached(start: Counts, by_run: Sequence[Counts]) -> int | None:
    """Smallest k at which the untrained policy's pass@k reaches the mean pass@1 of the runs, on their common problems.

    None where all of its answers do not do.
    """
    common = [key for key in start if all(key in table for table in by_run)]
    if not common:
        return None
    trained = np.mean([rates({key: table[key] for key in common}, [1])[0] for table in by_run])
    own = {key: start[key] for key in common}
    ks = range(1, min(n for n, _ in own.values()) + 1)
    return next((k for k, rate in zip(ks, rates(own, ks), strict=True) if rate >= trained - 1e-12), None)


def profile(by_run: Sequence[Counts], level: float) -> Curve:
    """Share of problems whose rate of right answers exceeds each threshold in [0, 1), mean over runs."""
    grid = np.linspace(0, 1, THRESHOLDS)
    grid[-1] = 1 - 1e-9  # the last point: problems that are always answered right
    rows = []
    for table in by_run:
        share = np.array([c / n for n, c in table.values()])
        rows.append(np.array([_by_task(table, share > threshold).mean() for threshold in grid]))
    return _over_seeds(rows, np.linspace(0, 1, THRESHOLDS).tolist(), level)
