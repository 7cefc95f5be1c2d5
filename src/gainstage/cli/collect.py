"""`gainstage collect`: record episodes as a data set in Minari's format."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean as mean
from typing import Annotated, Any

import typer

from gainstage.cli.common import AsJson, Plugins, people_errors, prepare, stopping

PER_LOOK = 16
"""Episodes between two looks at the limits."""


@people_errors
def collect(
    out: Annotated[Path, typer.Argument(help="Folder of the data set, as data/pendulum-medium-v0.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Settings of the task, key=value: task.max_steps=200", show_default=False),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", help="A control task or gym:ID; a run's own where absent.", show_default=False),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="Who acts: random, expert, medium (scripted), walk, augmented (in positioning), or a run: runs/NAME.",
        ),
    ] = "random",
    mix: Annotated[
        str | None,
        typer.Option("--mix", help="Several, by shares of episodes: expert=0.3,random=0.7", show_default=False),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option("--episodes", "-n", min=1, help="Whole episodes (100).", show_default=False)
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Steps at least; the episode that reaches them is kept whole.",
                     show_default=False),
    ] = None,
    explore: Annotated[bool, typer.Option("--explore", help="Trained policies draw their actions.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of starts and draws.")] = 0,
    format: Annotated[str, typer.Option("--format", help="hdf5, parquet or arrow.")] = "hdf5",
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Record episodes with any policy, for offline learning here or anywhere Minari is read.

    The share of each policy is kept all the way; the fact `source` of every step says who acted. Ctrl-C ends the record
    after the episodes that are there, which are written.

    Examples:

      gainstage collect data/pendulum-medium-v0 --task pendulum --policy medium --episodes 200

      gainstage collect data/hopper-mixed-v0 --task gym:Hopper-v5 --mix runs/sac-hopper=0.1,random=0.9 --steps 100000

      gainstage train iql task=minari:data/pendulum-medium-v0
    """
    prepare(None, plugin)
    from gainstage.tasks.control.minari_writer import refuse, write_episodes
    from gainstage.tasks.control.recording import mixed, parse_mix, start_seeds
    from gainstage.tracking.progress import Progress

    refuse(out, format)
    if episodes is not None and steps is not None:
        raise ValueError("give --episodes or --steps, not both")
    shares = parse_mix(mix) if mix is not None else {policy: 1.0}
    world, spec = _world(task, settings or [], shares)
    players = Players(world, explore)
    for name in shares:
        players.make(name, 0)  # so that a wrong name is said before anything is recorded
    limit = episodes if episodes is not None else (100 if steps is None else None)
    tally = Tally(shares, limit, steps)
    with Progress() as progress, stopping(tally.stop):

        def played() -> Iterator[Any]:
            done = 0
            while not tally.full:
                count = PER_LOOK if limit is None else min(4 * PER_LOOK, limit - done)
                starts = start_seeds(world, count, seed, first=done)
                chunk = seed if done == 0 else seed + 1_000_003 * done
                for episode in mixed(world, players.make, shares, starts, chunk):
                    if tally.full:
                        return
                    tally.add(episode)
                    progress.update(out.name, tally.share, note=tally.note)
                    yield episode
                done += count

        write_episodes(
            out, played(), observation_space=world.observation_space,
            action_space=world.action_space, spec=_gym_spec(world), task=spec, format=format,
            algorithm_name=", ".join(f"{name} {share:.3g}" for name, share in shares.items()),
            description=f"recorded by gainstage collect, seed {seed}", **_reference(world),
        )  # fmt: skip
        progress.finish(out.name, tally.note)
    if as_json:
        facts = {"path": str(out), "episodes": tally.episodes, "steps": tally.steps, "stopped": tally.stopped}
        print(json.dumps(facts | tally.means()))
        return
    print(f"{out}: {tally.episodes} episodes, {tally.steps} steps" + (" (stopped early)" if tally.stopped else ""))
    for name, value in tally.returns.items():
        if value:
            print(f"  {name:10} {len(value):6} episodes, mean return {mean(value):.4g}")
    print(f"train on it: gainstage train iql task=minari:{out}")


class Tally:
    """What is there so far, and whether it is enough."""

    def __init__(self, shares: dict[str, float], episodes: int | None, steps: int | None) -> None:
        self.wanted, self.wanted_steps = episodes, steps
        self.returns: dict[str, list[float]] = {name: [] for name in shares}
        self.episodes = self.steps = 0
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True

    def add(self, episode: Any) -> None:
        source = list(self.returns)[int(episode.info["source"][0])]
        self.returns[source].append(float(episode.rewards.double().sum()))
        self.episodes += 1
        self.steps += len(episode)

    @property
    def full(self) -> bool:
        """Enough is there; a stop that was asked for waits for the first episode."""
        if self.stopped and self.episodes:
            return True
        return self.share >= 1

    @property
    def share(self) -> float:
        if self.wanted is not None:
            return self.episodes / self.wanted
        assert self.wanted_steps is not None
        return self.steps / self.wanted_steps

    @property
    def note(self) -> str:
        found = [value for values in self.returns.values() for value in values]
        so_far = f", mean return {mean(found):.4g}" if found else ""
        return f"{self.episodes} episodes, {self.steps} steps{so_far}"

    def means(self) -> dict[str, float]:
        return {f"return/{name}": mean(found) for name, found in self.returns.items() if found}


class Players:
    """Controllers by name: scripts, and the policies of finished runs.

    Args:
        task: environment that they act in.
        explore: trained policies draw their actions.
    """

    def __init__(self, task: Any, explore: bool) -> None:
        self.task, self.explore = task, explore
        self.loaded: dict[str, Any] = {}
        self.learning: dict[str, Any] = {}

    def make(self, name: str, seed: int) -> Any:
        """Raises ValueError: no such script or run, or a policy for other spaces."""
        from gainstage.episodes import final_policy
        from gainstage.tasks.control.recording import Acting, controller

        if not Path(name).is_dir():
            if "/" in name:
                raise ValueError(f"{name}: no such run; give its folder, or random, expert, medium")
            made = self.learning.get(name) or controller(name, self.task, seed)
            if hasattr(made, "learn"):
                self.learning[name] = made  # what it learned is kept from one stretch of episodes to the next
            return made
        if name not in self.loaded:
            self.loaded[name] = final_policy(Path(name), self.task)
        return Acting(self.loaded[name], self.explore, seed)


def _world(task: str | None, settings: list[str], shares: dict[str, float]) -> tuple[Any, dict[str, Any]]:
    """The environment that is recorded in, and how it is made again."""
    from gainstage.chain import build_task
    from gainstage.recipe import of_run, override
    from gainstage.tasks.resolve import resolve

    runs = [Path(name) for name in shares if Path(name).is_dir()]
    if task is None and not runs:
        raise ValueError("which environment? For instance --task pendulum, or --task gym:Hopper-v5")
    spec: Any = task if task is not None else of_run(runs[0]).task
    data: dict[str, Any] = {"task": spec}
    for text in settings:
        data = override(data, text if text.startswith("task") else f"task.{text}")
    found = build_task(data["task"]).it
    if "transitions" in found.capabilities:
        if found.inner is None:
            raise ValueError(f"{found.name}: there is no environment to act in: {found.missing}")
        return found.inner, found.spec
    if "simulator" not in found.capabilities:
        raise ValueError(f"{found.name} is no environment; gainstage tasks lists those that are stepped")
    name, chosen = resolve(data["task"])
    return found, {name: chosen}


def _gym_spec(world: Any) -> Any:
    """Gymnasium's entry of an environment that is its own and shown as it is, so that others can make it again."""
    from gainstage.tasks.control.gymnasium import Gymnasium

    if not isinstance(world, Gymnasium) or world.wrappers or world.pixels or world.stack > 1 or world.repeat > 1:
        return None
    spec = copy.deepcopy(world.spec)
    spec.kwargs, spec.max_episode_steps = {**spec.kwargs, **world.kwargs}, world.max_steps
    return spec


def _reference(world: Any) -> dict[str, float]:
    """Mean returns of the random and the expert controller, where there is a script."""
    from gainstage.tasks.control.recording import controller, mean_return

    try:
        best = controller("expert", world)
    except ValueError:
        return {}
    return {"ref_min_score": mean_return(world, controller("random", world)), "ref_max_score": mean_return(world, best)}
