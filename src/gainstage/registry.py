"""Names to components: one registry per kind, filled by looking through the kind's room."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gainstage.ops.leaving import said, staying

ROOMS = {
    "task": "gainstage.tasks",
    "net": "gainstage.policies",
    "select": "gainstage.select",
    "rollout": "gainstage.rollout",
    "engine": "gainstage.rollout.engines",
    "reward": "gainstage.reward",
    "then": "gainstage.reward.compose",
    "store": "gainstage.store",
    "credit": "gainstage.credit",
    "update": "gainstage.update",
    "objective": "gainstage.update.objectives",
    "optimizer": "gainstage.update.optimizers",
}
"""Kind -> package that is searched for it. The first five stages of a recipe are kinds of their own."""

DECLARATIONS = ("needs", "writes", "uses", "requires", "wants", "level", "fit_at", "splits", "reads_truth")
T = TypeVar("T", bound=Callable[..., Any])
SHOWN = 60
"""Names that a message lists at most."""


class RecipeError(ValueError):
    """A recipe, a name or a setting that the user can mend; the message says how."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One registered component."""

    kind: str
    name: str
    make: Callable[..., Any]
    file: str

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """Setting name -> parameter, in order of definition."""
        parameters = inspect.signature(self.make).parameters
        if inspect.isclass(self.make):
            return {n: p for n, p in parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
        return {n: p for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.make) or "").split("\n")[0]


_ENTRIES: dict[str, dict[str, Entry]] = {kind: {} for kind in ROOMS}
_SEARCHED: set[str] = set()


def component(kind: str, name: str | None = None, **declared: Any) -> Callable[[T], T]:
    """Register a class (settings = its dataclass fields) or a function (settings = keyword-only arguments).

    A class implements the hooks of its kind. A function is the shortest form of a component without
    state: `credit(batch, *, ...) -> {column: tensor}`, `objective(out, mb, *, ...) -> Float "B T"`
    (or that and a dictionary of statistics), `reward(problem, text, *, ...) -> float | None`,
    `then(values, *, ...) -> values`.

    Args:
        kind: one of `ROOMS`.
        name: registry name; the name in snake case where absent. `file.name` works as well.
        declared: `needs`, `writes` (columns), `uses` (roles), `requires` (task capabilities), `wants`
            (of the policy's output), `level`, for functions; a class states them as attributes.
    """
    if kind not in _ENTRIES:
        raise RecipeError(f"unknown kind {kind!r}; kinds are {', '.join(ROOMS)}")
    if unknown := set(declared) - set(DECLARATIONS):
        raise RecipeError(f"component: unknown declaration {sorted(unknown)}; known are {', '.join(DECLARATIONS)}")

    def add(make: T) -> T:
        for key, value in declared.items():
            setattr(make, key, value)
        registered = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", make.__name__).lower()
        entry = Entry(kind, registered, make, inspect.getsourcefile(make) or "")
        file = make.__module__.rsplit(".", 1)[-1]
        for key in {registered, f"{file}.{registered}"}:
            old = _ENTRIES[kind].get(key)
            if old is not None and (old.make.__module__, old.make.__qualname__) != (make.__module__, make.__qualname__):
                raise RecipeError(f"{kind} {key!r} is registered twice: {old.file} and {entry.file}")
            _ENTRIES[kind][key] = entry
        return make

    return add


def _search(kind: str) -> None:
    if kind in _SEARCHED:
        return
    _SEARCHED.add(kind)
    package = importlib.import_module(ROOMS[kind])
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)


def names(kind: str) -> list[str]:
    """All registered names of a kind, short form."""
    _search(kind)
    return sorted({entry.name for entry in _ENTRIES[kind].values()})


def near(name: str, known: typing.Iterable[str]) -> str:
    """A half sentence with the near matches of a wrong name, or the names that there are where none is near."""
    known = sorted(known)
    matches = difflib.get_close_matches(name, known, n=3, cutoff=0.55)
    matches.sort(key=lambda match: sorted(match) != sorted(name))  # two letters that changed places: the likeliest slip
    if matches:
        return "did you mean " + " or ".join(repr(match) for match in matches) + "?"
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return "known: " + ", ".join(known[:SHOWN]) + more if known else "there is none"


def find(kind: str, name: str) -> Entry:
    """The component of that name.

    Raises:
        RecipeError: there is none; the message lists near matches.
    """
    _search(kind)
    entry = _ENTRIES[kind].get(name)
    if entry is None:
        elsewhere = [k for k in ROOMS if k != kind and k in _SEARCHED and name in _ENTRIES[k]]
        hint = f" (there is a {elsewhere[0]} of that name)" if elsewhere else ""
        raise RecipeError(f"no {kind} component {name!r}{hint}; {near(name, names(kind))}")
    return entry


@functools.lru_cache(maxsize=4096)
def _adapter(make: Callable[..., Any], key: str) -> TypeAdapter[Any] | None:
    source = make if not inspect.isclass(make) else (make if dataclasses.is_dataclass(make) else make.__init__)
    hints = typing.get_type_hints(source, include_extras=True)
    if key not in hints:
        return None
    try:
        return TypeAdapter(hints[key], config=ConfigDict(arbitrary_types_allowed=True))
    except Exception:  # a type that already carries its own configuration
        return TypeAdapter(hints[key])


def check_settings(entry: Entry, settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Settings with their types checked and converted.

    Raises:
        RecipeError: an unknown key (with near matches), a missing one, or a wrong type.
    """
    known = entry.settings
    checked = {}
    for key, value in settings.items():
        if key not in known:
            raise RecipeError(f"{where}: {entry.name!r} has no setting {key!r}; {near(key, known)}")
        adapter = _adapter(entry.make, key)
        try:
            checked[key] = adapter.validate_python(value) if adapter else value
        except ValidationError as error:
            # of a union's members the one that got furthest says what is wrong
            wrong = max(error.errors(), key=lambda e: (len(e["loc"]), e["type"] == "value_error"))
            says = wrong["msg"]
            if wrong["type"] == "unexpected_keyword_argument":
                says = f"no such setting: {wrong['loc'][-1]}"
            raise RecipeError(f"{where}.{key}: {says}, got {value!r}") from None
    for key, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and key not in checked:
            raise RecipeError(f"{where}: {entry.name!r} needs the setting {key!r}")
    return checked


def build(kind: str, name: str, settings: Mapping[str, Any] | None = None, where: str = "") -> Any:
    """Make the component `name` with checked settings. A function comes back with its settings bound.

    Raises:
        RecipeError: wrong name or setting, or the component refused its settings.
    """
    entry = find(kind, name)
    checked = check_settings(entry, settings or {}, where or f"{kind}.{name}")
    if not inspect.isclass(entry.make):
        bound = functools.partial(entry.make, **checked)
        for key in DECLARATIONS:
            if hasattr(entry.make, key):
                setattr(bound, key, getattr(entry.make, key))
        return bound
    try:
        return entry.make(**checked)
    except ValueError as error:
        raise RecipeError(f"{where or f'{kind}.{name}'}: {error}") from error


def load_plugin(path: str | Path) -> None:
    """Run a user's own file, which registers its components.

    Raises:
        RecipeError: the file does not exist or does not run.
    """
    file = Path(path)
    if not file.is_file():
        raise RecipeError(f"plugin {path}: no such file")
    try:
        load_file(file)
    except (Exception, SystemExit) as error:
        raise RecipeError(f"plugin {path} does not run: {said(error)}") from error


@functools.lru_cache(maxsize=64)
def _load_file(file: Path) -> Any:
    module_name = f"gainstage_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def load_file(file: Path) -> Any:
    """The module of a user's own file, run once."""
    with staying():
        return _load_file(file.resolve())


def load_entry_points() -> None:
    """Plugins that installed packages offer under the entry point group `gainstage.plugins`."""
    for point in importlib.metadata.entry_points(group="gainstage.plugins"):
        point.load()
