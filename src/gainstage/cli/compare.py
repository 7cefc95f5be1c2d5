"""`gainstage compare`: arms, seeds, one budget, a verdict."""

from __future__ import annotations

import multiprocessing
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from gainstage.cli.arms import home_name, plan_runs, write_report
from gainstage.cli.common import AsJson, BudgetText, Plugins, PolicyName, TaskName, changes, people_errors, prepare
from gainstage.cli.side_by_side import run_all

DEFAULT = ["grpo", "rgra", "reinforce_pp"]
DEFAULT_BUDGET = ["generated_tokens=80k"]


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
    budget: BudgetText = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of each arm.")] = 3,
    common: Annotated[
        list[str] | None, typer.Option("--set", help="Change for every arm, key=value.", show_default=False)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="Name of the comparison; an unfinished one of that name goes on.", show_default=False
        ),
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Folder of all runs.")] = Path("runs"),
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Runs side by side; 0 = one a core.")] = 0,
    metric: Annotated[str, typer.Option("--metric", help="What is compared.")] = "pass@1",
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

      gainstage compare grpo my_method.yaml --plugin my_method.py
    """
    prepare(None, plugin)
    from gainstage.measure.tables import print_table
    from gainstage.registry import RecipeError

    if seeds < 1:
        raise RecipeError(f"--seeds must be at least 1, got {seeds}")
    if jobs < 0:
        raise RecipeError(f"--jobs must be at least 1 (0 = one a core), got {jobs}")
    chosen = arms or DEFAULT
    home = runs / (name or home_name(chosen))
    shared = changes(list(common or []), task, policy, None, budget or DEFAULT_BUDGET)
    cores = multiprocessing.cpu_count()
    jobs = jobs or cores
    plan = plan_runs(chosen, range(seeds), shared, home, plugin or [], max(cores // jobs, 1))
    run_all(plan, jobs)
    report = write_report(plan, home, metric)
    if as_json:
        print(report.to_json())
    else:
        from rich.console import Console

        print_table(report, Console())
        print(f"\nreport: {home / 'report.html'}")
    if show:
        webbrowser.open((home / "report.html").resolve().as_uri())
