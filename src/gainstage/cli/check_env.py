"""`gainstage check-env`: what is wrong with an environment, before a run finds out."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import asdict
from typing import Annotated, Any

import typer

from gainstage.cli.common import AsJson, Plugins, people_errors, prepare


@people_errors
def check_env(
    env: Annotated[str, typer.Argument(help="A Gymnasium id, gym:ID, or a control task.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Settings, key=value: task.max_steps=200, task.kwargs={g: 5}", show_default=False),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of random actions to look at.")] = 1000,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Look for what an environment does wrong: spaces, rewards, seeds, ends, what it hides from the learner.

    Exit code 2 where something is wrong; notes do not count.

    Examples:

      gainstage check-env CartPole-v1

      gainstage check-env gym:my_module:MyEnv-v0 --steps 5000 task.max_steps=300

      gainstage check-env pendulum --json
    """
    prepare(None, plugin)
    name, chosen = _target(env, settings or [])
    facts, findings = _look_at_gymnasium(chosen, steps) if name == "gymnasium" else _look_at_task(name, chosen, steps)
    facts |= {"env": env, "steps": findings.steps, "episodes": len(findings.lengths), "errors": findings.errors}
    if findings.lengths:
        facts["length"] = statistics.mean(findings.lengths)
    if findings.steps:
        facts["microseconds_per_step"] = round(1e6 * findings.seconds / findings.steps, 1)
    if as_json:
        print(json.dumps(facts | {"complaints": [asdict(complaint) for complaint in findings.complaints]}, indent=1))
    else:
        print(_render(facts, findings.complaints))
    if findings.errors:
        raise typer.Exit(2)


def _target(env: str, settings: list[str]) -> tuple[str, dict[str, Any]]:
    """Registry name and settings of what is to be looked at; an id of Gymnasium needs no `gym:` before it."""
    from gainstage import registry
    from gainstage.recipe import override
    from gainstage.tasks.resolve import resolve

    name, chosen = resolve(env)
    if name not in registry.names("task"):
        from gainstage.tasks.control.gymnasium import find_spec

        find_spec(env)
        name, chosen = "gymnasium", {"id": env}
    data: dict[str, Any] = {"task": {name: chosen}}
    for text in settings:
        data = override(data, text if text.startswith("task.") else f"task.{text}")
    chosen = data["task"][name]
    return name, registry.check_settings(registry.find("task", name), chosen, f"task.{name}")


def _look_at_gymnasium(settings: dict[str, Any], steps: int) -> tuple[dict[str, Any], Any]:
    """The single environment first; where nothing is wrong with it, the task that is made of it as well."""
    from gainstage.registry import build
    from gainstage.tasks.control.checking import check_single
    from gainstage.tasks.control.checking_batched import check_task
    from gainstage.tasks.control.gymnasium import default_keys, find_spec, single_env

    spec = find_spec(settings["id"])
    wrappers = settings.get("wrappers", [])
    limit = settings.get("max_steps") or spec.max_episode_steps
    keys = settings.get("keys") or default_keys(spec.id, wrappers)

    def make() -> Any:
        return single_env(spec, settings.get("kwargs", {}), wrappers, pixels=settings.get("pixels", False))

    probe = make()
    facts = {"observation": _text(probe.observation_space), "action": _text(probe.action_space), "limit": limit}
    probe.close()
    findings = check_single(make, steps=steps, limit=limit, keys=keys)
    if not findings.errors:
        task = build("task", "gymnasium", settings | {"copies": "sync"})
        facts["limit"] = task.max_steps
        findings.complaints += [c for c in check_task(task, steps=min(steps, 400)).complaints if c.error]
    return facts, findings


def _look_at_task(name: str, settings: dict[str, Any], steps: int) -> tuple[dict[str, Any], Any]:
    from gainstage.registry import build
    from gainstage.tasks.control.checking_batched import check_task
    from gainstage.types.spaces import describe_space

    task = build("task", name, settings)
    if "simulator" not in task.capabilities:
        raise ValueError(f"{name} is no task that is stepped; gainstage tasks lists those that are")
    spaces = {"observation": describe_space(task.observation_space), "action": describe_space(task.action_space)}
    return spaces | {"limit": task.max_steps}, check_task(task, steps=steps)


def _text(space: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(str(space).split()))


def _render(facts: dict[str, Any], complaints: list[Any]) -> str:
    limit = f"cut off after {facts['limit']} steps" if facts["limit"] else "without a limit"
    lines = [f"{facts['env']}: {limit}", f"  shows {facts['observation']}", f"  takes {facts['action']}"]
    lines.append(f"  looked at {facts['steps']} steps")
    if facts["episodes"]:
        several = "s" if facts["episodes"] > 1 else ""
        lines[-1] += f", {facts['episodes']} whole episode{several} of {facts['length']:.3g} steps"
    if "microseconds_per_step" in facts:
        lines[-1] += f", {facts['microseconds_per_step']:g} microseconds a step"
    for complaint in sorted(complaints, key=lambda c: not c.error):
        often = f" (and {complaint.times - 1} times more)" if complaint.times > 1 else ""
        lines.append(f"  {'error' if complaint.error else 'note '}  {complaint.about}: {complaint.text}{often}")
    several = "s" if facts["errors"] > 1 else ""
    lines.append(f"{facts['errors']} error{several}" if facts["errors"] else "Nothing is wrong.")
    return "\n".join(lines)
