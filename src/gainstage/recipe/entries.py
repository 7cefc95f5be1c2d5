"""Entries of a stage's list: a name, or one `name: settings` pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gainstage.registry import RecipeError

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
