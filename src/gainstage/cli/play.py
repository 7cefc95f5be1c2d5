"""`gainstage play`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gainstage.cli.common import AsJson, Device, Plugins, Threads, people_errors, pick_device, prepare

FILMS = (".gif", ".mp4")


@people_errors
def play(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, for instance runs/ppo-cart_pole-001.")],
    task: Annotated[
        str | None,
        typer.Option("--task", help="Another task with the same spaces; absent = the run's.", show_default=False),
    ] = None,
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, help="Episodes from held-out starts.")] = 20,
    split: Annotated[str, typer.Option("--split", help="Whose starts: validation or test.")] = "test",
    explore: Annotated[
        bool, typer.Option("--explore", help="Draw actions as in training instead of the likeliest.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    film: Annotated[
        Path | None,
        typer.Option("--film", help="Write the first episode as FILE.gif or FILE.mp4.", show_default=False),
    ] = None,
    fps: Annotated[int, typer.Option("--fps", min=1, help="Frames a second of the film.")] = 30,
    plugin: Plugins = None,
    as_json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Let a trained policy play: returns with their interval, and a film on request.

    Examples:

      gainstage play runs/ppo-cart_pole-001

      gainstage play runs/ppo-cart_pole-001 --film cart_pole.gif

      gainstage play runs/sac-pendulum-001 --task gym:Pendulum-v1 -n 100 --json
    """
    prepare(threads, plugin)
    import torch

    from gainstage import episodes as played
    from gainstage.evaluation import held_out
    from gainstage.measure.evaluate import rate_interval
    from gainstage.measure.intervals import mean_interval
    from gainstage.ops.seeding import stream
    from gainstage.registry import RecipeError

    if film is not None and film.suffix not in FILMS:
        raise RecipeError(f"--film: a file that ends in {' or '.join(FILMS)}, got {film}")
    made, policy = played.player(run, task, pick_device(device))
    starts = held_out(made, split, episodes)
    with stream(seed, "play"), torch.no_grad():
        records = played.play(made, policy, starts, 1, explore=explore)
        frames = 0 if film is None else _film(made, policy, starts[:1], explore, film, fps)
    answers = [answer for record in records for answer in record.answers]
    returns = [answer.reward for answer in answers]
    estimate = mean_interval(returns)
    rate = rate_interval(records)
    numbers: dict[str, Any] = {
        "task": made.name, "episodes": len(answers), "return": estimate.value, "low": estimate.low,
        "high": estimate.high, "least": min(returns), "most": max(returns),
        "length": sum(answer.length for answer in answers) / len(answers),
        "success": None if rate is None else rate.value, "film": None if film is None else str(film),
    }  # fmt: skip
    if as_json:
        print(json.dumps(numbers))
        return
    within = "" if estimate.low is None else f"  95 % interval [{estimate.low:.4g}, {estimate.high:.4g}]"
    print(f"{made.name}: return {estimate.value:.4g}{within}, from {min(returns):.4g} to {max(returns):.4g}")
    print(f"  {len(answers)} episodes of {numbers['length']:.4g} steps on average")
    if rate is not None:
        print(f"  success {rate.value:.3f}")
    if film is not None:
        print(f"  film: {film} ({frames} frames)")


def _film(task: Any, policy: Any, starts: Any, explore: bool, path: Path, fps: int) -> int:
    """Play one episode, and write what it looks like; returns the number of frames."""
    from gainstage import episodes as played
    from gainstage.ops.extras import require
    from gainstage.tasks.control.drawing import picture

    imageio = require("imageio", extra="control")
    seen: list[Any] = []
    watched = _drawable(task)
    played.play(watched, policy, starts, 1, explore=explore, frames=lambda env: seen.append(picture(env)))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gif":
        imageio.mimsave(path, seen, duration=1000 / fps, loop=0)
    else:
        imageio.mimsave(path, seen, fps=fps, macro_block_size=2)
    return len(seen)


def _drawable(task: Any) -> Any:
    """The task itself; environments from elsewhere must be told beforehand that they will be drawn."""
    from dataclasses import replace

    from gainstage.tasks.control.gymnasium import Gymnasium
    from gainstage.tasks.control.pettingzoo import PettingZoo

    if isinstance(task, Gymnasium):
        return replace(task, kwargs={**task.kwargs, "render_mode": "rgb_array"}, copies="sync")
    if isinstance(task, PettingZoo):
        return replace(task, kwargs={**task.kwargs, "render_mode": "rgb_array"})
    return task
