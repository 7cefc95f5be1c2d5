"""`gainstage compare`: arms, seeds, one budget, a verdict."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gainstage.cli.common import AsJson, BudgetText, Plugins, PolicyName, TaskName, changes, people_errors, prepare

DEFAULT = ["grpo", "rgra", "reinforce_pp"]
DEFAULT_BUDGET = ["generated_tokens=80k"]


@dataclass(frozen=True)
class Job:
    """One run of one arm, in a process of its own."""

    arm: str
    recipe: str
    overrides: tuple[str, ...]
    seed: int
    folder: Path
    plugins: tuple[Path, ...]
    threads: int

    @property
    def label(self) -> str:
        return f"{self.arm} seed {self.seed}"


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
    seed s has the same problems, starting weights and evaluation noise in every arm. Interrupted comparisons go on
    where they stopped. Writes report.html (offline, self-contained), report.md and report.json.

    Examples:

      gainstage compare

      gainstage compare grpo dapo gspo --task countdown --seeds 5 --budget generated_tokens=500k

      gainstage compare grpo 'grpo,update.policy.lr=3e-4' --name learning-rate

      gainstage compare grpo my_method.yaml --plugin my_method.py
    """
    prepare(None, plugin)
    from gainstage.chain import build_chain
    from gainstage.measure.compare import compare as measure
    from gainstage.measure.report import render
    from gainstage.measure.tables import print_table
    from gainstage.recipe import load, phase_recipe
    from gainstage.registry import RecipeError
    from gainstage.running import load_record
    from gainstage.tracking.files import replace_text

    if seeds < 1:
        raise RecipeError(f"--seeds must be at least 1, got {seeds}")
    chosen = arms or DEFAULT
    if jobs < 0:
        raise RecipeError(f"--jobs must be at least 1 (0 = one a core), got {jobs}")
    if len(chosen) < 2:
        raise RecipeError("compare needs at least two arms, for instance: gainstage compare grpo rgra")
    home = runs / (name or "compare-" + "-".join(Path(_pieces(arm)[0]).stem for arm in chosen))
    shared = changes(list(common or []), task, policy, None, budget or DEFAULT_BUDGET)
    cores = multiprocessing.cpu_count()
    jobs = jobs or cores
    plan = [
        _job(arm, chosen, seed, shared, home, plugin or [], max(cores // jobs, 1))
        for seed in range(seeds)
        for arm in chosen
    ]
    places: dict[Path, str] = {}
    for arm, job in zip(chosen, plan, strict=False):
        if (twin := places.setdefault(job.folder, arm)) != arm:
            raise RecipeError(
                f"compare: the arms {twin!r} and {arm!r} would both be written to {job.folder}; "
                "rename one of the files, or spell the changes differently"
            )
        recipe = load(job.recipe, [*job.overrides, "seed=0"])  # every mistake is said before the first run
        for index in range(len(recipe.phases) or 1):
            build_chain(phase_recipe(recipe, index))
    _run_all(plan, jobs)
    records = [record for job in plan if (record := load_record(job.folder)) is not None]
    report = measure(
        records,
        metric,
        baseline=plan[0].arm,
        title=" against ".join(dict.fromkeys(job.arm for job in plan)),
        created=datetime.now(UTC).isoformat(timespec="minutes"),
    )
    replace_text(home / "report.html", render(report))
    replace_text(home / "report.md", report.markdown())
    replace_text(home / "report.json", report.to_json())
    if as_json:
        print(report.to_json())
    else:
        from rich.console import Console

        print_table(report, Console())
        print(f"\nreport: {home / 'report.html'}")
    if show:
        webbrowser.open((home / "report.html").resolve().as_uri())


def _job(
    arm: str, chosen: Sequence[str], seed: int, shared: list[str], home: Path, plugins: Sequence[Path], threads: int
) -> Job:
    recipe, *own = _pieces(arm)
    name = Path(recipe).stem if not own else f"{Path(recipe).stem} ({', '.join(own)})"
    if chosen.count(arm) > 1:
        from gainstage.registry import RecipeError

        raise RecipeError(f"compare: the arm {arm!r} is given twice")
    place = home / f"{_slug(name)}-seed{seed}"
    return Job(name, recipe, (*shared, *own), seed, place, tuple(plugins), threads)


def _pieces(arm: str) -> list[str]:
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


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text).strip("-")


def _run_all(plan: Sequence[Job], jobs: int) -> None:
    """Run what is not finished in `jobs` processes side by side; progress of all of it on one screen."""
    from gainstage.registry import RecipeError
    from gainstage.tracking.progress import Progress

    todo = [job for job in plan if not _is_done(job)]
    context = multiprocessing.get_context("spawn")
    news = context.Queue()
    waiting, workers, failures = list(todo), dict[int, _Worker](), list[str]()
    with Progress(len(plan), done=(len(plan) - len(todo)) / len(plan)) as progress:
        for job in plan:
            if job not in todo:
                progress.finish(job.label, "was finished before")
        try:
            for number in range(min(jobs, len(todo))):
                workers[number] = _Worker(context, number, news)
                workers[number].give(waiting.pop(0))
            while any(worker.job for worker in workers.values()):
                try:
                    number, share, row, message = news.get(timeout=1.0)
                except queue.Empty:
                    for number, worker in workers.items():
                        if worker.job and not worker.process.is_alive() and news.empty():
                            failures.append(
                                f"{worker.job.label}: its process ended with code {worker.process.exitcode}"
                            )
                            progress.say(failures[-1])
                            workers[number] = worker = _Worker(context, number, news)
                            worker.give(waiting.pop(0) if waiting else None)
                    continue
                worker = workers[number]
                assert worker.job is not None
                label = worker.job.label
                if message is None:
                    progress.update(label, share, row)
                    continue
                if message.startswith("failed: "):
                    failures.append(f"{label}: {message.removeprefix('failed: ')}")
                    progress.say(f"{label}: {message}")
                else:
                    progress.finish(label, message)
                worker.give(waiting.pop(0) if waiting else None)
        finally:
            for worker in workers.values():
                worker.close()
    if failures:
        raise RecipeError(
            f"{len(failures)} of {len(plan)} runs failed; the first: {failures[0]}. "
            "Mend it and give the same command again: finished runs are kept"
        )


class _Worker:
    """A process that takes one run after the other, so that libraries are imported once."""

    def __init__(self, context: Any, number: int, news: Any) -> None:
        self.orders = context.Queue()
        self.job: Job | None = None
        self.process = context.Process(target=_work, args=(number, self.orders, news), daemon=True)
        self.process.start()

    def give(self, job: Job | None) -> None:
        """The next run; None sends the process home."""
        self.job = job
        self.orders.put(job)

    def close(self) -> None:
        if self.job is not None:
            self.process.terminate()
        self.process.join(timeout=10)
        if self.process.is_alive():
            self.process.kill()


def _is_done(job: Job) -> bool:
    """Whether the folder holds the finished run of exactly this job."""
    from gainstage.recipe import load
    from gainstage.running import load_record

    record = load_record(job.folder)
    known = job.folder / "fingerprint"
    return (
        record is not None
        and known.is_file()
        and known.read_text() == load(job.recipe, [*job.overrides, f"seed={job.seed}"]).fingerprint()
    )


def _work(number: int, orders: Any, news: Any) -> None:
    """The life of a worker. Whatever goes wrong in a run reaches the parent as one line."""
    import os
    import signal
    import traceback

    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def tell(share: float, row: dict[str, float]) -> None:
        if _orphaned():
            os._exit(1)  # nobody listens; the checkpoints are there for the next start
        news.put((number, share, row, None))

    while True:
        try:
            job = orders.get(timeout=2.0)
        except queue.Empty:
            if _orphaned():
                return
            continue
        if job is None:
            return
        try:
            news.put((number, 1.0, {}, _one_run(job, tell)))
        except BaseException as error:
            if os.environ.get("GAINSTAGE_DEBUG") == "1":
                traceback.print_exc()
            news.put((number, 1.0, {}, f"failed: {type(error).__name__}: {error}"))


def _orphaned() -> bool:
    """Whether the process that gives the orders was killed."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


def _one_run(job: Job, tell: Callable[[float, dict[str, float]], None]) -> str:
    """One run, from its checkpoint where it was cut off; returns its last line."""
    prepare(job.threads, list(job.plugins))
    from gainstage.cli.train import final_line
    from gainstage.recipe import load
    from gainstage.running import Run
    from gainstage.tracking.files import replace_text
    from gainstage.tracking.folder import RunFolder

    recipe = load(job.recipe, [*job.overrides, f"seed={job.seed}", "save.rollouts=0"])
    wanted = recipe.fingerprint()
    known = job.folder / "fingerprint"
    run = None
    if known.is_file() and known.read_text() == wanted:
        with contextlib.suppress(ValueError):
            run = Run.resume(job.folder, arm=job.arm)
    if run is None:
        run = Run(recipe, RunFolder.create(str(job.folder), clean=True), arm=job.arm)
        replace_text(known, wanted)
    run.watch = lambda row, trainer: tell(trainer.progress, _light(row))
    assert run.folder is not None
    with run.folder:
        record = run.execute()
    return final_line(record.numbers(), run.task.name)


def _light(row: dict[str, float]) -> dict[str, float]:
    return {
        key: row[key] for key in ("reward/mean", "length/mean", "entropy/mean", "budget/generated_tokens") if key in row
    }
