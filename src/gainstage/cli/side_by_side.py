"""Runs side by side: worker processes that take one run after the other, and one screen for the progress of all."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gainstage.cli.common import prepare, stopping_at_once
from gainstage.cli.train import LOOKED_AT, look_note


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


def run_all(plan: Sequence[Job], jobs: int) -> None:
    """Run what is not finished in `jobs` processes side by side; progress of all of it on one screen."""
    from gainstage.registry import RecipeError
    from gainstage.tracking.progress import Progress

    todo = [job for job in plan if not is_done(job)]
    context = multiprocessing.get_context("spawn")
    news = context.Queue()
    waiting, workers, failures = list(todo), dict[int, _Worker](), list[str]()
    with stopping_at_once(), Progress(len(plan)) as progress:

        def give(worker: _Worker) -> None:
            job = waiting.pop(0) if waiting else None
            worker.give(job)
            if job is not None:
                progress.start(job.label)

        for job in plan:
            if job not in todo:
                progress.finish(job.label, "was finished before")
        try:
            for number in range(min(jobs, len(todo))):
                workers[number] = _Worker(context, number, news)
                give(workers[number])
            while any(worker.job for worker in workers.values()):
                try:
                    number, share, row, message = news.get(timeout=1.0)
                except queue.Empty:
                    for number, worker in workers.items():
                        if worker.job and not worker.process.is_alive() and news.empty():
                            why = f"its process ended with code {worker.process.exitcode}"
                            failures.append(f"{worker.job.label}: {why}")
                            progress.fail(worker.job.label, why)
                            workers[number] = worker = _Worker(context, number, news)
                            give(worker)
                    progress.tick()
                    continue
                worker = workers[number]
                assert worker.job is not None
                label = worker.job.label
                if message is None:
                    progress.update(label, share, row, note=look_note(row))
                    continue
                if message.startswith("failed: "):
                    failures.append(f"{label}: {message.removeprefix('failed: ')}")
                    progress.fail(label, message)
                else:
                    progress.finish(label, message)
                give(worker)
        except KeyboardInterrupt:
            done = sum(map(is_done, plan))
            raise KeyboardInterrupt(
                f"{done} of {len(plan)} runs are finished, the others keep their last checkpoint. "
                "Give the same command again to go on"
            ) from None
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


def is_done(job: Job) -> bool:
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
    return final_line(record, run.task.name)


def _light(row: dict[str, float]) -> dict[str, float]:
    """What a line of progress shows."""
    shown = ("reward/mean", "length/mean", "entropy/mean", "budget/generated_tokens", "budget/env_steps")
    return {k: v for k, v in row.items() if k in shown or (k.startswith("eval/") and k.endswith(LOOKED_AT))}
