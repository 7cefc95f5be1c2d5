"""A recipe as one straight file: the components' source in call order, with the columns each reads and writes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from gainstage.chain import Chain, Part
from gainstage.recipe import Recipe
from gainstage.registry import find

ORDER = (
    ("select", ("next",), "which problems"),
    ("rollout", ("collect",), "how experience is made (the first wraps the next)"),
    ("reward", ("judge",), "facts about each answer"),
    ("select", ("observe", "keep"), "what is kept"),
    ("store", ("add", "rounds"), "what is handed to learning"),
    ("select", ("relabel",), "what is rewritten when it is read"),
    ("reward", ("shape",), "rewards made at every read"),
    ("credit", ("estimate", "assign"), "who earned it"),
    ("update", ("prepare", "loss"), "how the weights move"),
)


def flat_source(recipe: Recipe, chains: Sequence[Chain]) -> str:
    """Python text that reads from top to bottom as an iteration runs."""
    lines = [
        f'"""{recipe.name}: {recipe.title}',
        "",
        *(f"    {line}" for line in recipe.yaml().splitlines()),
        '"""',
        "",
    ]
    seen: set[Any] = set()
    for index, chain in enumerate(chains):
        if recipe.phases:
            lines += [f"# ==== phase {recipe.phases[index]['name']} " + "=" * 60, ""]
        for stage, hooks, question in ORDER:
            parts = [chain.store] if stage == "store" else getattr(chain, stage)
            for part in parts:
                if any(part.has(hook) or _is_function(part) for hook in hooks):
                    lines += _section(part, hooks, question, seen)
        for part in chain.update:
            for name, term in getattr(part.it, "terms", []):
                lines += _objective(part, name, term, seen)
    lines += ["# ---- one optimizer step", "", inspect.getsource(_optimise()), ""]
    return "\n".join(lines)


def _optimise() -> Any:
    from gainstage.update.learner import optimise

    return optimise


def _is_function(part: Part) -> bool:
    return hasattr(part.it, "function")


def _section(part: Part, hooks: Sequence[str], question: str, seen: set[Any]) -> list[str]:
    reads, writes = ", ".join(part.declares("needs")) or "-", ", ".join(part.declares("writes")) or "-"
    head = [f"# ---- {part.key}: {question}", f"#      reads {reads}; writes {writes}", ""]
    if _is_function(part):
        return [*head, *_source(part.it.function.func, seen), ""]
    body: list[str] = []
    for hook in hooks:
        if part.has(hook):
            body += _source(getattr(type(part.it), hook), seen)
    if not body:
        return []
    settings = {k: v for k, v in vars(part.it).items() if k in find(part.stage, part.component).settings}
    return [*head, f"# {type(part.it).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.items())})", *body, ""]


def _objective(part: Part, name: str, term: Any, seen: set[Any]) -> list[str]:
    settings = ", ".join(f"{k}={v!r}" for k, v in term.keywords.items())
    return [f"# ---- {part.key}.objectives.{name}({settings})", "", *_source(term.func, seen), ""]


def _source(function: Any, seen: set[Any]) -> list[str]:
    """A function, behind the functions of its own file that it calls."""
    if function in seen:
        return [f"# {function.__qualname__}: above", ""]
    seen.add(function)
    lines: list[str] = []
    for helper in _helpers(function):
        if helper not in seen:
            lines += _source(helper, seen)
    return [*lines, *textwrap.dedent(inspect.getsource(function)).rstrip().splitlines(), ""]


def _helpers(function: Any) -> Iterator[Any]:
    """Functions of the package that `function` calls by name, and methods it calls on itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    owner = _owner(function)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        target = None
        if isinstance(node.func, ast.Name):
            target = function.__globals__.get(node.func.id)
        elif (
            isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "self"
            and owner
        ):
            target = getattr(owner, node.func.attr, None)
        if (
            inspect.isfunction(target)
            and target.__module__.startswith("gainstage.")
            and ".types" not in target.__module__
        ):
            yield target


def _owner(function: Any) -> Any:
    name = function.__qualname__.rsplit(".", 1)[0]
    found = function.__globals__.get(name)
    return found if inspect.isclass(found) else None
