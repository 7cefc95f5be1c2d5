"""Where recipes come from: the catalogue and YAML files, and what `extends` means."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from gainstage.registry import RecipeError, near


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
        data = read_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path}: not readable as YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise RecipeError(f"recipe {path}: must be a mapping of keys, got {type(data).__name__}")
    data.setdefault("name", path.stem)
    return data


def read_yaml(text: str) -> Any:
    """YAML as recipes use it.

    Raises:
        yaml.YAMLError: not YAML, an alias, or a key that stands twice.
    """
    return yaml.load(text, Loader=_Loader)  # noqa: S506  # a SafeLoader


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


def remake_roles(data: dict[str, Any], over: Any) -> None:
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
    remake_roles(base, own.get("models"))
    for key in ("title", "paper", "claim", "check", "notes", "tags"):
        base.pop(key, None)
    return {**merge(base, own), "extends": str(parent)}


def _beside(name: str | Path, parent: str) -> str | Path:
    return Path(name).parent / parent if parent.endswith((".yaml", ".yml")) and Path(name).suffix else parent
