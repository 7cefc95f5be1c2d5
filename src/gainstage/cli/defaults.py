"""What a comparison takes for granted: answers are compared by pass@1, episodes by their return."""

from __future__ import annotations

from collections.abc import Sequence

from gainstage.cli.arms import pieces

ANSWERS, EPISODES = "pass@1", "reward/mean"
"""What is compared of answers, and of episodes: their return."""
BUDGET = ["generated_tokens=80k"]


def defaults(arm: str, shared: Sequence[str]) -> tuple[str, list[str]]:
    """Metric and budget of a comparison whose first arm is `arm`.

    For a task that is stepped: the return, and as many environment steps as the arm's recipe allows itself.

    Args:
        shared: changes for every arm.
    """
    from gainstage.chain import build_task
    from gainstage.recipe import load

    recipe, *own = pieces(arm)
    made = load(recipe, [*shared, *own])
    if "simulator" not in build_task(made.task).it.capabilities:
        return ANSWERS, BUDGET
    steps = made.budget.get("env_steps")
    return EPISODES, BUDGET if steps is None else [f"env_steps={int(steps)}"]
