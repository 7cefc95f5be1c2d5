"""How often `compare --until-decided` claims a difference of arms whose means are equal, by the shape of their scores.

    ./gs python benchmarks/stopping_shapes.py            # 2,000 comparisons a row, seconds
    ./gs python benchmarks/stopping_shapes.py --count 20000 --json

Looks come after every seed from 3 to 20. Beside it the paired t test read once, at 20 seeds, and read at every look.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

from gainstage.measure.sequential import critical_t

FIRST, LAST, ALPHA = 3, 20, 0.05
Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def collapsing(rng: np.random.Generator, shape: tuple[int, int], rate: float = 0.2) -> np.ndarray:
    """Scores of which one in five is lost, with mean 0."""
    return 0.8 * (rate - (rng.uniform(size=shape) < rate)) + rng.normal(0, 0.01, shape)


SHAPES: dict[str, Draw] = {
    "normal": lambda rng, s: rng.normal(size=s),
    "two arms of one skewed method": lambda rng, s: rng.lognormal(0, 1, s) - rng.lognormal(0, 1, s),
    "two arms near the ceiling": lambda rng, s: rng.beta(8, 1.5, s) - rng.beta(8, 1.5, s),
    "two arms that both collapse": lambda rng, s: collapsing(rng, s) - collapsing(rng, s),
    "exponential, mean 0": lambda rng, s: rng.exponential(size=s) - 1,
    "lognormal, mean 0": lambda rng, s: rng.lognormal(0, 1, s) - np.exp(0.5),
    "only one arm collapses, equal means": collapsing,
}
"""Paired differences, all with mean 0."""


def rates(draw: Draw, count: int, seed: int) -> dict[str, float]:
    """Shares of `count` comparisons that end in a claim."""
    d = draw(np.random.default_rng(seed), (count, LAST))
    looks = range(FIRST, LAST + 1)
    t = np.stack([abs(d[:, :n].mean(1)) / (d[:, :n].std(1, ddof=1) / np.sqrt(n)) for n in looks], 1)
    student = np.array([stats.t.ppf(1 - ALPHA / 2, n - 1) for n in looks])
    anytime = np.array([critical_t(n, ALPHA) for n in looks])
    return {
        "until decided": float((t >= anytime).any(1).mean()),
        "t test, read once": float((t[:, -1] >= student[-1]).mean()),
        "t test, every look": float((t >= student).any(1).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="comparisons a row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    rows = {name: rates(draw, given.count, given.seed) for name, draw in track(SHAPES.items(), disable=given.json)}
    if given.json:
        print(json.dumps({"count": given.count, "seed": given.seed, "false claims": rows}, indent=1))
        return
    table = Table("differences", *next(iter(rows.values())), title="false claims")
    for name, row in rows.items():
        table.add_row(name, *(f"{100 * share:.1f} %" for share in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
