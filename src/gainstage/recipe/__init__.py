"""Recipes: YAML that names the components of every stage. Loading, inheritance, overrides, errors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gainstage.recipe.entries import LISTS, OPTIONS, Entry, entry_name, split_entry
from gainstage.recipe.files import catalog, compose, merge
from gainstage.recipe.overrides import lookup, override, parse_override
from gainstage.recipe.schema import Evaluate, PhaseSpec, Plan, Recipe, Save, check, phase_recipe
from gainstage.recipe.small_scale import SearchSpace, SmallScaleCheck

__all__ = [
    "LISTS", "OPTIONS", "Entry", "Evaluate", "PhaseSpec", "Plan", "Recipe", "Save", "SearchSpace", "SmallScaleCheck",
    "catalog", "check", "compose", "entry_name", "load", "lookup", "merge", "override", "parse_override",
    "phase_recipe", "split_entry",
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
