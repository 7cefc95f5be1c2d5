"""A comparison in words: the verdict's sentence, its context, notes and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gainstage.measure import outcome
from gainstage.measure.metrics import describe, short
from gainstage.measure.outcome import Comparison
from gainstage.measure.runs import Arm

LISTED = 8


def overall(comparisons: Sequence[Comparison]) -> str:
    """One verdict for all arms: what forbids a claim first, then a gain, a loss, nothing shown."""
    found = {c.verdict for c in comparisons}
    order = (outcome.INCOMPARABLE, outcome.CONTAMINATED, outcome.GAIN, outcome.LOSS, outcome.NONE)
    return next(verdict for verdict in order if verdict in found)


def sentence(comparisons: Sequence[Comparison], metric: str) -> str:
    """The verdict on every arm, in one sentence."""
    return "; ".join(clause(c, metric) for c in comparisons) + "."


def clause(c: Comparison, metric: str) -> str:
    """The verdict on one arm, e.g. `gain confirmed for B: +4.1 points over A, 95 % interval +1.9 to +6.3`."""
    shown = describe(metric)
    if c.verdict == outcome.INCOMPARABLE:
        names = list(c.differing)
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        return f"not comparable: {c.arm} and {c.baseline} differ in {', '.join(names[:LISTED])}{more}"
    if c.verdict == outcome.CONTAMINATED:
        return f"contaminated: {c.arm} against {c.baseline} says nothing, {c.reason}"
    d = c.difference
    assert d is not None, "a comparable arm has a difference"
    unit = f" {shown.change_unit}" if shown.change_unit else ""
    text = f"{c.verdict} for {c.arm}: {shown.change(d.value)}{unit} against {c.baseline}"
    if d.low is not None and d.high is not None:
        text += f", {100 * d.level:g} % interval {shown.change(d.low)} to {shown.change(d.high)}"
    if c.decided_after is not None:
        text += f", decided after {c.decided_after} seeds"
    return text + (f" ({c.reason})" if c.reason else "")


def context(arms: Sequence[Arm], metric: str, axis: str, tasks: Sequence[str], sequential: bool = False) -> str:
    """What was compared: metric, tasks, pairs, and what a run of each arm spent."""
    looked = ", looked at after each: intervals and p values hold at any stop" if sequential else ""
    where = f" on {', '.join(tasks)}" if tasks else ""
    seeds = len(arms[0].seeds)
    spent = [run.spent.get(axis, 0.0) for arm in arms for run in arm.runs.values()]
    label = describe(f"budget/{axis}").label
    low, high = short(min(spent)), short(max(spent))
    budget = f"{low} {label} a run" if low == high else f"{low} to {high} {label} a run"
    return f"{describe(metric).label}{where}, {seeds} paired {'seed' if seeds == 1 else 'seeds'}{looked}, {budget}"


def notes(arms: Sequence[Arm]) -> list[str]:
    """What the runs had to say, each note once, with the arms it comes from where these are not all."""
    found: dict[str, list[str]] = {}
    for arm in arms:
        for note in dict.fromkeys(note for seed in arm.seeds for note in arm.runs[seed].notes):
            found.setdefault(note, []).append(arm.name)
    return [note if len(names) == len(arms) else f"{', '.join(names)}: {note}" for note, names in found.items()]


def equal_pairs(comparisons: Sequence[Comparison]) -> list[str]:
    """Arms whose runs end exactly like the baseline's: where their interval comes from."""
    return [
        f"{c.arm}: equal to {c.baseline} in every pair, so runs show no spread; "
        "the interval is what drawing the evaluation's answers alone would cause"
        for c in comparisons
        if c.difference is not None and c.difference.n > 1 and c.difference.sd == 0 and c.difference.low is not None
    ]


def contamination(arms: Sequence[Arm]) -> dict[str, dict[str, Any]]:
    """Arm -> check -> the worst overlap over its runs: count, sizes, examples."""
    out: dict[str, dict[str, Any]] = {}
    for arm in arms:
        worst: dict[str, Any] = {}
        for run in arm.runs.values():
            for name, overlap in run.contamination.items():
                if name not in worst or overlap.count > worst[name]["count"]:
                    worst[name] = {
                        "count": overlap.count, "evaluation": overlap.evaluation, "training": overlap.training,
                        "examples": list(overlap.examples),
                    }  # fmt: skip
        out[arm.name] = worst
    return out


def warnings(arms: Sequence[Arm], axis: str, basis: str) -> list[str]:
    """What a careful reader wants to be told."""
    out = []
    seeds = min(len(arm.seeds) for arm in arms)
    if seeds == 1:
        out.append("One seed gives no interval: run more seeds before believing any difference.")
    elif seeds < 5:
        out.append(f"{seeds} seeds: only large differences can be told from noise; 5 or more are better.")
    spent = [run.spent.get(axis, 0.0) for arm in arms for run in arm.runs.values()]
    label = describe(f"budget/{axis}").label
    if not max(spent):
        out.append(f"No run was charged on the axis {label}: equal budgets could not be checked.")
    elif basis != "final evaluation":
        low, high = short(min(spent)), short(max(spent))
        out.append(f"The runs spent unequally ({low} to {high} {label}), so scores are read off the {basis}.")
    if not all(run.contamination.get("exact") for arm in arms for run in arm.runs.values()):
        out.append("Overlap of training and evaluation problems was not checked in every run.")
    near = [r.contamination["ngram"] for a in arms for r in a.runs.values() if "ngram" in r.contamination]
    if near and (most := max(near, key=lambda o: o.count)).count:
        out.append(f"{most.count} of {most.evaluation} evaluation problems share long word sequences with training.")
    lost = sum(r.failed for a in arms for run in a.runs.values() for rows in run.evaluation.values() for r in rows)
    if lost:
        out.append(f"{lost} evaluation answers were lost to failures and are not counted.")
    return out
