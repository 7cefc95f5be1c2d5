"""`gainstage reproduce`: the small-scale checks of methods, measured, judged and written into the ledger."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from gainstage.cli.arms import slug
from gainstage.cli.checks import (
    Check,
    Wishes,
    code_identity,
    distinct,
    drop_checkpoints,
    measure,
    measured,
    open_runs,
    pace,
    plan_check,
)
from gainstage.cli.common import BudgetText, Plugins, PolicyName, ThreadsEach, changes, people_errors, prepare
from gainstage.cli.ledger import LEDGER, NAME
from gainstage.cli.side_by_side import run_all


@people_errors
def reproduce(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Methods of the catalogue or YAML files.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every method of the catalogue.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two seeds at a tenth of the budget: a look, never evidence.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Runs of each arm instead of the declared number.", show_default=False)
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option("--tasks", "--task", help="Tasks instead of the declared ones.", show_default=False),
    ] = None,
    budget: BudgetText = None,
    policy: PolicyName = None,
    common: Annotated[
        list[str] | None, typer.Option("--set", help="Change for every arm, key=value.", show_default=False)
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger",
            help=f"File that the rows go to; absent = {LEDGER} where there is one, else {NAME} in the runs' folder.",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Folder of all runs.")] = Path("runs"),
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Runs side by side.")] = 2,
    threads: ThreadsEach = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and how long it takes.")] = False,
    plugin: Plugins = None,
) -> None:
    """Run the small-scale check that a method declares, and add what was measured to the ledger.

    A check compares the method with its natural baseline at equal budget, over seeds, on two tasks, and says whether
    the interval bears the paper's claim out. Runs that several methods need, such as GRPO's, are made once. What is
    measured at these settings and this code is left alone, so the same command goes on where it was stopped.

    Examples:

      gainstage reproduce rgra --quick

      gainstage reproduce dapo gspo --seeds 10

      gainstage reproduce --all --jobs 2

      gainstage reproduce my_method.yaml --plugin my_method.py --ledger my_ledger.jsonl
    """
    import multiprocessing

    prepare(None, plugin)
    from gainstage.measure.budget import Budget
    from gainstage.recipe import catalog
    from gainstage.registry import RecipeError

    if everything == bool(methods):
        raise RecipeError("which methods? Name some, or give --all (gainstage methods lists them)")
    if seeds is not None and seeds < 1:
        raise RecipeError(f"--seeds must be at least 1, got {seeds}")
    if jobs < 1:
        raise RecipeError(f"--jobs must be at least 1, got {jobs}")
    wishes = Wishes(
        home=runs / "reproduce" / code_identity(), quick=quick, seeds=seeds, tasks=tuple(tasks or ()),
        budget=dict(Budget.parse(budget).limits) if budget else {}, common=tuple(changes(common, None, policy)),
        plugins=tuple(plugin or ()), threads=threads or max(multiprocessing.cpu_count() // jobs, 1),
    )  # fmt: skip
    plans = {name: plan_check(name, wishes) for name in dict.fromkeys(methods or catalog())}
    book = ledger or (LEDGER if LEDGER.exists() and not quick else runs / NAME)
    todo = _todo(plans, book, quick)
    _announce(plans, todo, book, wishes, jobs)
    if not dry_run:
        try:
            _work(todo, book, wishes, jobs)
        except KeyboardInterrupt:
            print("gainstage: stopped. Finished runs and rows are kept; the same command goes on from here", flush=True)
            raise typer.Exit(130) from None


def _todo(plans: dict[str, list[Check]], book: Path, quick: bool) -> dict[str, list[Check]]:
    """The checks that the ledger does not hold yet."""
    from gainstage.measure.ledger import line, load

    rows = load(book)
    todo: dict[str, list[Check]] = {}
    for name, checks in plans.items():
        for check in checks:
            if (row := measured(check, rows, code_identity(), quick)) is None:
                todo.setdefault(name, []).append(check)
            else:
                print(f"measured {row.date}: {line(row)}")
    return todo


def _announce(
    plans: dict[str, list[Check]], todo: dict[str, list[Check]], book: Path, wishes: Wishes, jobs: int
) -> None:
    """What is about to run and how long it takes."""
    from gainstage.tracking.progress import duration

    checks = [check for row in todo.values() for check in row]
    runs, missing = distinct(checks), open_runs(checks)
    asked = sum(len(check.jobs) for check in checks)
    each = pace(wishes.home, wishes.quick)
    print(
        f"{len(todo)} of {len(plans)} methods to measure, {len(checks)} checks: {asked} runs, {len(runs)} of them "
        f"different, {len(runs) - len(missing)} done before"
    )
    print(
        f"{len(missing)} runs of about {duration(each)}, {jobs} side by side: about "
        f"{duration(-(-len(missing) // jobs) * each)}. Rows go to {book}"
    )
    if wishes.quick:
        print("a quick look: few seeds, a tenth of the budget; its rows are marked and never count as evidence")


def _work(todo: dict[str, list[Check]], book: Path, wishes: Wishes, jobs: int) -> None:
    """Method after method, so that every finished one has its rows; what fails is said and does not stop the rest."""
    from gainstage.measure.ledger import append, line
    from gainstage.measure.outcome import INCOMPARABLE
    from gainstage.registry import RecipeError
    from gainstage.tracking.progress import duration

    waiting = [check for checks in todo.values() for check in checks]
    began, made, failures = time.monotonic(), 0, []
    for number, (name, checks) in enumerate(todo.items(), 1):
        left = open_runs(waiting)
        each = jobs * (time.monotonic() - began) / made if made else pace(wishes.home, wishes.quick)
        print(
            f"\n[{number}/{len(todo)}] {name}: {len(open_runs(checks))} runs; {len(left)} runs left for all, about "
            f"{duration(-(-len(left) // jobs) * each)}",
            flush=True,
        )
        if code_identity.__wrapped__() != code_identity():
            raise RecipeError("the package's code changed while this ran: start the same command again")
        waiting = waiting[len(checks) :]
        here = distinct(checks)
        made += len(open_runs(checks))
        try:
            run_all(here, min(jobs, len(here)))
        except RecipeError as error:
            failures.append(f"{name}: {error}")
            print(f"gainstage: {failures[-1]}", flush=True)
            continue
        drop_checkpoints(here)
        for check in checks:
            rows, report = measure(check, wishes.quick)
            if report.verdict == INCOMPARABLE:
                failures.append(f"{name}: {report.sentence}")
                print(f"gainstage: {failures[-1]}", flush=True)
                continue
            append(book, rows)
            _write(report, wishes.home / "reports" / slug(f"{check.method}-{check.task}"))
            for row in rows:
                print(line(row), flush=True)
    if failures:
        raise RecipeError(f"{len(failures)} of {len(todo)} methods could not be measured; the first: {failures[0]}")


def _write(report: Any, place: Path) -> None:
    from gainstage.measure.report import render
    from gainstage.tracking.files import replace_text

    place.mkdir(parents=True, exist_ok=True)
    replace_text(place / "report.html", render(report))
    replace_text(place / "report.md", report.markdown())
    replace_text(place / "report.json", report.to_json())
