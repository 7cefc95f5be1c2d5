"""Before training: what the policy could do at the start, and what training changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gainstage.measure.intervals import Estimate, PairedDifference, mean_interval, paired_difference
from gainstage.measure.metrics import describe
from gainstage.measure.runs import ANY_TASK, Arm, RunRecord, read

PLAIN_MEANS = ("greedy", "length/mean", "length/truncated", "entropy/mean", "kl/start", "abstention",
               "abstention/unanswerable", "abstention/answerable", "pass@1/answerable", "hallucination")  # fmt: skip
"""Side effects whose value does not depend on the number of answers, which a first look may have fewer of."""
Row = Callable[[RunRecord], Mapping[str, float]]
SHARE = 1 / 3
"""Greedy pass@1 that gains less than this share of what sampled pass@1 gains: answers became surer, hardly better."""


def first_row(run: RunRecord) -> Mapping[str, float]:
    """The curve's first row, where nothing was spent before it."""
    row = run.curve[0] if run.curve else {}
    return {} if any(amount for name, amount in row.items() if name.startswith("budget/")) else row


def start_row(run: RunRecord) -> Mapping[str, float]:
    """The look before training: numbers of its kept answers where they are as many as those of the last look.

    Else, and for what answers do not tell, the curve's first row.
    """
    row = first_row(run)
    return {**row, **run.numbers_before()} if row and as_many(run) else row


def as_many(run: RunRecord) -> bool:
    """Whether the first look has as many answers to each problem as the last one."""
    sizes = [{r.n + r.failed for rs in side.values() for r in rs} for side in (run.before, run.evaluation)]
    return sizes[0] == sizes[1] != set()


def names_before(arm: Arm, names: Sequence[str]) -> list[str]:
    """Those of some side effects that may be set beside the last look's."""
    return [name for name in names if name in PLAIN_MEANS or all(as_many(run) for run in arm.runs.values())]


def start_values(arm: Arm, name: str, row: Row = start_row) -> list[float]:
    """The held-out number before training by seed; empty if any run lacks it."""
    full = name if name.startswith("eval/") else ANY_TASK + name
    found = [read(row(arm.runs[seed]), full) for seed in arm.seeds]
    return [value for value in found if value is not None] if None not in found else []


def at_start(arm: Arm, names: Iterable[str], level: float, row: Row = start_row) -> dict[str, Estimate]:
    """Name -> mean over seeds before training, with its t interval."""
    found = {name: start_values(arm, name, row) for name in names}
    return {n: mean_interval(values, level, describe(n).bounds) for n, values in found.items() if values}


def gain(
    arm: Arm, metric: str, scores: Mapping[int, float], level: float, row: Row = start_row
) -> PairedDifference | None:
    """What training changed: score minus the score before, paired by seed. None where either is missing.

    Args:
        row: what a run was before training; `first_row` where the scores are read off the curves, too.
    """
    first = start_values(arm, metric, row) if metric.startswith("eval/") else []
    if not first or any(seed not in scores for seed in arm.seeds):
        return None
    bounds = describe(metric).difference_bounds
    return paired_difference([scores[seed] for seed in arm.seeds], first, level, bounds=bounds)


def sharpening(arms: Sequence[Arm], numbers: Mapping[tuple[str, int], Mapping[str, float]], metric: str) -> list[str]:
    """A warning for every arm whose gain since the start is mostly that of surer answers.

    Greedy pass@1 gained less than a third of what sampled pass@1 did, and the interval of the difference of the two
    gains over seeds leaves out zero.
    """
    out = []
    for arm in arms if describe(metric).name == "pass@1" else []:
        sampled, greedy = _gains(arm, numbers, metric), _gains(arm, numbers, ANY_TASK + "greedy")
        if not sampled or not greedy:
            continue
        gap = paired_difference(sampled, greedy)
        mean, likeliest = sum(sampled) / len(sampled), sum(greedy) / len(greedy)
        if gap.excludes_zero and mean > 0 and likeliest < SHARE * mean:
            write = describe("greedy").change
            out.append(
                f"{arm.name}: since the start pass@1 changed by {write(mean)} points, greedy pass@1 by "
                f"{write(likeliest)}: its answers became surer more than better."
            )
    return out


def _gains(arm: Arm, numbers: Mapping[tuple[str, int], Mapping[str, float]], metric: str) -> list[float]:
    """Final number minus that before training, by seed; empty if any is missing."""
    last = [read(numbers[arm.name, seed], metric) for seed in arm.seeds]
    first = start_values(arm, metric)
    return [b - a for a, b in zip(first, last, strict=True) if b is not None] if first and None not in last else []
