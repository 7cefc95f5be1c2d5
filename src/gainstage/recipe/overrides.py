"""Dotted overrides: `update.policy.lr=3e-4`. A segment inside a list is the name of an entry or of a phase.

What is given takes the place of what stood there, mappings as well: `budget={env_steps: 1000}` drops other limits.
`null` removes one: `phases.teach=null`, `credit.reference_logprobs=null`; `phases=[]` removes all phases.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import yaml

from gainstage.recipe.entries import LISTS, entry_name
from gainstage.recipe.files import read_yaml, remake_roles
from gainstage.recipe.schema import Recipe
from gainstage.registry import RecipeError, near


def parse_override(text: str) -> tuple[list[str], Any]:
    """`a.b.c=value` with the value read as YAML.

    Raises:
        RecipeError: no `=`, or a value that is not YAML.
    """
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise RecipeError(f"an override is key=value, got {text!r}")
    try:
        return path.strip().split("."), read_yaml(value) if value.strip() else ""
    except yaml.YAMLError as error:
        raise RecipeError(f"{text!r}: the value is not readable: {str(error).splitlines()[0]}") from None


def override(data: dict[str, Any], text: str) -> dict[str, Any]:
    """A recipe's data with one dotted override. A segment inside a list is the name of an entry or of a phase."""
    path, value = parse_override(text)
    out = copy.deepcopy(data)
    if path[0] not in Recipe.model_fields:
        raise RecipeError(f"a recipe has no key {path[0]!r}; {near(path[0], Recipe.model_fields)}")
    if path[0] == "extends":
        raise RecipeError(f"{text!r}: extends is what a recipe's file says; name the method to begin with instead")
    if path[0] == "models" and len(path) == 3:
        remake_roles(out, {path[1]: {path[2]: value}})
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
        if not rest and value is None:
            del node[index]
            return
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
        node[head] = value
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


def lookup(data: Mapping[str, Any], key: str) -> Any:
    """The value that an override of this key would replace.

    Raises:
        KeyError: the recipe does not state it.
    """
    node: Any = data
    for segment in key.split("."):
        if isinstance(node, list):
            named = {
                e["name"] if isinstance(e, Mapping) and isinstance(e.get("name"), str) else entry_name(e): e
                for e in node
            }
            entry = named[segment]
            node = entry if not isinstance(entry, Mapping) or "name" in entry else next(iter(entry.values())) or {}
        elif isinstance(node, Mapping):
            node = node[segment]
        else:
            raise KeyError(key)
    return node
