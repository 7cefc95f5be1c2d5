"""What a recipe can spend, so that a budget that nothing is ever charged to is refused before the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gainstage.chain import Chain, Part
from gainstage.measure.budget import AXES
from gainstage.recipe import Recipe
from gainstage.registry import RecipeError

SAMPLING = ("generated_tokens", "answers", "problems", "verifier_calls", "judge_calls", "flops")
LEARNING = ("trained_tokens", "gradient_steps", "flops")
SUGGESTED = ("generated_tokens", "transitions", "trained_tokens", "gradient_steps", "env_steps", "seconds")
"""Axes that a message offers first, in this order."""


def axes(chain: Chain) -> set[str]:
    """Axes that a phase may be charged on; all of them where a component is not of this package."""
    if any(_foreign(part) for part in chain):
        return set(AXES)
    found = {"seconds"}
    if "transitions" in chain.store.declares("requires"):
        found.add("transitions")
    elif getattr(chain.store.it, "fixed", False) and getattr(chain.store.it, "source", "") != "artifact":
        found.add("labels")
    if chain.simulates:
        found.update(("env_steps", "flops"))
    elif chain.rollout:
        found.update(SAMPLING)
        if "env" in chain.task.it.capabilities:
            found.add("env_steps")
    if chain.update:
        found.update(LEARNING)
    if any(part.declares("uses") for part in (*chain.reward, *chain.credit, *chain.update)):
        found.update(("scored_tokens", "flops"))
    return found


def all_axes(chains: Iterable[Chain]) -> set[str]:
    """Axes of every phase together."""
    return set().union(*(axes(chain) for chain in chains))


def _foreign(part: Part) -> bool:
    function = getattr(part.it, "function", None)
    return not getattr(function, "func", type(part.it)).__module__.startswith("gainstage.")


def offer(spent: Iterable[str]) -> str:
    """The axes by name, those that most people want first."""
    return ", ".join(sorted(spent, key=lambda axis: (axis not in SUGGESTED, list(AXES).index(axis))))


def example(spent: Iterable[str]) -> str:
    """A budget to copy, over an axis that can be spent."""
    axis = next(axis for axis in SUGGESTED if axis in {*spent, "seconds"})
    return f"{axis}=300" if axis in ("seconds", "gradient_steps") else f"{axis}=80k"


def check_budget(recipe: Recipe, chains: Mapping[str, Chain]) -> None:
    """Refuse a budget that the recipe, or one of its phases, can never spend.

    Raises:
        RecipeError: no axis of a budget is ever charged; the message lists those that are.
    """
    wanted = [("budget", recipe.budget, all_axes(chains.values()))]
    for phase in recipe.phases:
        name = str(phase["name"])
        wanted.append((f"phases.{name}.budget", phase.get("budget") or {}, axes(chains[name])))
    for where, limits, spent in wanted:
        if limits and not spent.intersection(limits):
            raise RecipeError(
                f"{where}: {recipe.name} spends no {' and no '.join(limits)}, so this budget would never end it; it "
                f"spends {offer(spent)}: give for instance --budget {example(spent)}"
            )
