"""The small-scale checks of recipes: what is typed and declared becomes runs, and finished runs become ledger rows."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from gainstage import __version__
from gainstage.cli.arms import plan_runs
from gainstage.cli.side_by_side import Job, is_done

if TYPE_CHECKING:
    from gainstage.measure.compare import Report
    from gainstage.measure.ledger import LedgerRow
    from gainstage.measure.runs import RunRecord

EVALUATION = ("evaluate.split=test", "evaluate.problems=128", "evaluate.samples=2", "evaluate.every=0.25",
              "evaluate.final_problems=128", "evaluate.final_samples=16")  # fmt: skip
"""Looks of every run of a check: the test split, which no setting was ever chosen on."""
QUICK_EVALUATION = ("evaluate.split=test", "evaluate.problems=32", "evaluate.samples=2", "evaluate.every=0.5",
                    "evaluate.final_problems=32", "evaluate.final_samples=4")  # fmt: skip
QUICK_SEEDS, QUICK_SHARE = 2, 0.1
"""Seeds of a quick look, and its share of the declared budget."""
PACE, QUICK_PACE = 60.0, 12.0
"""Seconds of a run, while none has been seen."""
LOOKING_ON = ("cli", "view", "catalog", "tracking", "measure")
"""Rooms that change no number of a run; recipes are part of a run's fingerprint."""


@dataclass(frozen=True)
class Wishes:
    """What the command line changes about the declared checks. None and empty: as declared."""

    home: Path
    quick: bool = False
    seeds: int | None = None
    tasks: tuple[str, ...] = ()
    budget: dict[str, float] = field(default_factory=dict)
    common: tuple[str, ...] = ()
    plugins: tuple[Path, ...] = ()
    threads: int = 1


@dataclass(frozen=True)
class Check:
    """One method on one task: its runs, those of the baseline first in every seed, and what the claim says of it."""

    method: str
    task: str
    jobs: tuple[Job, ...]
    expect: dict[str, dict[str, str]]
    """arm -> metric -> expectation; the first metric is the main one."""
    margin: float
    settings: str
    """Hash of all that decides the numbers, code apart."""

    @property
    def baseline(self) -> str:
        return self.jobs[0].arm

    @property
    def title(self) -> str:
        return f"{self.method} against {self.baseline} on {self.task}"


def plan_check(method: str, wishes: Wishes) -> list[Check]:
    """The runs of a method's declared check, one `Check` a task. Equal runs of different checks share a folder.

    Raises:
        RecipeError: anything about recipe, task or changes that a user can mend.
    """
    from gainstage.recipe import load

    recipe = load(method)
    declared = recipe.check
    seeds = wishes.seeds or (min(QUICK_SEEDS, declared.seeds) if wishes.quick else declared.seeds)
    scale = QUICK_SHARE if wishes.quick else 1.0
    budget = wishes.budget or {axis: scale * limit for axis, limit in declared.budget.items()}
    share = min((limit / declared.budget[axis] for axis, limit in budget.items() if axis in declared.budget), default=1)
    own = ",".join([method, *declared.own])
    extra = {} if wishes.quick else declared.arms
    arms = list(dict.fromkeys([declared.against, own, *extra]))
    checks = []
    for task in wishes.tasks or declared.tasks:
        shared = [
            *(QUICK_EVALUATION if wishes.quick else EVALUATION),
            f"task={json.dumps(task)}",
            *(f"budget.{axis}={limit!r}" for axis, limit in budget.items()),
            "save.keep=1",
            *declared.common,
            *wishes.common,
        ]
        plan = plan_runs(arms, range(seeds), shared, wishes.home, wishes.plugins, wishes.threads)
        typed = dict(zip(arms, (job.arm for job in plan), strict=False))
        names = {name: recipe.name if arm == own else name for arm, name in typed.items()}
        jobs, marks = [], []
        for job in plan:
            overrides = (*job.overrides, *_scaled_phases(job, share))
            mark = load(job.recipe, [*overrides, f"seed={job.seed}"]).fingerprint()
            folder = wishes.home / f"{Path(job.recipe).stem}-{mark}"
            jobs.append(replace(job, arm=names[job.arm], overrides=overrides, folder=folder))
            marks.append(mark)
        expect: dict[str, dict[str, str]] = {
            recipe.name: {**declared.expect},
            **{names[typed[arm]]: {**row} for arm, row in extra.items()},
        }
        text = json.dumps([marks, arms.index(declared.against)])
        settings = hashlib.sha256(text.encode()).hexdigest()[:16]
        checks.append(Check(recipe.name, task_label(task), tuple(jobs), expect, declared.margin, settings))
    return checks


def task_label(task: str | dict[str, Any]) -> str:
    """`arithmetic`, or `arithmetic (levels=[1, 4])`."""
    if isinstance(task, str):
        return task
    ((name, settings),) = task.items()
    return f"{name} ({', '.join(f'{key}={value}' for key, value in settings.items())})" if settings else name


def _scaled_phases(job: Job, share: float) -> list[str]:
    """Phases that have a budget of their own get the same share of it as the run of its budget."""
    from gainstage.recipe import load

    if share == 1:
        return []
    phases = load(job.recipe, job.overrides).phases
    return [
        f"phases.{phase['name']}.budget.{axis}={share * limit!r}"
        for phase in phases
        for axis, limit in phase.get("budget", {}).items()
    ]


@cache
def code_identity() -> str:
    """Hash of the package's files that decide the numbers of a run: all but those that only look on."""
    import gainstage

    root = Path(gainstage.__file__).parent
    looked = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root)
        if not path.is_file() or place.parts[0] in LOOKING_ON or "__pycache__" in place.parts:
            continue
        looked.update(str(place).encode() + b"\0" + path.read_bytes())
    return looked.hexdigest()[:10]


def distinct(checks: Iterable[Check]) -> list[Job]:
    """The runs of several checks, each once, in order."""
    return list({job.folder: job for check in checks for job in check.jobs}.values())


def open_runs(checks: Iterable[Check]) -> list[Job]:
    """The distinct runs that are not finished."""
    return [job for job in distinct(checks) if not is_done(job)]


def pace(home: Path, quick: bool) -> float:
    """Seconds of a run: the median of finished ones, else a guess."""
    seen = []
    for record in home.glob("*/record.json"):
        begun = record.with_name("recipe.yaml")
        if begun.is_file():
            seen.append(record.stat().st_mtime - begun.stat().st_mtime)
    return median(seen) if len(seen) >= 4 else QUICK_PACE if quick else PACE


def measured(check: Check, ledger: Sequence[LedgerRow], code: str, quick: bool) -> LedgerRow | None:
    """The newest row of the ledger that this check would only repeat."""
    same = [r for r in ledger if r.settings == check.settings and r.code == code and r.method == check.method]
    return next((row for row in reversed(same) if row.quick == quick), None)


def measure(check: Check, quick: bool) -> tuple[list[LedgerRow], Report]:
    """Ledger rows of a check whose runs are finished, and the report on its main metric.

    Every metric of which the claim says something is compared, by the same rules as `compare`; one that is only logged
    in training counts with its mean over the run.
    """
    from gainstage.measure.compare import compare
    from gainstage.measure.ledger import rows_of
    from gainstage.recipe import load
    from gainstage.running import citation, load_record
    from gainstage.tracking.environment import version

    metrics = list(dict.fromkeys(metric for row in check.expect.values() for metric in row))
    records = []
    for job in check.jobs:
        record = load_record(job.folder)
        if record is None:
            raise ValueError(f"{job.folder} holds no finished run of {job.label}; give the same command again")
        record.arm = job.arm
        record.final |= run_means(record, metrics)
        records.append(record)
    now = datetime.now(UTC)
    recipes = {job.arm: load(job.recipe) for job in check.jobs}
    facts: dict[str, Any] = {
        "quick": quick, "settings": check.settings, "code": code_identity(),
        "versions": {"gainstage": __version__, "python": platform.python_version()}
        | {name: found for name in ("torch", "transformers", "numpy") if (found := version(name))},
    }  # fmt: skip
    rows: list[LedgerRow] = []
    reports = []
    for metric in metrics:
        report = compare(
            records, metric, baseline=check.baseline, title=check.title, created=now.isoformat(timespec="minutes")
        )
        expected = {arm: row[metric] for arm, row in check.expect.items() if metric in row}
        claims = {arm: recipe.claim for arm, recipe in recipes.items()}
        papers = {arm: citation(recipe.paper) for arm, recipe in recipes.items()}
        new = rows_of(report, now.date().isoformat(), claims, papers, expected=expected, margin=check.margin, **facts)
        rows += [replace(row, task=check.task) for row in new if row.method in expected]
        reports.append(report)
    return rows, reports[0]


def run_means(record: RunRecord, metrics: Iterable[str]) -> dict[str, float]:
    """Means over the run of the metrics that training logs."""
    out: Mapping[str, list[float]] = {
        metric: [row[metric] for row in record.curve if metric in row] for metric in metrics
    }
    return {metric: sum(values) / len(values) for metric, values in out.items() if values}


def drop_checkpoints(jobs: Iterable[Job]) -> None:
    """Finished runs need theirs no more: hundreds of runs would fill a disk."""
    for job in jobs:
        shutil.rmtree(job.folder / "checkpoints", ignore_errors=True)
