"""What a recipe may say: every key with its type, default and meaning; and what a whole recipe has to fulfil."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gainstage.measure.budget import Budget
from gainstage.recipe.entries import LISTS, Entry, entry_name
from gainstage.recipe.files import merge, remake_roles
from gainstage.recipe.small_scale import SearchSpace, SmallScaleCheck
from gainstage.registry import RecipeError, near


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True)


class Plan(Strict):
    """How much of what an iteration does."""

    groups: int = Field(16, ge=1, description="prompts (or starts) an iteration; samples of each are select's")
    refill: int = Field(1, ge=1, description="attempts to fill the groups after keep has dropped some; 1 = none")
    max_empty: int = Field(
        20, ge=1, description="iterations in a row without anything to train on before the run stops"
    )
    epochs: int = Field(1, ge=1, description="passes over an iteration's batch")
    minibatch: int | None = Field(
        None, ge=1, description="what one optimizer step sees, counted in `unit`; absent = the whole batch"
    )
    unit: Literal["row", "step"] = Field("row", description="what a minibatch counts: rows (answers) or decisions")
    updates: int = Field(1, ge=1, description="draws from a replay or data set an iteration")
    tokens_per_microbatch: int | None = Field(
        16384, ge=1, description="real tokens at once; bounds memory, changes no number"
    )


class CalibrationGate(Strict):
    """Acts on a run whose calibration error rises while its accuracy stands still; keeps the best weights so far."""

    tolerance: float = Field(0.05, ge=0, description="rise of the calibration error over the start that is too much")
    gain: float = Field(0.01, ge=0, description="accuracy that a look must win over the one before to be forgiven")
    weight: float = Field(1.0, ge=0, description="of the error in `accuracy - weight * error`, which chooses `best/`")
    action: Literal["stop", "halve"] = Field(
        "stop", description="end the run, or halve the policy's learning rate at every such look"
    )


class Evaluate(Strict):
    """Looking on: held-out problems, on a meter of its own."""

    split: Literal["validation", "test"] = Field(
        "validation", description="split that is looked at; checkpoints are never chosen on test"
    )
    problems: int = Field(128, ge=1, description="held-out problems")
    samples: int = Field(4, ge=1, description="answers to each")
    every: float = Field(0.1, gt=0, le=1, description="share of the run between two looks")
    temperature: float = Field(1.0, ge=0, description="of the evaluation's sampling")
    final_problems: int | None = Field(None, ge=1, description="problems of the last look; absent = `problems`")
    final_samples: int | None = Field(None, ge=1, description="answers of the last look; absent = `samples`")
    final_split: Literal["validation", "test"] | None = Field(
        None, description="split of the last look; absent = `split`, behind a gate test where the task has one"
    )
    retain: list[Entry] = Field([], description="other tasks, looked at before and after: what training forgot")
    gate: CalibrationGate | None = Field(None, description="acts where a run gets over-confident; absent = none")


class Save(Strict):
    every: float = Field(0.25, gt=0, le=1, description="share of the run between two checkpoints")
    keep: int = Field(2, ge=1, description="checkpoints that are kept")
    rollouts: int = Field(
        1,
        ge=0,
        description="every n-th iteration's answers are written as Parquet; 0 = none. Environment steps never are",
    )


Count = Annotated[int, Field(ge=1)]
Counts = Annotated[list[Count], Field(min_length=1)]


class PhaseSpec(BaseModel):
    """A phase: a name, an end (the first of `iterations` or `epochs`, and `budget`), any recipe keys that it changes.

    A list of `iterations` or `epochs` has one number a round; `budget` counts from the start of the phase.
    """

    model_config = ConfigDict(extra="allow")
    name: str
    iterations: Count | Counts | None = None
    epochs: Count | Counts | None = None
    budget: dict[str, float] = {}


WORDS = {"name", "title", "paper", "claim", "check", "tune", "notes", "tags"}
"""Keys that say something about a recipe and change no number."""


class Recipe(Strict):
    """A method, fully spelled out."""

    name: str
    title: str = ""
    paper: str | dict[str, Any] | None = None
    claim: str = ""
    check: SmallScaleCheck = SmallScaleCheck()
    tune: dict[str, SearchSpace] = {}
    notes: str = ""
    tags: list[str] = []
    extends: str | None = None
    task: Entry = "arithmetic"
    models: dict[str, Entry] = {"policy": {"load": "micro"}}
    select: list[Entry] = []
    rollout: list[Entry] = []
    reward: list[Entry] = []
    store: Entry = "on_policy"
    credit: list[Entry] = []
    update: list[Entry] = []
    plan: Plan = Plan()
    phases: list[dict[str, Any]] = []
    rounds: int = Field(1, ge=1)
    iterations: int | None = Field(100, ge=1)
    budget: dict[str, float] = {}
    evaluate: Evaluate = Evaluate()
    save: Save = Save()
    seed: int = 0

    def fingerprint(self) -> str:
        """Hash of everything that decides the numbers (not of names, notes and places)."""
        data = self.model_dump(exclude=WORDS | {"extends", "save"})
        if data["evaluate"]["final_split"] is None:
            del data["evaluate"]["final_split"]  # younger than the fingerprints of finished runs
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]

    def yaml(self) -> str:
        """The resolved recipe, ready to be run again; without the check, which belongs to the method as published."""
        data = self.model_dump(exclude={"extends", "check", *(() if self.tune else ("tune",))}, mode="json")
        return yaml.safe_dump(
            {k: v for k, v in data.items() if v not in (None, "", []) or k == "iterations"},  # null = no limit
            sort_keys=False, width=110, allow_unicode=True,
        )  # fmt: skip


def check(data: Mapping[str, Any]) -> Recipe:
    """Data to `Recipe`.

    Raises:
        RecipeError: an unknown key (with near matches) or a value of a wrong type.
    """
    try:
        recipe = Recipe(**data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            fields = _fields(first["loc"][:-1])
            raise RecipeError(f"{where}: no such key; {near(str(first['loc'][-1]), fields)}") from None
        raise RecipeError(f"{where}: {first['msg']}, got {first['input']!r}") from None
    _check_evaluation(recipe.evaluate)
    try:
        Budget(**recipe.budget)
    except ValueError as error:
        raise RecipeError(str(error)) from None
    allowed = {*Recipe.model_fields, *PhaseSpec.model_fields} - {
        "phases",
        "rounds",
        "seed",
        "evaluate",
        "save",
        "extends",
    }
    for index, phase in enumerate(recipe.phases):
        if "name" not in phase:
            raise RecipeError(f"phases.{index}: a phase needs a name")
        for key in phase:
            if key not in allowed:
                raise RecipeError(f"phases.{phase['name']}: no such key {key!r}; {near(key, allowed)}")
        if any(phase["name"] == other["name"] for other in recipe.phases[:index]):
            raise RecipeError(f"phases: two phases are called {phase['name']!r}; a name stands for one phase")
        try:
            Budget(**PhaseSpec(**phase).budget)
        except ValidationError as error:
            first = error.errors()[0]
            raise RecipeError(
                f"phases.{phase['name']}.{first['loc'][0]}: {first['msg']}, got {first['input']!r}"
            ) from None
        except ValueError as error:
            raise RecipeError(f"phases.{phase['name']}: {error}") from None
    for stage in LISTS:
        names = [entry_name(entry) for entry in getattr(recipe, stage)]
        for twin in {n for n in names if names.count(n) > 1}:
            raise RecipeError(f"{stage}: two entries are called {twin!r}; name one of them with `as`")
    return recipe


def _check_evaluation(settings: Evaluate) -> None:
    if settings.gate is not None and settings.split == "test":
        raise RecipeError(
            "evaluate.gate chooses weights, which must not see the test split; set evaluate.split: validation"
        )
    if settings.gate is not None and settings.samples < 4:
        raise RecipeError(
            "evaluate.gate takes the share of equal answers as confidence; set evaluate.samples to 4 or more"
        )
    kept = [entry_name(entry) for entry in settings.retain]
    if twins := {name for name in kept if kept.count(name) > 1}:
        raise RecipeError(f"evaluate.retain: the task {twins.pop()!r} is given twice")


def _fields(location: tuple[Any, ...]) -> Iterable[str]:
    model: Any = Recipe
    for part in location:
        annotation = model.model_fields[str(part)].annotation if hasattr(model, "model_fields") else None
        annotation = next((a for a in get_args(annotation) if a is not type(None)), annotation)
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
        if model is None:
            return []
    return model.model_fields


def phase_recipe(recipe: Recipe, index: int) -> Recipe:
    """The recipe of one phase: the whole with the phase's own keys on top."""
    if not recipe.phases:
        return recipe
    phase = dict(recipe.phases[index])
    own = {k: v for k, v in phase.items() if k in Recipe.model_fields and k not in ("name", "budget", "iterations")}
    data = recipe.model_dump()
    remake_roles(data, own.get("models"))
    return check({**merge(data, own), "phases": recipe.phases})
