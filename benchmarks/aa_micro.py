"""A/A comparisons of real runs: one recipe, many seeds, split at random into two arms that do not differ."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from gainstage.cli.side_by_side import Job, run_all
from gainstage.measure import outcome
from gainstage.measure.compare import compare, prepare, verdicts
from gainstage.measure.statistics import stratified_bootstrap
from gainstage.running import load_record

HOME = Path("runs") / "aa-micro"
CHANGES = ("iterations=null", "budget.gradient_steps=8", "evaluate.every=1", "evaluate.problems=64")
SPLITS = 2000


def run_micro(count: int, jobs: int, console: Console) -> dict[str, Any]:
    """`count` short runs of GRPO on the embedded model (what is finished is kept), then 2,000 splits of them.

    The splits share runs, so their shares are less certain than those of as many independent comparisons.
    """
    plan = [Job("grpo", "grpo", CHANGES, seed, HOME / f"seed{seed}", (), 1) for seed in range(count)]
    run_all(plan, jobs)
    found = [record for job in plan if (record := load_record(job.folder)) is not None]
    if len(found) < 10:
        raise ValueError(f"--micro: at least 10 runs are needed for two arms of 5, there are {len(found)}")
    numbers = [record.numbers() for record in found]
    scores = np.array([next(v for k, v in row.items() if k.endswith("/pass@1")) for row in numbers])
    scored = [replace(r, final=row, evaluation={}, curve=[]) for r, row in zip(found, numbers, strict=True)]
    rng = np.random.default_rng(0)
    rows = []
    for n in (3, 5, 10):
        if 2 * n > count:
            continue
        tally: Counter[str] = Counter()
        for _ in range(SPLITS):
            drawn = rng.permutation(len(found))[: 2 * n]
            runs = [replace(scored[i], arm="ab"[k // n], seed=k % n) for k, i in enumerate(drawn)]
            (c,) = verdicts(prepare(runs))
            plain = stratified_bootstrap([np.array(c.difference.differences)], np.mean, replicates=1000)
            tally["covered"] += c.difference.low is None or not c.difference.excludes_zero
            tally["bootstrap"] += plain.low is None or not plain.excludes_zero
            tally["gain"] += c.verdict == outcome.GAIN
            tally["claim"] += c.verdict in (outcome.GAIN, outcome.LOSS)
        rows.append(
            {"row": "A/A, embedded model", "seeds": n, "splits": SPLITS, "coverage": tally["covered"] / SPLITS,
             "coverage of the bootstrap": tally["bootstrap"] / SPLITS, "gain": tally["gain"] / SPLITS,
             "claim": tally["claim"] / SPLITS}
        )  # fmt: skip
        console.print(rows[-1])
    half = [replace(r, arm="ab"[k % 2], seed=k // 2) for k, r in enumerate(found[: len(found) // 2 * 2])]
    return {
        "runs": len(found), "changes": list(CHANGES), "mean": float(scores.mean()), "sd": float(scores.std(ddof=1)),
        "rows": rows, "halves": compare(half).sentence,
    }  # fmt: skip
