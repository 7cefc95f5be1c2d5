"""`compare --tune`: every arm searches its settings with the same number of trials before it is compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gainstage.cli.arms import Setup
from gainstage.cli.side_by_side import Job, run_all

if TYPE_CHECKING:
    from gainstage.measure.compare import Report
    from gainstage.measure.tuning import Dimension, Search, Tuned
    from gainstage.recipe import Recipe

SEED = 1_000_000
"""First seed of the trials, far from those of the comparison."""
AROUND, AROUND_INTEGER = 10.0, 4.0
"""Search space of a setting whose recipe declares none: from x / a to x * a."""
BY = ("validation", "reward")


@dataclass(frozen=True)
class Wish:
    """What `--tune` asks for.

    Attributes:
        trials: runs of the search, the recipe as it is included, times `seeds`.
        seeds: runs of each trial; the mean counts.
        keys: settings to search; empty = those the recipe declares, else the policy's learning rates.
        by: `validation` = the metric on the validation split; `reward` = the training reward of the last quarter.
    """

    trials: int
    seeds: int = 1
    keys: tuple[str, ...] = ()
    by: str = "validation"


def parse_wish(text: str) -> Wish:
    """`trials=8,keys=update.policy.lr,plan.minibatch`: what stands behind `keys=` without `=` are further keys.

    Raises:
        RecipeError: anything else.
    """
    from gainstage.registry import RecipeError, near

    found: dict[str, list[str]] = {}
    name = ""
    for piece in (piece.strip() for piece in text.split(",")):
        head, equals, value = piece.partition("=")
        if equals:
            name = head.strip()
            if name not in ("trials", "seeds", "keys", "by"):
                raise RecipeError(f"--tune has no {name!r}; {near(name, ['trials', 'seeds', 'keys', 'by'])}")
            if name in found:
                raise RecipeError(f"--tune: {name} is given twice")
            found[name] = [value.strip()]
        elif name == "keys" and piece:
            found[name].append(piece)
        else:
            raise RecipeError(f"--tune is for instance trials=8 or trials=8,keys=update.policy.lr; got {text!r}")
    numbers = {}
    for key, least in (("trials", 2), ("seeds", 1)):
        value = found.get(key, ["1" if key == "seeds" else ""])[0]
        if not value.isdigit() or int(value) < least:
            raise RecipeError(f"--tune: {key} must be a number of at least {least}, got {value!r}")
        numbers[key] = int(value)
    by = found.get("by", [BY[0]])[0]
    if by not in BY:
        raise RecipeError(f"--tune: by must be one of {', '.join(BY)}, got {by!r}")
    return Wish(numbers["trials"], numbers["seeds"], tuple(key for key in found.get("keys", []) if key), by)


def tune_arms(setup: Setup, text: str, jobs: int, metric: str) -> Tuning:
    """Search the settings of every arm; the trials are runs of their own in `home/tuning`, finished ones are kept.

    Raises:
        RecipeError: an arm without anything to search, a task whose validation split is its test split, or an arm
            all of whose trials broke off.
        MissingExtra: Optuna is not installed.
    """
    from gainstage.measure.tuning import Search, Tuned
    from gainstage.recipe import load
    from gainstage.tracking.files import replace_text

    wish = parse_wish(text)
    home = setup.home
    # no trial sees the test split
    plan = setup.plan([SEED], "evaluate.split=validation", "evaluate.final_split=validation")
    searches: list[Search] = []
    spaces = []
    for job in plan:
        recipe = load(job.recipe, job.overrides)
        if wish.by == "validation":
            _check_splits(recipe)
        spaces.append(dimensions(recipe, wish.keys, job.arm))
        searches.append(Search(spaces[-1], SEED, _start(recipe, spaces[-1])))
    _check_keys(wish.keys, spaces)
    tuned = [Tuned(job.arm) for job in plan]
    for batch in searches[0].batches(wish.trials):
        asked = [[(number, search.ask(number)) for number in batch] for search in searches]
        runs = {
            (index, number): _runs(plan[index], settings, number, wish.seeds, home)
            for index, trials in enumerate(asked)
            for number, settings in trials
        }
        _run([job for row in runs.values() for job in row], jobs)
        for index, trials in enumerate(asked):
            for number, settings in trials:
                score = _score(runs[index, number], metric, wish.by)
                searches[index].tell(number, score)
                tuned[index].trials.append({"settings": settings, "score": score})
                for job in runs[index, number]:
                    for axis, amount in _spent(job.folder).items():
                        tuned[index].spent[axis] = tuned[index].spent.get(axis, 0.0) + amount
    found = [{**vars(one), "best": one.best} for one in tuned]  # says it where every trial of an arm broke off
    replace_text(home / "tuning.json", json.dumps(found, indent=1))
    return Tuning(wish, tuned)


@dataclass(frozen=True)
class Tuning:
    """What the search found for every arm."""

    wish: Wish
    arms: list[Tuned]

    def applied(self, plan: Sequence[Job]) -> list[Job]:
        """The runs of a comparison with the settings that their arms' searches chose, judged on the test split."""
        chosen = {arm.arm: [f"{k}={json.dumps(v)}" for k, v in arm.best["settings"].items()] for arm in self.arms}
        last = () if self.wish.by == "reward" else _last_split(plan)
        return [replace(job, overrides=(*job.overrides, *last, *chosen[job.arm])) for job in plan]

    def reported(self, report: Report) -> Report:
        """The report with the tuning budget in its manifest, and for each arm what was chosen and what that cost."""
        where = "training reward" if self.wish.by == "reward" else "validation split"
        budget = {"trials": self.wish.trials, "seeds": self.wish.seeds, "judged by": where}
        notes = [*report.notes, *(arm.note(report.axis) for arm in self.arms)]
        return replace(report, manifest={**report.manifest, "tuning": budget}, notes=notes)


def _last_split(plan: Sequence[Job]) -> tuple[str]:
    """Every look sees the test split; where a gate heeds the looks of any arm, only the last one does."""
    from gainstage.recipe import load

    gated = any(load(job.recipe, job.overrides).evaluate.gate for job in plan)
    return ("evaluate.final_split=test",) if gated else ("evaluate.split=test",)


# -- what is searched -------------------------------------------------------------------------------------------------


def dimensions(recipe: Recipe, keys: Sequence[str], arm: str) -> list[Dimension]:
    """The search space of an arm: the named keys that it has, else what it declares, else the policy's learning rates.

    Raises:
        RecipeError: nothing to search, or a value around which no range can be laid.
    """
    from gainstage.registry import RecipeError

    data = recipe.model_dump()
    wanted = [key for key in keys if key in recipe.tune or _has(data, key)] or (
        [] if keys else list(recipe.tune) or learning_rates(recipe)
    )
    if not wanted:
        what = "none of the keys " + ", ".join(keys) if keys else "no learning rate of the policy"
        raise RecipeError(f"--tune: the arm {arm!r} has {what}; name settings that it states by keys=")
    return [_dimension(recipe, data, key, arm) for key in wanted]


def learning_rates(recipe: Recipe) -> list[str]:
    """Dotted keys of the learning rates that train the policy."""
    from gainstage.recipe import split_entry

    data = recipe.model_dump()
    places = [(f"phases.{phase['name']}.", phase.get("update", [])) for phase in data["phases"]]
    if not data["phases"] or not any(rows for _, rows in places):
        places = [("", data["update"])]
    found = []
    for prefix, entries in places:
        for entry in entries:
            name, _, settings, _ = split_entry("update", entry)
            if "policy" in settings.get("train", []) and settings.get("lr"):
                found.append(f"{prefix}update.{name}.lr")
    return found


def _dimension(recipe: Recipe, data: dict[str, Any], key: str, arm: str) -> Dimension:
    from gainstage.measure.tuning import Dimension
    from gainstage.recipe import lookup
    from gainstage.registry import RecipeError

    space = recipe.tune.get(key)
    if space is not None and space.choices is not None:
        return Dimension(key, choices=tuple(space.choices))
    value = lookup(data, key) if _has(data, key) else None
    integer = isinstance(value, int) and not isinstance(value, bool)
    if space is not None and space.low is not None and space.high is not None:
        return Dimension(key, space.low, space.high, space.log, integer)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise RecipeError(
            f"--tune: {key} of the arm {arm!r} is {value!r}, around which no range can be laid; declare its values in "
            f"the recipe, e.g. tune: {{{key}: {{choices: [...]}}}}"
        )
    around = (space.around if space is not None else None) or (AROUND_INTEGER if integer else AROUND)
    low, high = value / around, value * around
    return Dimension(key, max(1, round(low)), round(high), True, True) if integer else Dimension(key, low, high, True)


def _has(data: dict[str, Any], key: str) -> bool:
    from gainstage.recipe import lookup

    try:
        lookup(data, key)
    except KeyError:
        return False
    return True


def _check_keys(keys: Sequence[str], spaces: Sequence[Sequence[Dimension]]) -> None:
    from gainstage.registry import RecipeError

    for key in keys:
        if not any(dimension.key == key for space in spaces for dimension in space):
            raise RecipeError(f"--tune: no arm has the key {key!r}; gainstage show METHOD prints what a recipe states")


def _check_splits(recipe: Recipe) -> None:
    from gainstage.chain import build_task
    from gainstage.registry import RecipeError

    task = build_task(recipe.task)
    held = [{problem.id for problem in task.it.problems(split)} for split in ("validation", "test")]
    if held[0] & held[1]:
        raise RecipeError(
            f"--tune: {len(held[0] & held[1])} validation problems of the task {task.name!r} are test problems, too, "
            "so tuning on them would spoil the comparison; give the task a validation split of its own, or tune by the "
            "training reward: --tune trials=N,by=reward"
        )


def _start(recipe: Recipe, space: Sequence[Dimension]) -> dict[str, Any]:
    from gainstage.recipe import lookup

    data = recipe.model_dump()
    return {dimension.key: lookup(data, dimension.key) for dimension in space if _has(data, dimension.key)}


# -- trials -----------------------------------------------------------------------------------------------------------


def _runs(job: Job, settings: dict[str, Any], number: int, seeds: int, home: Path) -> list[Job]:
    """The runs of a trial; their folders carry the fingerprint, so other settings never meet."""
    from gainstage.recipe import load

    chosen = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    runs = []
    for seed in range(SEED, SEED + seeds):
        overrides = (*job.overrides, "save.keep=1", *chosen)
        mark = load(job.recipe, [*overrides, f"seed={seed}"]).fingerprint()
        folder = home / "tuning" / f"{Path(job.recipe).stem}-{mark}"
        arm = f"{job.arm} trial {number}"
        runs.append(replace(job, arm=arm, overrides=overrides, seed=seed, folder=folder))
    return runs


def _run(plan: Sequence[Job], jobs: int) -> None:
    """All runs of a batch. One that broke off is a result of the search (a learning rate too high); others stop it."""
    from gainstage.registry import RecipeError

    todo = list({job.folder: job for job in plan if not _broke(job.folder)}.values())
    try:
        run_all(todo, min(jobs, len(todo)))
    except RecipeError:
        if not all(_finished(job.folder) or _broke(job.folder) for job in todo):
            raise


def _finished(folder: Path) -> bool:
    from gainstage.running import load_record

    return load_record(folder) is not None


def _broke(folder: Path) -> bool:
    """Whether a run ended because its numbers were not finite."""
    return any((folder / "failures").glob("*.safetensors"))


def _score(runs: Sequence[Job], metric: str, by: str) -> float | None:
    from gainstage.measure.runs import ANY_TASK, read
    from gainstage.registry import RecipeError
    from gainstage.running import load_record

    scores = []
    for job in runs:
        record = load_record(job.folder)
        if record is None:
            return None
        if by == "reward":
            rewards = [row["reward/mean"] for row in record.curve if "reward/mean" in row]
            last = rewards[-max(1, len(rewards) // 4) :]
            score = sum(last) / len(last) if last else None
        else:
            numbers = record.numbers()
            score = read(numbers, metric if metric.startswith("eval/") else ANY_TASK + metric)
            score = read(numbers, metric) if score is None else score
        if score is None:
            raise RecipeError(f"--tune: a run of {job.arm} has no {metric if by != 'reward' else 'reward'!r} to go by")
        scores.append(score)
    return sum(scores) / len(scores)


def _spent(folder: Path) -> dict[str, float]:
    """What a run spent, one that broke off included: off its last row."""
    from gainstage.running import load_record
    from gainstage.tracking.folder import read_metrics

    record = load_record(folder)
    if record is not None:
        return {axis: amount for axis, amount in record.spent.items() if amount}
    rows = read_metrics(folder)
    last = rows[-1] if rows else {}
    return {key.removeprefix("budget/"): float(last[key]) for key in last if key.startswith("budget/")}
