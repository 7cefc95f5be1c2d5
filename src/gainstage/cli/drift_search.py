"""`gainstage search-drift`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gainstage.cli.common import Threads, people_errors, prepare


@people_errors
def search_drift(
    task: Annotated[str, typer.Argument(help="Control task with choices, the trainings' task.")] = "cart_pole",
    out: Annotated[Path, typer.Option("--out", help="File of the drift's weights.")] = Path("drift.safetensors"),
    generations: Annotated[int, typer.Option("--generations", "-n", min=1)] = 40,
    population: Annotated[int, typer.Option("--population", help="Trainings a generation, even.")] = 16,
    hidden: Annotated[int, typer.Option("--hidden", min=1, help="Hidden units of the drift's net.")] = 16,
    env_steps: Annotated[int, typer.Option("--env-steps", min=1, help="Of one training.")] = 20_000,
    std: Annotated[float, typer.Option("--std", help="Width of the search.")] = 0.05,
    lr: Annotated[float, typer.Option("--lr", help="Adam's, on the mean.")] = 1e-2,
    eps: Annotated[float, typer.Option("--eps", help="Start from PPO's clip of this width; 0 = from none.")] = 0.2,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    threads: Threads = None,
) -> None:
    """Let evolution look for a drift: the learnt policy optimisation of arXiv 2210.05639 in small.

    A generation is `population` whole trainings, run as one. The search is saved after each generation beside OUT and
    goes on from there; the best guess so far is OUT.

    Examples:

      gainstage search-drift cart_pole --out drift.safetensors

      gainstage search-drift acrobot --generations 20 --env-steps 40000 --out acrobot.safetensors

      gainstage train learnt_po update.policy.objectives.drift.kind.learnt.params=drift.safetensors
    """
    prepare(threads)
    from gainstage.chain import build_task
    from gainstage.regimes.drift_search import (
        Generation,
        InnerRun,
        first_weights,
        load_search,
        save_drift,
        save_search,
        search,
    )
    from gainstage.tracking.progress import Progress
    from gainstage.update.optimizers.evolution import OpenES

    made = build_task(task).it
    if "simulator" not in made.capabilities:
        raise ValueError(f"search-drift needs a task that is stepped, {task} is not; for instance cart_pole")
    es = OpenES(first_weights(hidden, seed), population, std, lr, seed=seed)
    state = out.with_suffix(".search.safetensors")
    out.parent.mkdir(parents=True, exist_ok=True)
    if state.exists():
        load_search(es, state)
    with Progress() as progress:

        def told(generation: Generation) -> None:
            save_drift(es.mean, out)
            save_search(es, state)
            note = f"returns of the members {generation.worst:.4g} to {generation.best:.4g}, mean {generation.mean:.4g}"
            progress.update("search", es.generation / generations, note=f"generation {es.generation}: {note}")

        search(made, es, InnerRun(env_steps=env_steps), generations, eps=eps or None, seed=seed, told=told)
        progress.finish("search", f"weights in {out}")
