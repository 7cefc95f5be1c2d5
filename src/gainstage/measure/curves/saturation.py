"""How many answers it takes: pass@k against k, the untrained policy included, and how rates spread over problems.

Sources: Chen et al., arXiv 2107.03374, equation 1 (pass@k); Agarwal et al., arXiv 2108.13264 (performance profiles).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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


def saturation(arms: Sequence[Arm], tasks: Sequence[str], level: float = 0.95) -> Saturation:
    """Curves of all arms on these tasks; empty where verdicts are missing or there is one answer to each problem."""
    by_arm = {arm.name: [counts(arm.runs[seed].evaluation, tasks) for seed in arm.seeds] for arm in arms}
    if not all(by_run and all(by_run) for by_run in by_arm.values()):
        return Saturation()
    fewest = min(n for by_run in by_arm.values() for table in by_run for n, _ in table.values())
    if fewest < 2:
        return Saturation()
    start = pooled([counts(run.before, tasks) for run in arms[0].runs.values()])
    return Saturation(
        arms={name: _over_seeds([rates(table, powers(fewest)) for table in t], powers(fewest), level)
              for name, t in by_arm.items()},
        start=_start_curve(start, level),
        start_answers=min((n for n, _ in start.values()), default=0),
        reached={name: reached(start, by_run) for name, by_run in by_arm.items()} if start else {},
        profile={name: profile(by_run, level) for name, by_run in by_arm.items()},
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
    ks, rng = powers(fewest), np.random.default_rng(0)
    values, names = _problem_rates(table, ks), np.array([task for task, _ in table])
    drawn = []
    for task in dict.fromkeys(names):
        own = values[names == task]
        drawn.append(rng.multinomial(len(own), np.full(len(own), 1 / len(own)), RESAMPLES) @ own / len(own))
    low, high = np.quantile(np.mean(drawn, 0), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Curve([float(k) for k in ks], rates(table, ks).tolist(), low.tolist(), high.tolist())


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
