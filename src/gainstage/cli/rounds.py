"""`gainstage compare --until-decided`: seeds in rounds, until every verdict stands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gainstage.cli.side_by_side import Job
    from gainstage.measure.compare import Report


def until_decided(
    plan_of: Callable[[range], list[Job]],
    run: Callable[[list[Job]], None],
    measure: Callable[[list[Job]], Report],
    *,
    first: int,
    most: int,
    step: int = 1,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> Report:
    """Run seeds until every arm is settled, or `most` of them are used up.

    What is finished already (an interrupted comparison, or a pilot) is looked at first and not run again.

    Args:
        plan_of: the jobs of some seeds.
        run: runs what is not finished.
        measure: the sequential report on all jobs so far.
        first, most: seeds of the first look and of the last.
        step: seeds a round.

    Raises:
        RecipeError: `most` seeds can never decide anything.
    """
    from gainstage.cli.power import finished_pairs
    from gainstage.measure.sequential import earliest_decision
    from gainstage.registry import RecipeError

    arms = len({job.arm for job in plan_of(range(1))}) - 1
    least = earliest_decision(0.05 / arms)
    if most < least:
        raise RecipeError(f"--max-seeds {most}: no verdict that holds at every look can come before {least} seeds")
    seeds = max(first, least, len({job.seed for job in finished_pairs(plan_of(range(most)))}))
    done, seeds = 0, min(seeds, most)
    while True:
        run(plan_of(range(done, seeds)))
        report = measure(plan_of(range(seeds)))
        open_arms = [c.arm for c in report.comparisons if not c.settled]
        say(f"{seeds} seeds: {report.sentence}" + (f" Open: {', '.join(open_arms)}." if open_arms else " Decided."))
        if not open_arms or seeds >= most:
            return report
        done, seeds = seeds, min(seeds + step, most)


def seeds_a_round(jobs: int, arms: Sequence[str]) -> int:
    """Enough seeds to keep all processes busy, and no more: fewer looks would only waste runs."""
    return max(1, -(-jobs // len(arms)))
