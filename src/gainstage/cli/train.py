"""`gainstage train`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gainstage.cli.common import (
    BudgetText,
    Device,
    Overrides,
    Plugins,
    PolicyName,
    Seed,
    TaskName,
    Threads,
    changes,
    people_errors,
    pick_device,
    prepare,
    stopping,
)

LOOKED_AT = ("/pass@1", "/reward/mean")
"""Ends of the held-out numbers that a line of progress shows, the best one first."""


@people_errors
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A method of the catalogue (`gainstage methods`) or a YAML file.", show_default=False),
    ] = None,
    overrides: Overrides = None,
    task: TaskName = None,
    policy: PolicyName = None,
    budget: BudgetText = None,
    seed: Seed = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run's folder under --runs.", show_default=False)
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Folder of all runs.")] = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the run in this folder.", show_default=False)
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Delete a run of that name first.")] = False,
    plugin: Plugins = None,
    track: Annotated[
        list[str] | None, typer.Option("--track", help="tensorboard, trackio or wandb.", show_default=False)
    ] = None,
    log_names: Annotated[
        str | None,
        typer.Option("--log-names", help="Spelling of metric names there: trl, verl or sb3.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the plan, train nothing.")
    ] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train a model by a method of the catalogue, or by a recipe of your own.

    Everything is written to runs/NAME: resolved recipe, metrics.jsonl, rollouts as Parquet, checkpoints, and in
    final/ a plain Hugging Face folder with its model card. Ctrl-C stops cleanly; --resume goes on bit for bit.

    Examples:

      gainstage train grpo

      gainstage train dapo --task countdown --budget generated_tokens=500k

      gainstage train grpo --policy smollm2 models.policy.lora=true plan.groups=4 update.policy.lr=2e-4

      gainstage train grpo --task jsonl:data.jsonl reward=my_file.py:my_reward

      gainstage train --resume runs/grpo-arithmetic-001
    """
    prepare(threads, plugin)
    from gainstage.recipe import load
    from gainstage.registry import RecipeError
    from gainstage.running import Run
    from gainstage.tracking.folder import RunFolder
    from gainstage.tracking.progress import Progress
    from gainstage.tracking.sinks import Sinks

    where = pick_device(device)
    with Progress() as progress:
        if resume is not None:
            if recipe or overrides or task or policy or budget or seed is not None:
                raise RecipeError(
                    "--resume takes the run as it is: give no recipe and no changes (other settings need a new run)"
                )
            run = Run.resume(resume, device=where, warn=progress.say)
        else:
            if recipe is None:
                raise RecipeError("which method? For instance: gainstage train grpo (gainstage methods lists them)")
            loaded = load(recipe, changes(overrides, task, policy, seed, budget))
            run = Run(loaded, device=where, warn=progress.say)
            progress.say(describe(run))
            if dry_run:
                return
            run.folder = RunFolder.create(name, parent=runs, stem=f"{loaded.name}-{run.task.name}", clean=clean)
        folder = run.folder
        assert folder is not None
        sinks = Sinks(track or [], folder.path, run.recipe.model_dump(mode="json"), log_names)

        def watch(row: dict[str, float], trainer: Any) -> None:
            progress.update(folder.name, trainer.progress, row, note=look_note(row, word(run)))
            sinks.log({**row, "iteration": int(row["iteration"])})
            folder.status("running", iteration=int(row["iteration"]), progress=trainer.progress)

        run.watch = watch
        with folder, stopping(lambda: setattr(run.trainer, "stop_requested", True)):
            record = run.execute()
            if not run.ended:
                folder.close("stopped", iteration=run.trainer.iteration)
        sinks.close()
        if not run.ended:
            progress.say(
                f"stopped at iteration {run.trainer.iteration}; go on with: gainstage train --resume {folder.path}"
            )
            raise typer.Exit(130)
        progress.finish(folder.name, final_line(record, run.task.name, word(run)))
        progress.say(f"model: {folder.path / 'final'}\nall numbers: {folder.path / 'metrics.jsonl'}")


def describe(run: Any) -> str:
    """What is about to run, with its arithmetic."""
    from gainstage.recipe import LISTS
    from gainstage.tracking.plan import arithmetic

    chain = run.trainer.last_chain
    plan = chain.recipe.plan.model_dump()
    drawn = getattr(chain.store.it, "draws", False)
    if drawn:
        plan["groups"] = 0
    else:
        plan["updates"] = None
    names = " + ".join(part.name for part in chain.update)
    stages = " -> ".join(
        f"{stage}[{', '.join(part.name for part in getattr(chain, stage))}]" for stage in LISTS
        if getattr(chain, stage)
    )  # fmt: skip
    lines = [
        f"{run.recipe.name} on {chain.task.name}: {stages}",
        arithmetic(
            plan,
            chain.samples,
            max_new=chain.answer_limit,
            learners=sum(part.has("loss") for part in chain.update),
            stepped=stepped(chain),
            draws=drawn,
        ),
        f"  trains {names or 'nothing'}",
        cost_of_looking(run.recipe, chain),
    ]
    for part in chain.update:
        if part.has("partition") and (blocks := part.it.partition(run.trainer.ctx)):
            lines += [f"  {part.key}: one second moment a block", *(f"    {line}" for line in blocks.splitlines())]
    if not drawn and (plan["epochs"] > 1 or plan["minibatch"]) and on_policy_only(chain):
        lines.append(
            "  policy_gradient corrects for nothing: from an iteration's second optimizer step on data are off-policy "
            "(ratio/mean shows how far; plan.minibatch=null plan.epochs=1 takes one step)"
        )
    return "\n".join(lines)


def stepped(chain: Any) -> tuple[int, int] | None:
    """Copies of the environment and steps of each an iteration; None where experience is no simulator's."""
    engine: Any = chain.rollout[-1].it if chain.simulates else None
    return (engine.copies, engine.steps) if hasattr(engine, "copies") and hasattr(engine, "steps") else None


def cost_of_looking(recipe: Any, chain: Any) -> str:
    """What evaluation costs beside training, a line or two."""
    from gainstage.tracking.plan import episodes, evaluation

    plan = chain.recipe.plan
    held_out = len(chain.task.it.problems(recipe.evaluate.split))
    if "simulator" in chain.task.it.capabilities:
        return episodes(recipe.evaluate, iterations=None if recipe.phases else recipe.iterations, held_out=held_out)
    sampled = plan.groups * chain.samples if chain.rollout and chain.samples else None
    return evaluation(
        recipe.evaluate,
        iterations=None if recipe.phases else recipe.iterations,
        answers=sampled,
        tokens=recipe.budget.get("generated_tokens"),
        max_new=chain.answer_limit,
        held_out=held_out,
    )


def on_policy_only(chain: Any) -> bool:
    """Whether a learner's policy objective has neither ratio nor clip."""
    return any(name == "policy_gradient" for part in chain.update for name, _ in getattr(part.it, "terms", []))


def look_note(row: dict[str, float], word: str = "reward") -> str:
    """The held-out rate, where this row has one; the held-out reward (`word`) where answers have no verdicts."""
    for name in LOOKED_AT:
        for key, value in row.items():
            if key.startswith("eval/") and key.endswith(name):
                if name == LOOKED_AT[0]:
                    return f"held-out pass@1 {value:.3f}"
                return f"held-out {word} {value:.4g}" if word == "return" else f"held-out {word} {value:.3f}"
    return ""


def word(run: Any) -> str:
    """What a run is paid: the return of an episode, or the reward of an answer."""
    return "return" if "simulator" in run.task.capabilities else "reward"


def final_line(record: Any, task: str, word: str = "reward") -> str:
    """The last word on a run: pass@1 with its interval, that before training, greedy pass@1; else the mean reward."""
    from gainstage.measure.starts import start_row

    numbers, first = record.numbers(), start_row(record)
    name = f"eval/{task}/pass@1"
    if name not in numbers:
        return mean_line(numbers, first, f"eval/{task}/reward/mean", word)
    text = f"held-out pass@1 {numbers[name]:.3f} [{numbers[f'{name}/low']:.3f}, {numbers[f'{name}/high']:.3f}]"
    greedy = f"eval/{task}/greedy"
    if name in first:
        text += f", before {first[name]:.3f}"
    if greedy in numbers:
        text += f"; greedy {numbers[greedy]:.3f}" + (f", before {first[greedy]:.3f}" if greedy in first else "")
    return text


def mean_line(numbers: Mapping[str, float], first: Mapping[str, float], name: str, word: str) -> str:
    """Mean return of episodes (reward of answers without verdicts) with its t interval, and that before training."""
    if name not in numbers:
        return ""
    text = f"held-out {word} {numbers[name]:.4g}"
    if f"{name}/low" in numbers:
        text += f" [{numbers[f'{name}/low']:.4g}, {numbers[f'{name}/high']:.4g}]"
    return text + (f", before {first[name]:.4g}" if name in first else "")
