"""Can the verdicts be believed? Thousands of comparisons whose truth is known, through the house's own code.

    ./gs python benchmarks/aa.py                     # 2,000 comparisons a row, some minutes
    ./gs python benchmarks/aa.py --count 200         # a quick look
    ./gs python benchmarks/aa.py --micro 40          # 40 real runs of the embedded model, split at random

A/A: both arms are the same method, so every gain or loss is false and the interval must hold zero. A/B: an effect is
planted, whose true size is the mean over 20,000 runs. Every comparison goes through `measure.compare`: pairing,
interval, Holm correction and verdict are those of real runs. Beside them stands the percentile bootstrap.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from aa_bandit import SAMPLES, Method, evaluate, record, train
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gainstage.measure import outcome
from gainstage.measure.compare import prepare, verdicts
from gainstage.measure.intervals import paired_difference, power
from gainstage.measure.statistics import stratified_bootstrap

SEEDS = (3, 5, 10)
MOST = 20
CHUNK = 20
PLAIN = Method()


@dataclass(frozen=True)
class Arm:
    """A method, and how many answers to a problem it is judged by."""

    method: Method
    samples: int = SAMPLES


ARMS = {
    "base": Arm(PLAIN), "same": Arm(PLAIN), "same 2": Arm(PLAIN), "same 3": Arm(PLAIN),
    "better": Arm(replace(PLAIN, steps=44)), "noisy": Arm(replace(PLAIN, groups=3)),
    "coarse": Arm(PLAIN, 1), "coarse 2": Arm(PLAIN, 1),
    "ceiling": Arm(replace(PLAIN, head=8.0)), "ceiling 2": Arm(replace(PLAIN, head=8.0)),
    "collapsing": Arm(replace(PLAIN, collapse=0.1)), "collapsing 2": Arm(replace(PLAIN, collapse=0.1)),
}  # fmt: skip
ROWS: dict[str, tuple[str, ...]] = {
    "A/A, two arms": ("base", "same"),
    "A/A, four arms with Holm": ("base", "same", "same 2", "same 3"),
    "A/B, planted effect": ("base", "better"),
    "A/B, unequal variance": ("base", "noisy"),
    "A/A, 24 answers in all": ("coarse", "coarse 2"),
    "A/A at the ceiling": ("ceiling", "ceiling 2"),
    "A/A, one run in ten collapses": ("collapsing", "collapsing 2"),
    "A/B, only one arm collapses": ("base", "collapsing"),
}
LOOKED_AT = ("A/A, two arms", "A/A, four arms with Holm", "A/B, planted effect")
SIDE = 4
"""Rows that are not looked at get a quarter of the comparisons."""
Tally = Counter[tuple[str, int, str]]


def judge(row: str, n: int, runs: Mapping[str, list[Any]], truth: Mapping[str, float], tally: Tally) -> None:
    """One comparison at `n` seeds, counted under its row."""
    base, *others = ROWS[row]
    found = verdicts(prepare([run for arm in ROWS[row] for run in runs[arm][:n]]))
    tally[row, n, "comparisons"] += 1
    tally[row, n, "any gain"] += any(c.verdict == outcome.GAIN for c in found)
    tally[row, n, "any claim"] += any(c.verdict in (outcome.GAIN, outcome.LOSS) for c in found)
    for arm, c in zip(others, found, strict=True):
        difference, true = c.difference, truth[arm] - truth[base]
        tally[row, n, "intervals"] += 1
        tally[row, n, "gain"] += c.verdict == outcome.GAIN
        plain = stratified_bootstrap([np.array(difference.differences)], np.mean, replicates=1000)
        for name, interval in (("t", difference), ("bootstrap", plain), ("bootstrap over problems too", c.bootstrap)):
            if interval.low is None:
                tally[row, n, f"{name}: none"] += 1
                tally[row, n, f"{name}: covered"] += 1
                continue
            tally[row, n, f"{name}: covered"] += interval.low <= true <= interval.high
            tally[row, n, f"{name}: width"] += interval.high - interval.low
        if difference.p is not None:
            tally[row, n, f"p {min(int(20 * difference.p), 19)}"] += 1
        unpaired(row, n, [run.numbers()["eval/bandit/pass@1"] for run in runs[arm][:n]],
                 [run.numbers()["eval/bandit/pass@1"] for run in runs[base][:n]], true, tally)  # fmt: skip
        tally[row, n, "sum of differences"] += difference.value
        tally[row, n, "sum of squared differences"] += sum(d * d for d in difference.differences)
        tally[row, n, "sum of pairs"] += sum(difference.differences)


def unpaired(row: str, n: int, a: list[float], b: list[float], true: float, tally: Tally) -> None:
    """Welch's interval, as if the runs were not paired."""
    from scipy import stats

    va, vb = np.var(a, ddof=1) / n, np.var(b, ddof=1) / n
    if va + vb == 0:
        return
    freedom = (va + vb) ** 2 / ((va**2 + vb**2) / (n - 1))
    half = stats.t.ppf(0.975, freedom) * math.sqrt(va + vb)
    tally[row, n, "Welch: intervals"] += 1
    tally[row, n, "Welch: covered"] += abs(np.mean(a) - np.mean(b) - true) <= half
    tally[row, n, "Welch: width"] += 2 * half


def look_on(row: str, runs: Mapping[str, list[Any]], truth: Mapping[str, float], tally: Tally) -> None:
    """One comparison looked at after every seed: when is something claimed, by both kinds of interval?"""
    base, *others = ROWS[row]
    found = verdicts(prepare([run for arm in ROWS[row] for run in runs[arm][:MOST]], sequential=True))
    tally[row, MOST, "looked at"] += 1
    claims = [c.decided_after for c in found if c.verdict in (outcome.GAIN, outcome.LOSS)]
    if claims:
        tally[row, min(claims), "first claim"] += 1
    for arm, c in zip(others, found, strict=True):
        true = truth[arm] - truth[base]
        tally[row, MOST, "sequential: covered"] += c.difference.low <= true <= c.difference.high
        tally[row, MOST, "sequential: intervals"] += 1
        if c.decided_after and c.verdict == outcome.GAIN:
            tally[row, c.decided_after, "gain decided"] += 1
    for n in range(3, MOST + 1):
        ps = [paired_difference(c.difference.differences[:n], [0.0] * n).p for c in found]
        if min((p for p in ps if p is not None), default=1.0) * len(others) <= 0.05:
            tally[row, n, "first claim of the fixed interval"] += 1
            break


def chunk(start: int, truth: Mapping[str, float]) -> Tally:
    """`CHUNK` comparisons of every row, at every number of seeds."""
    tally: Tally = Counter()
    seeds = np.arange(start * MOST, (start + CHUNK) * MOST)
    runs: dict[str, list[Any]] = {}
    main = {arm for row in LOOKED_AT for arm in ROWS[row]}
    for index, (name, arm) in enumerate(ARMS.items()):
        few = seeds if name in main else seeds[: max(CHUNK // SIDE, 1) * MOST]
        seen = evaluate(train(arm.method, few, index), few, arm.samples)
        runs[name] = [record(name, i % MOST, seen[i], arm.samples) for i in range(len(few))]
    for first in range(0, len(seeds), MOST):
        mine = {arm: rows[first : first + MOST] for arm, rows in runs.items()}
        for row in ROWS:
            for n in SEEDS if all(mine[arm] for arm in ROWS[row]) else ():
                judge(row, n, mine, truth, tally)
        for row in LOOKED_AT:
            look_on(row, mine, truth, tally)
    return tally


def true_scores(runs: int = 20_000) -> dict[str, float]:
    """Mean score of every arm over many runs, the held-out problems held fixed."""
    blocks = [np.arange(first, first + 2000) + 10**8 for first in range(0, runs, 2000)]
    known: dict[Method, float] = {}
    for arm in ARMS.values():
        if arm.method not in known:
            known[arm.method] = float(np.mean([train(arm.method, block, 0).mean() for block in blocks]))
    return {name: known[arm.method] for name, arm in ARMS.items()}


def run(count: int, jobs: int, console: Console) -> dict[str, Any]:
    """All rows; the result as JSON can hold it."""
    with Progress(console=console) as progress:
        bar = progress.add_task("truth", total=count + CHUNK)
        truth = true_scores()
        progress.update(bar, advance=CHUNK, description="comparisons")
        tally: Tally = Counter()
        for part in spread(range(0, count, CHUNK), truth, jobs):
            tally.update(part)
            progress.update(bar, advance=CHUNK)
    rows = [summary(row, n, tally, truth) for row in ROWS for n in SEEDS]
    return {
        "created": datetime.now(UTC).isoformat(timespec="minutes"),
        "comparisons": tally["A/A, two arms", SEEDS[0], "comparisons"],
        "true scores": truth,
        "rows": rows,
        "looks": [looks(row, tally, truth) for row in LOOKED_AT],
    }


def spread(starts: range, truth: Mapping[str, float], jobs: int) -> Iterator[Tally]:
    if jobs == 1:
        yield from (chunk(start, truth) for start in starts)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(partial(chunk, truth=truth), starts)


def summary(row: str, n: int, tally: Tally, truth: Mapping[str, float]) -> dict[str, Any]:
    """Shares of one row."""
    got = {key: value for (r, m, key), value in tally.items() if (r, m) == (row, n)}
    intervals, comparisons = got["intervals"], got["comparisons"]
    base, other = ROWS[row][0], ROWS[row][1]
    pairs = intervals * n
    mean = got["sum of pairs"] / pairs
    sd = math.sqrt((got["sum of squared differences"] - pairs * mean**2) / (pairs - 1))
    effect = truth[other] - truth[base]
    return {
        "row": row, "seeds": n, "comparisons": comparisons, "intervals": intervals, "effect": effect, "sd": sd,
        "coverage": got["t: covered"] / intervals,
        "coverage of the bootstrap": got["bootstrap: covered"] / intervals,
        "coverage of the bootstrap over problems too": got["bootstrap over problems too: covered"] / intervals,
        "coverage without pairing": got["Welch: covered"] / max(got["Welch: intervals"], 1),
        "width": got["t: width"] / intervals, "width of the bootstrap": got["bootstrap: width"] / intervals,
        "width without pairing": got["Welch: width"] / max(got["Welch: intervals"], 1),
        "no interval": got.get("t: none", 0) / intervals,
        "gain": got["any gain"] / comparisons, "claim": got["any claim"] / comparisons,
        "power": power(effect, sd, n) if effect else None,
        "p": [got.get(f"p {k}", 0) / intervals for k in range(20)],
    }  # fmt: skip


def looks(row: str, tally: Tally, truth: Mapping[str, float]) -> dict[str, Any]:
    """What optional stopping does to one row, look by look."""
    total = tally[row, MOST, "looked at"]

    def by(key: str) -> list[float]:
        return [float(x) for x in np.cumsum([tally[row, n, key] for n in range(3, MOST + 1)]) / total]

    spent = sum(tally[row, n, "first claim"] * n for n in range(3, MOST + 1))
    undecided = total - sum(tally[row, n, "first claim"] for n in range(3, MOST + 1))
    return {
        "row": row, "comparisons": total, "seeds": list(range(3, MOST + 1)), "claims": by("first claim"),
        "claims of the fixed interval": by("first claim of the fixed interval"),
        "coverage": tally[row, MOST, "sequential: covered"] / tally[row, MOST, "sequential: intervals"],
        "mean seeds": (spent + undecided * MOST) / total,
    }  # fmt: skip


def show(result: Mapping[str, Any], console: Console) -> None:
    """The tables, row by row."""
    heads = ("", "seeds", "of", "coverage", "of bootstrap", "unpaired", "width", "gain", "claim", "power")
    table = Table(*heads, title="comparisons whose truth is known; shares in %")
    for row in result["rows"]:
        names = ("coverage", "coverage of the bootstrap", "coverage without pairing")
        ratio = row["width"] / row["width without pairing"] if row["width without pairing"] else math.nan
        power_text = "" if row["power"] is None else percent(row["power"])
        shares = (percent(row["gain"]), percent(row["claim"]), power_text)
        table.add_row(
            row["row"],
            str(row["seeds"]),
            str(row["comparisons"]),
            *(percent(row[n]) for n in names),
            f"{ratio:.2f}",
            *shares,
        )
    console.print(table)
    table = Table("looked at after every seed, 3 to 20", "claims", "of the fixed interval", "coverage", "mean seeds")
    for row in result["looks"]:
        shares = (row["claims"][-1], row["claims of the fixed interval"][-1], row["coverage"])
        table.add_row(row["row"], *map(percent, shares), f"{row['mean seeds']:.1f}")
    console.print(table)


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--count",
        type=int,
        default=2000,
        help="A/A and A/B comparisons (in steps of 20); a quarter of them in harder worlds",
    )
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count(), help="processes")
    parser.add_argument("--micro", type=int, default=0, help="instead: so many real runs of the embedded model")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    console = Console(stderr=True)
    if options.micro:
        from aa_micro import run_micro

        result = run_micro(options.micro, options.jobs, console)
    else:
        result = run(options.count, options.jobs, console)
        show(result, Console(width=max(Console().width, 120)))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
