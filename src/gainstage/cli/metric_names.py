"""Which metrics a comparison will have, known from its recipes before anything runs."""

from __future__ import annotations

import ast
import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gainstage.cli.arms import chains_of

if TYPE_CHECKING:
    from gainstage.chain import Chain
    from gainstage.cli.side_by_side import Job

LOGGING = ("select", "rollout", "reward", "store", "credit", "update", "tracking")
"""Rooms of the package whose components log."""
PACKAGE = Path(__file__).parents[1]
COUNTS = ("problems", "answers", "failed", "dropped/no_room")
"""What an evaluation says beside its metrics."""
PLACEHOLDER = "[^/]+"


def check_metric(metric: str, plan: Sequence[Job]) -> str:
    """Refuse a metric that no run will have, before the first one starts.

    Args:
        plan: the runs of one seed, an arm each.

    Returns:
        A warning where only the run can tell, because an arm has components of the user's own; else "".

    Raises:
        RecipeError: no arm will have it; the message lists near matches.
    """
    from gainstage.registry import RecipeError, near

    recipes = [chains_of(job) for job in plan]
    chains = [chain for row in recipes for chain in row]
    held_out, tasks = set[str](), set[str]()
    for row in recipes:
        held_out |= _evaluated(row[-1])
        tasks.add(row[-1].task.it.name)
    _check_answers(metric, recipes)
    full = {f"eval/{task}/{name}" for task in tasks for name in held_out} | {f"eval/*/{name}" for name in held_out}
    if metric in held_out or metric in full or (not metric.startswith("eval/") and _logged(metric, chains)):
        return ""
    foreign = _foreign(chains)
    known = full if metric.startswith("eval/") else held_out | _plain_names()
    close = difflib.get_close_matches(metric, known, n=1, cutoff=0.55)
    hint = near(metric, known if close else held_out)
    if foreign and not metric.startswith("eval/"):
        who = ", ".join(sorted(foreign))
        return (
            f"--metric {metric}: unless {who} logs it, there will be nothing to compare{f'; {hint}' if close else ''}"
        )
    raise RecipeError(f"--metric: no run will have {metric!r}; {hint}")


def _last_answers(chain: Chain) -> int:
    settings = chain.recipe.evaluate
    return settings.final_samples or settings.samples


def _evaluated(chain: Chain) -> set[str]:
    """Bare names of the last look's numbers, and those of retained tasks."""
    from gainstage.measure.metrics import RETAINED, known_names
    from gainstage.recipe import entry_name
    from gainstage.results import ks

    answers = _last_answers(chain)
    passes = {f"pass@{k}" for k in {*ks(answers), answers}}
    ends = {f"{name}/{end}" for name in ("pass@1", "greedy") for end in ("low", "high")}
    kept = {RETAINED + entry_name(entry) for entry in chain.recipe.evaluate.retain}
    return {*known_names(), *COUNTS, *passes, *ends, *kept, *(f"{name}/change" for name in kept)}


def _check_answers(metric: str, recipes: Sequence[Sequence[Chain]]) -> None:
    """Raises RecipeError: pass@k for a k that the last look does not measure."""
    from gainstage.registry import RecipeError
    from gainstage.results import ks

    found = re.fullmatch(r"(?:eval/[^/]+/)?pass@(\d+)", metric)
    if not found:
        return
    for row in recipes:
        answers = _last_answers(row[-1])
        if int(found[1]) not in (measured := {*ks(answers), answers}):
            those = ", ".join(f"pass@{k}" for k in sorted(measured))
            raise RecipeError(
                f"--metric {metric}: the last look asks {answers} answers to each problem and measures {those}; "
                f"--set evaluate.final_samples={found[1]} would measure it"
            )


def _logged(name: str, chains: Iterable[Chain]) -> bool:
    """Whether training may log a name."""
    from gainstage.tracking.names import fits

    where = fits(name)
    if where is not None and "learner" in where:
        return where["learner"] in {part.name for chain in chains for part in chain.update}
    return where is not None or any(re.fullmatch(pattern, name) for pattern in _patterns(_files(chains)))


def _files(chains: Iterable[Chain]) -> list[Path]:
    """Sources of the package's own rooms that log, and of the components that stand outside of it."""
    own = [file for room in LOGGING for file in sorted((PACKAGE / room).rglob("*.py"))]
    return [*own, *_foreign(chains).values()]


def _foreign(chains: Iterable[Chain]) -> dict[str, Path]:
    """Components that do not belong to the package, with the file of each."""
    from gainstage.registry import find

    out: dict[str, Path] = {}
    for chain in chains:
        for part in (chain.task, *chain):
            parts = [(part.key, find(part.stage, part.component).file)]
            parts += [(f"{part.key}.{n}", find("objective", n).file) for n, _ in getattr(part.it, "terms", [])]
            path = str(getattr(part.it, "path", "")).rpartition(":")[0]
            parts += [(part.key, path)] if path.endswith(".py") else []
            out |= {key: Path(file) for key, file in parts if not Path(file).is_relative_to(PACKAGE)}
    return out


def _patterns(files: Iterable[Path]) -> set[str]:
    return {pattern for file in files for pattern in _literals(file)}


@functools.cache
def _literals(file: Path) -> frozenset[str]:
    """Patterns of the strings in a source file that look like names of metrics; `{...}` stands for one word."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return frozenset()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(re.escape(node.value))
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            found.add("".join(
                re.escape(str(v.value)) if isinstance(v, ast.Constant) else PLACEHOLDER for v in node.values
            ))  # fmt: skip
    return frozenset(pattern for pattern in found if re.match(r"[a-z_]+/", pattern))


def _plain_names() -> set[str]:
    from gainstage.tracking.names import NAMES

    return {name for name in NAMES if "{" not in name}
