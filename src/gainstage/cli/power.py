"""`gainstage compare --power`: how many seeds do I need?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gainstage.cli.side_by_side import Job
    from gainstage.measure.planning import SeedPlan


def finished_pairs(plan: Sequence[Job]) -> list[Job]:
    """The jobs of the seeds that every arm has finished; whatever a worker would find unfinished is left out."""
    from gainstage.cli.side_by_side import is_done

    done = {(job.arm, job.seed) for job in plan if is_done(job)}
    arms = {job.arm for job in plan}
    return [job for job in plan if all((arm, job.seed) in done for arm in arms)]


def plans_of(plan: Sequence[Job], metric: str, effect: float | None) -> list[SeedPlan]:
    """What the finished runs say. Nothing is written: a look at the spread is no look at the verdict."""
    from gainstage.measure.compare import compare
    from gainstage.measure.planning import plan_from
    from gainstage.running import load_record

    records = [record for job in plan if (record := load_record(job.folder)) is not None]
    return plan_from(compare(records, metric, baseline=plan[0].arm), effect)


def print_plans(plans: Sequence[SeedPlan], as_json: bool) -> None:
    """The table, or the same as JSON."""
    if as_json:
        print(json.dumps([asdict(plan) for plan in plans], ensure_ascii=False))
        return
    from rich.console import Console

    console = Console()
    for line in sentences(plans):
        console.print(line, highlight=False, markup=False)


def sentences(plans: Sequence[SeedPlan]) -> list[str]:
    """What every arm's comparison can find, in lines of text."""
    from gainstage.measure.metrics import describe

    shown = describe(plans[0].metric)
    unit = f" {shown.change_unit}" if shown.change_unit else ""

    def size(value: float | None) -> str:
        return shown.change(value).lstrip("+") + unit

    first = plans[0]
    out = [
        f"How many seeds? {shown.label}, paired t test at {100 * first.alpha:.3g} %"
        + (" (Holm's first step)" if first.alpha < 0.0499 else "")
        + f", found with probability {100 * first.power:g} %"
    ]
    for plan in plans:
        out.append("")
        name = f"{plan.arm}: " if plan.arm else ""
        if plan.sd is None:
            out.append(f"{name}nothing to plan with ({plan.reason}); run more seeds or give --sd")
            continue
        source = "given" if plan.pairs is None else f"from {plan.pairs} finished pairs"
        limit = f"; with 80 % confidence at most {size(plan.sd_safe)}" if plan.sd_safe is not None else ""
        out.append(f"{name}one paired difference varies by {size(plan.sd)} (sd, {source}{limit})")
        out += [f"  {n:>3} seeds find a difference of {size(value)}" for n, value in plan.detectable.items()]
        if plan.effect is not None:
            out.append(f"  a difference of {size(plan.effect)} needs {_seeds(plan.seeds)}{_safe(plan)}")
    return out


def _seeds(count: int | None) -> str:
    return "more than 10 000 seeds" if count is None else f"{count} seeds"


def _safe(plan: SeedPlan) -> str:
    return "" if plan.sd_safe is None else f", or {_seeds(plan.seeds_safe)} if the spread is at that limit"
