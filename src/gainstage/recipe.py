"""Recipes: YAML that names the components of every stage. Loading, inheritance, overrides, errors."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gainstage.measure.budget import Budget
from gainstage.registry import RecipeError, near

LISTS = ("select", "rollout", "reward", "credit", "update")
OPTIONS = {
    "select": ("as",),
    "rollout": ("as",),
    "reward": ("as", "weight", "combine", "then", "fit_at"),
    "credit": ("as",),
    "update": ("as",),
}
"""Keys of an entry that the loop reads, not the component."""
Entry = str | dict[str, Any]


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


class Save(Strict):
    every: float = Field(0.25, gt=0, le=1, description="share of the run between two checkpoints")
    keep: int = Field(2, ge=1, description="checkpoints that are kept")
    rollouts: int = Field(1, ge=0, description="every n-th iteration's rollouts are written as Parquet; 0 = none")


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


class Recipe(Strict):
    """A method, fully spelled out."""

    name: str
    title: str = ""
    paper: str | dict[str, Any] | None = None
    claim: str = ""
    check: str = ""
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
        data = self.model_dump(exclude={"name", "title", "paper", "claim", "check", "notes", "tags", "extends", "save"})
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]

    def yaml(self) -> str:
        """The resolved recipe, ready to be run again."""
        data = self.model_dump(exclude_defaults=False, exclude={"extends"}, mode="json")
        return yaml.safe_dump(
            {k: v for k, v in data.items() if v not in (None, "", [])}, sort_keys=False, width=110, allow_unicode=True
        )


def catalog() -> dict[str, Path]:
    """Name -> file of every recipe that ships with the package."""
    folder = resources.files("gainstage") / "catalog"
    return {
        Path(str(file)).stem: Path(str(file))
        for file in sorted(folder.iterdir(), key=str)
        if str(file).endswith(".yaml")
    }


def read(name: str | Path) -> dict[str, Any]:
    """A recipe's own keys, by catalogue name or path.

    Raises:
        RecipeError: no such recipe, unreadable YAML, or not a mapping.
    """
    path = Path(name)
    if not path.suffix:
        known = catalog()
        if str(name) not in known:
            raise RecipeError(f"no recipe {str(name)!r}; {near(str(name), known)} (or give the path of a YAML file)")
        path = known[str(name)]
    if not path.is_file():
        raise RecipeError(f"recipe {path}: no such file")
    if path.stat().st_size > 2**20:
        raise RecipeError(f"recipe {path}: larger than 1 MiB, this is no recipe")
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506  # a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path}: not readable as YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise RecipeError(f"recipe {path}: must be a mapping of keys, got {type(data).__name__}")
    data.setdefault("name", path.stem)
    return data


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads 1e-4 as a number, refuses duplicate keys, and refuses aliases (they can blow up)."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.YAMLError(f"aliases (*{event.anchor}) are not allowed in recipes; use extends")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"the key {key!r} stands twice, line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


def _floats(loader: Any, node: Any) -> float | str:
    text = loader.construct_scalar(node)
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return text


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}  # `on` is a key of recipes, not a truth value
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver("!number", re.compile(r"^[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789"))
_Loader.add_constructor("!number", _floats)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge key by key; anything else given replaces the inherited value."""
    out = copy.deepcopy(dict(base))
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = merge(out[key], value)
        else:
            out[key] = copy.deepcopy(value)
    return out


def _remake_roles(data: dict[str, Any], over: Any) -> None:
    """A role that is now made in another way (loaded instead of copied, say) forgets how it was made before."""
    roles = data.get("models")
    if not isinstance(over, Mapping) or not isinstance(roles, dict):
        return
    for role, spec in over.items():
        if not isinstance(spec, Mapping) or not isinstance(roles.get(role), Mapping):
            continue
        gone: set[str] = set()
        if "load" in spec or "remote" in spec:
            gone = {"load", "remote", "net", "of", "on", "tau"}
        elif "net" in spec:
            gone = {"load", "remote", "on", "tau"}
        elif "of" in spec:
            gone = {"load", "remote"}
        roles[role] = {key: value for key, value in roles[role].items() if key not in gone}


def compose(name: str | Path, _open: tuple[str, ...] = ()) -> dict[str, Any]:
    """A recipe with what it extends.

    Raises:
        RecipeError: recipes that extend one another in a circle.
    """
    if str(name) in _open:
        raise RecipeError(f"recipes extend one another in a circle: {' -> '.join([*_open, str(name)])}")
    own = read(name)
    parent = own.pop("extends", None)
    if parent is None:
        return own
    base = compose(_beside(name, str(parent)), (*_open, str(name)))
    _remake_roles(base, own.get("models"))
    for key in ("title", "paper", "claim", "check", "notes", "tags"):
        base.pop(key, None)
    return {**merge(base, own), "extends": str(parent)}


def _beside(name: str | Path, parent: str) -> str | Path:
    return Path(name).parent / parent if parent.endswith((".yaml", ".yml")) and Path(name).suffix else parent


# -- overrides --------------------------------------------------------------------------------------------------------


def parse_override(text: str) -> tuple[list[str], Any]:
    """`a.b.c=value` with the value read as YAML.

    Raises:
        RecipeError: no `=`, or a value that is not YAML.
    """
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise RecipeError(f"an override is key=value, got {text!r}")
    try:
        return path.strip().split("."), yaml.load(value, Loader=_Loader) if value.strip() else ""  # noqa: S506
    except yaml.YAMLError as error:
        raise RecipeError(f"{text!r}: the value is not readable: {str(error).splitlines()[0]}") from None


def override(data: dict[str, Any], text: str) -> dict[str, Any]:
    """A recipe's data with one dotted override. A segment inside a list is the name of an entry or of a phase."""
    path, value = parse_override(text)
    out = copy.deepcopy(data)
    if path[0] not in Recipe.model_fields:
        raise RecipeError(f"a recipe has no key {path[0]!r}; {near(path[0], Recipe.model_fields)}")
    if path[0] == "policy":
        path = ["models", "policy", *path[1:]]
    if path[0] == "models" and len(path) == 3:
        _remake_roles(out, {path[1]: {path[2]: value}})
    if len(path) == 1 and path[0] in LISTS and isinstance(value, str):
        value = [value]
    _set(out, path, value, text)
    return out


def _set(node: Any, path: list[str], value: Any, text: str) -> None:
    head, rest = path[0], path[1:]
    if isinstance(node, list):
        phases = bool(node) and all(isinstance(entry, Mapping) and isinstance(entry.get("name"), str) for entry in node)
        names = [entry["name"] if phases else entry_name(entry) for entry in node]
        if head not in names:
            raise RecipeError(f"{text!r}: no {'phase' if phases else 'entry'} {head!r}; {near(head, names)}")
        index = names.index(head)
        entry = node[index]
        if not rest:
            node[index] = value  # swap one entry
            return
        if phases:
            _set(entry, rest, value, text)
            return
        key = entry if isinstance(entry, str) else next(k for k in entry)
        settings = {} if isinstance(entry, str) else dict(entry[key] or {})
        node[index] = {key: settings}
        _set(settings, rest, value, text)
        return
    if not rest:
        node[head] = (
            merge(node[head], value) if isinstance(value, Mapping) and isinstance(node.get(head), Mapping) else value
        )
        return
    below = node.get(head)
    if head in ("task", "store") and isinstance(below, str):
        below = {below: {}}
    if head in ("task", "store") and isinstance(below, dict) and len(below) == 1 and rest[0] not in below:
        rest = [next(iter(below)), *rest]  # task.digits=3 reaches the one task there is
    if isinstance(below, str):
        below = {"load": below} if node.get("policy") is not None or head == "policy" else {below: {}}
    node[head] = {} if below is None else below
    _set(node[head], rest, value, text)


def entry_name(entry: Entry) -> str:
    """What an entry is called: its `as`, else the component's name (a function's for `file.py:function`)."""
    if isinstance(entry, str):
        return entry
    key, settings = next(iter(entry.items()))
    return str((settings or {}).get("as", key)) if isinstance(settings, Mapping) or settings is None else key


def split_entry(stage: str, entry: Entry) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    """Name, component, settings and loop options of an entry.

    Raises:
        RecipeError: not a name or a single `name: settings` pair.
    """
    if isinstance(entry, str):
        return entry, entry, {}, {}
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise RecipeError(f"{stage}: an entry is a name or one `name: settings` pair, got {entry!r}")
    component, settings = next(iter(entry.items()))
    if settings is not None and not isinstance(settings, Mapping):
        raise RecipeError(f"{stage}.{component}: settings are a mapping, got {settings!r}")
    settings = dict(settings or {})
    options = {key: settings.pop(key) for key in OPTIONS.get(stage, ()) if key in settings}
    return str(options.pop("as", component)), str(component), settings, options


# -- loading ----------------------------------------------------------------------------------------------------------


def load(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """A checked recipe: catalogue name or YAML path, what it extends, and dotted overrides on top.

    Raises:
        RecipeError: anything a user can mend; the message names the key and near matches.
    """
    data = compose(name)
    for text in overrides:
        data = override(data, text)
    return check(data)


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


def _fields(location: tuple[Any, ...]) -> Iterable[str]:
    model: Any = Recipe
    for part in location:
        annotation = model.model_fields[str(part)].annotation if hasattr(model, "model_fields") else None
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
    _remake_roles(data, own.get("models"))
    return check({**merge(data, own), "phases": recipe.phases})
