"""The arms of a comparison: what is typed becomes runs, and finished runs become a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gainstage.cli.side_by_side import Job

if TYPE_CHECKING:
    from gainstage.chain import Chain
    from gainstage.measure.compare import Report


@dataclass(frozen=True)
class Setup:
    """What all runs of a comparison have in common; attributes as the arguments of `plan_runs`."""

    arms: Sequence[str]
    shared: Sequence[str]
    home: Path
    plugins: Sequence[Path]
    threads: int

    def plan(self, seeds: Iterable[int], *more: str) -> list[Job]:
        """The runs of these seeds, with more changes for every arm."""
        return plan_runs(self.arms, seeds, [*self.shared, *more], self.home, self.plugins, self.threads)


def plan_runs(
    arms: Sequence[str], seeds: Iterable[int], shared: Sequence[str], home: Path, plugins: Sequence[Path], threads: int
) -> list[Job]:
    """The runs of a comparison, all arms of one seed side by side. Every mistake is said here, before the first run.

    Args:
        arms: as typed: `recipe`, or `recipe,key=value,...`; the first is the baseline.
        shared: changes for every arm.
        home: folder of the comparison.

    Raises:
        RecipeError: fewer than two arms, arms that cannot be told apart, or a recipe that does not hold together.
    """
    from gainstage.registry import RecipeError
    from gainstage.spending import all_axes, example, offer

    if len(arms) < 2:
        raise RecipeError("compare needs at least two arms, for instance: gainstage compare grpo rgra")
    twice = [arm for arm in arms if arms.count(arm) > 1]
    if twice:
        raise RecipeError(f"compare: the arm {twice[0]!r} is given twice")
    plan = [_job(arm, seed, shared, home, plugins, threads) for seed in seeds for arm in arms]
    places: dict[Path, str] = {}
    spent: dict[str, set[str]] = {}
    limits: dict[str, dict[str, float]] = {}
    for arm, job in zip(arms, plan, strict=False):
        if (twin := places.setdefault(job.folder, arm)) != arm:
            raise RecipeError(
                f"compare: the arms {twin!r} and {arm!r} would both be written to {job.folder}; "
                "rename one of the files, or spell the changes differently"
            )
        chains = chains_of(job)
        spent[job.arm], limits[job.arm] = all_axes(chains), chains[0].recipe.budget
    for arm, axes in spent.items():
        if limits[arm] and not axes.intersection(limits[arm]):
            common = set.intersection(*spent.values())
            raise RecipeError(
                f"compare: the arm {arm!r} spends no {' and no '.join(limits[arm])}, so this budget would never end "
                f"it; all arms spend {offer(common)}: give for instance --budget {example(common)}"
            )
    return plan


def chains_of(job: Job) -> list[Chain]:
    """The components of every phase of a run."""
    from gainstage.chain import build_chain
    from gainstage.recipe import load, phase_recipe

    recipe = load(job.recipe, [*job.overrides, "seed=0"])
    return [build_chain(phase_recipe(recipe, index)) for index in range(len(recipe.phases) or 1)]


def plan_of_looks(job: Job) -> str:
    """What looking at held-out problems costs a run beside training."""
    from gainstage.cli.train import cost_of_looking
    from gainstage.recipe import load

    return cost_of_looking(load(job.recipe, [*job.overrides, "seed=0"]), chains_of(job)[-1])


def home_name(arms: Sequence[str]) -> str:
    """The folder of a comparison that was given no name."""
    return "compare-" + "-".join(Path(pieces(arm)[0]).stem for arm in arms)


def write_report(
    plan: Sequence[Job],
    home: Path,
    metric: str,
    complete: Callable[[Report], Report] | None = None,
    *,
    axis: str | None = None,
    sequential: bool = False,
    effect: float | None = None,
) -> Report:
    """Measure the finished runs of a plan; writes `report.html`, `report.md` and `report.json` into `home`.

    Args:
        complete: adds to the report what the runs do not know, such as what tuning them cost.
        axis: what is to be spent equally and what the curves are drawn against first; the budget's where None.
        sequential: the number of seeds was not fixed beforehand.
        effect: smallest difference that matters.
    """
    from gainstage.measure.compare import compare
    from gainstage.measure.report import render
    from gainstage.running import load_record
    from gainstage.tracking.files import replace_text

    report = compare(
        [record for job in plan if (record := load_record(job.folder)) is not None],
        metric,
        baseline=plan[0].arm,
        axis=axis,
        title=" against ".join(dict.fromkeys(job.arm for job in plan)),
        created=datetime.now(UTC).isoformat(timespec="minutes"),
        sequential=sequential,
        effect=effect,
    )
    report = with_earlier_looks(report, home / "report.json")
    report = complete(report) if complete else report
    replace_text(home / "report.html", render(report))
    replace_text(home / "report.md", report.markdown())
    replace_text(home / "report.json", report.to_json())
    return report


def with_earlier_looks(report: Report, file: Path) -> Report:
    """The report with the numbers of seeds at which this comparison was reported before, and what that means."""
    from gainstage.measure.compare import Report

    if not file.is_file():
        return report
    try:
        before = Report.from_json(file.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError):
        return report  # of another version, or cut off
    same = before.metric == report.metric and [a.name for a in before.arms] == [a.name for a in report.arms]
    now = len(report.arms[0].seeds)
    if not same or len(before.arms[0].seeds) > now:
        return report
    looks = sorted({*before.looks, len(before.arms[0].seeds)} - ({now} if not before.sequential else set()))
    if not looks or report.sequential:
        return replace(report, looks=looks)
    warning = (
        f"Looked at before with {', '.join(map(str, looks))} seeds: who goes on until something shows errs more often "
        f"than {100 * (1 - report.level):.2g} %. --until-decided gives intervals that hold at every look."
    )
    return replace(report, looks=looks, warnings=[*report.warnings, warning])


def _job(arm: str, seed: int, shared: Sequence[str], home: Path, plugins: Sequence[Path], threads: int) -> Job:
    from gainstage.recipe import compose

    recipe, *own = pieces(arm)
    name = Path(recipe).stem if not own else f"{Path(recipe).stem} ({', '.join(own)})"
    unbounded = () if compose(recipe).get("phases") else ("iterations=null",)  # the budget ends every arm
    return Job(
        name, recipe, (*unbounded, *shared, *own), seed, home / f"{slug(name)}-seed{seed}", tuple(plugins), threads
    )


def pieces(arm: str) -> list[str]:
    """The recipe and its changes: what stands between commas outside of brackets and quotes."""
    pieces, depth, quote = [""], 0, ""
    for letter in arm:
        if letter == "," and not depth and not quote:
            pieces.append("")
            continue
        if letter in "\"'":
            quote = "" if letter == quote else quote or letter
        elif not quote:
            depth += (letter in "[{(") - (letter in "]})")
        pieces[-1] += letter
    return pieces


def slug(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text).strip("-")
