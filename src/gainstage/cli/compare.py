"""`gainstage compare`: arms, seeds, one budget, a verdict."""

from __future__ import annotations

import multiprocessing
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gainstage.cli.arms import Setup, home_name, plan_of_looks, write_report
from gainstage.cli.common import AsJson, Plugins, PolicyName, TaskName, ThreadsEach, changes, people_errors, prepare
from gainstage.cli.defaults import ANSWERS, BUDGET, EPISODES, defaults
from gainstage.cli.metric_names import check_metric
from gainstage.cli.power import finished_pairs, plans_of, print_plans
from gainstage.cli.rounds import seeds_a_round, until_decided
from gainstage.cli.side_by_side import Job, run_all
from gainstage.cli.tuning import tune_arms

if TYPE_CHECKING:
    from gainstage.measure.compare import Report

DEFAULT = ["grpo", "rgra", "reinforce_pp"]


@people_errors
def compare(
    arms: Annotated[
        list[str] | None,
        typer.Argument(
            help="Methods or YAML files; the first is the baseline. With changes: 'grpo,plan.epochs=2'.",
            show_default=False,
        ),
    ] = None,
    task: TaskName = None,
    policy: PolicyName = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            "--budget",
            help="Limit of every run, axis=number.",
            show_default=f"{' '.join(BUDGET)}; of steps, the first arm's",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of each arm.")] = 3,
    common: Annotated[
        list[str] | None, typer.Option("--set", help="Change for every arm, key=value.", show_default=False)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Name of the comparison, a path where it holds a slash; an unfinished one goes on.",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Folder of all runs.")] = Path("runs"),
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Runs side by side; 0 = one a core.")] = 0,
    threads: ThreadsEach = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric", help="What is compared.", show_default=f"{ANSWERS}; of episodes {EPISODES}, their return"
        ),
    ] = None,
    axis: Annotated[
        str | None,
        typer.Option(
            "--axis",
            help="What is to be spent equally, and what curves are drawn against: seconds, flops ...",
            show_default="the budget's",
        ),
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(
            "--tune",
            help="Tune every arm first, each with as many runs: trials=8, or trials=8,keys=update.policy.lr.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        bool,
        typer.Option("--until-decided", help="Add seeds until every verdict stands; its intervals hold at every look."),
    ] = False,
    most: Annotated[int, typer.Option("--max-seeds", help="Last look of --until-decided.")] = 20,
    effect: Annotated[
        float | None,
        typer.Option(
            "--effect", help="Smallest difference that matters: 0.02 = two points of pass@1.", show_default=False
        ),
    ] = None,
    power: Annotated[
        bool, typer.Option("--power", help="How many seeds do I need? From finished runs, else from a pilot or --sd.")
    ] = False,
    sd: Annotated[
        float | None,
        typer.Option("--sd", help="For --power: spread of one paired difference, if known.", show_default=False),
    ] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Compare methods at one budget, over seeds, and say whether there is a gain.

    Without arguments: GRPO, its REINFORCE simplification RGRA and REINFORCE++ on the embedded model. Runs are paired:
    seed s has the same problems, starting weights and evaluation noise in every arm. The budget ends every run, not
    the recipe's `iterations` (--set iterations=N bounds them again). Interrupted comparisons go on where they
    stopped. Writes report.html (offline, self-contained), report.md and report.json.

    Examples:

      gainstage compare

      gainstage compare grpo dapo gspo --task countdown --seeds 5 --budget generated_tokens=500k

      gainstage compare grpo 'grpo,update.policy.lr=3e-4' --name learning-rate

      gainstage compare grpo dapo --tune trials=8 --name tuned

      gainstage compare grpo my_method.yaml --plugin my_method.py

      gainstage compare grpo dapo --power --effect 0.02

      gainstage compare grpo dapo --until-decided --max-seeds 20
    """
    prepare(None, plugin)
    from gainstage.measure.planning import check_effect, plan_seeds

    chosen = arms or DEFAULT
    _check(seeds, jobs, sd, power, axis)
    if sd is not None:
        metric = metric or ANSWERS
        check_effect(effect, metric)
        print_plans([plan_seeds(sd, effect=effect, comparisons=max(len(chosen) - 1, 1), metric=metric)], as_json)
        return
    cores = multiprocessing.cpu_count()
    jobs = jobs or cores
    home = Path(name) if name and "/" in name else runs / (name or home_name(chosen))
    usual, spend = defaults(chosen[0], changes(list(common or []), task, policy))
    metric = metric or usual
    check_effect(effect, metric)
    shared = changes(list(common or []), task, policy, None, budget or spend)
    setup = Setup(chosen, shared, home, plugin or [], threads or max(cores // jobs, 1))
    _announce(setup.plan(range(1)), metric)  # every mistake is said before a run
    tuning = None if tune is None else tune_arms(setup, tune, jobs, metric)

    def plan_of(those: range) -> list[Job]:
        plan = setup.plan(those)
        return tuning.applied(plan) if tuning else plan

    def run(plan: list[Job]) -> None:
        run_all(plan, jobs)

    def measure(plan: list[Job]) -> Report:
        complete = tuning.reported if tuning else None
        return write_report(plan, home, metric, complete, axis=axis, sequential=until, effect=effect)

    if power:
        finished = finished_pairs(plan_of(range(max(seeds, most))))
        if len({job.seed for job in finished}) < 2:
            run(finished := plan_of(range(seeds)))
        print_plans(plans_of(finished, metric, effect), as_json)
        return
    if until:
        report = until_decided(plan_of, run, measure, first=seeds, most=most, step=seeds_a_round(jobs, chosen))
    else:
        run(plan := plan_of(range(seeds)))
        report = measure(plan)
    _show(report, home, as_json, show)


def _check(seeds: int, jobs: int, sd: float | None, power: bool, axis: str | None) -> None:
    """Raises RecipeError or ValueError: an option that makes no sense, whatever the arms are."""
    from gainstage.measure.budget import check_axis
    from gainstage.registry import RecipeError

    if seeds < 1:
        raise RecipeError(f"--seeds must be at least 1, got {seeds}")
    if jobs < 0:
        raise RecipeError(f"--jobs must be at least 1 (0 = one a core), got {jobs}")
    if sd is not None and not power:
        raise RecipeError("--sd belongs to --power")
    if axis is not None:
        check_axis(axis)


def _announce(first: list[Job], metric: str) -> None:
    """Say what looking costs, and whether the metric may be missing, before the first run.

    Raises:
        RecipeError: no run will have the metric.
    """
    if doubt := check_metric(metric, first):
        print(f"gainstage: {doubt}", file=sys.stderr)
    print(f"each run of {first[0].arm}:\n{plan_of_looks(first[0])}", file=sys.stderr)


def _show(report: Report, home: Path, as_json: bool, show: bool) -> None:
    """The report in the terminal, or as JSON; in a browser on request."""
    if as_json:
        print(report.to_json())
    else:
        from rich.console import Console

        from gainstage.measure.printing import print_table

        print_table(report, Console())
        print(f"\nreport: {home / 'report.html'}")
    if show:
        webbrowser.open((home / "report.html").resolve().as_uri())
