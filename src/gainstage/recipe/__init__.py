"""Recipes: YAML that names the components of every stage. Loading, inheritance, overrides, errors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import yaml

from gainstage.recipe.entries import LISTS, OPTIONS, Entry, entry_name, split_entry
from gainstage.recipe.files import catalog, compose, merge
from gainstage.recipe.overrides import lookup, override, parse_override
from gainstage.recipe.schema import Evaluate, PhaseSpec, Plan, Recipe, Save, check, phase_recipe
from gainstage.recipe.small_scale import SearchSpace, SmallScaleCheck
from gainstage.registry import RecipeError

__all__ = [
    "LISTS", "OPTIONS", "Entry", "Evaluate", "PhaseSpec", "Plan", "Recipe", "Save", "SearchSpace", "SmallScaleCheck",
    "catalog", "check", "compose", "entry_name", "load", "lookup", "merge", "override", "parse_override",
    "of_run", "phase_recipe", "split_entry",
]  # fmt: skip


def load(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """A checked recipe: catalogue name or YAML path, what it extends, and dotted overrides on top.

    Raises:
        RecipeError: anything a user can mend; the message names the key and near matches.
    """
    data = compose(name)
    for text in overrides:
        data = override(data, text)
    return check(data)


def of_run(run: Path) -> Recipe:
    """The recipe that a run was begun with, out of its folder.

    Raises:
        RecipeError: there is none, or it cannot be read.
    """
    file = run / "recipe.yaml"
    if not file.is_file():
        raise RecipeError(f"{run} holds no run (no recipe.yaml)")
    try:
        written = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file}: not readable as YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(written, dict):
        raise RecipeError(f"{file}: must be a mapping of keys, got {type(written).__name__}")
    return check(written)
