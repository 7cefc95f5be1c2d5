"""`gainstage methods`, `show` and `tasks`."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import typer

from gainstage.cli.common import AsJson, Overrides, Plugins, people_errors, prepare


@people_errors
def methods(
    tag: Annotated[str | None, typer.Option("--tag", help="Only those with this tag.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """List every method of the catalogue.

    Examples:

      gainstage methods

      gainstage methods --tag sampler

      gainstage methods --json | jq '.[].name'
    """
    from gainstage.recipe import catalog, load

    rows = []
    for name in catalog():
        recipe = load(name)
        if tag is None or tag in recipe.tags:
            rows.append({
                "name": name, "title": recipe.title, "paper": paper_line(recipe.paper), "extends": recipe.extends,
                "tags": recipe.tags, "claim": recipe.claim,
            })  # fmt: skip
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "what it is", "extends", "paper", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(str(row["name"]), str(row["title"]), str(row["extends"] or ""), paper_short(row["paper"]))
    Console().print(table)
    print("\none of them in full: gainstage show NAME")


@people_errors
def show(
    name: Annotated[str, typer.Argument(help="A method of the catalogue or a YAML file.")],
    overrides: Overrides = None,
    flat: Annotated[
        bool, typer.Option("--flat", help="The method as one straight file: the components' source in call order.")
    ] = False,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Show a method: its paper, its stages, the composed recipe, or (--flat) its code in the order it is called.

    Examples:

      gainstage show grpo

      gainstage show dapo --flat | less

      gainstage show grpo credit.group_relative=beta_normalized
    """
    prepare(None, plugin)
    from gainstage.chain import build_chain
    from gainstage.cli.flat import flat_source
    from gainstage.recipe import load, phase_recipe

    recipe = load(name, overrides or [])
    phases = [phase_recipe(recipe, index) for index in range(max(len(recipe.phases), 1))]
    chains = [build_chain(phase) for phase in phases]
    if flat:
        print(flat_source(recipe, chains))
        return
    if as_json:
        print(
            json.dumps(
                {"recipe": recipe.model_dump(mode="json"), "columns": [columns(chain) for chain in chains]}, indent=1
            )
        )
        return
    print(f"{recipe.name}: {recipe.title}\n  paper    {paper_line(recipe.paper)}")
    for label, text in (("claim", recipe.claim), ("check", check_line(recipe.check)), ("notes", recipe.notes)):
        if text:
            print(f"  {label:8} {text.strip()}")
    for index, chain in enumerate(chains):
        if recipe.phases:
            print(f"\nphase {recipe.phases[index]['name']}")
        print()
        for row in columns(chain):
            print(
                f"  {row['stage']:8} {row['name']:22} reads {', '.join(row['reads']) or '-'}; "
                f"writes {', '.join(row['writes']) or '-'}"
            )
    print("\n" + recipe.yaml())


def check_line(check: Any) -> str:
    """The declared small-scale check in one line."""
    from gainstage.measure.budget import Budget
    from gainstage.measure.metrics import describe, short

    names = [task if isinstance(task, str) else next(iter(task)) for task in check.tasks]
    spent = (
        f"{short(limit)} {describe('budget/' + axis).label}" for axis, limit in Budget(**check.budget).limits.items()
    )
    claims = (f"{metric} {word}" for metric, word in check.expect.items())
    effort = f"{check.seeds} seeds, {', '.join(spent)}"
    line = f"{', '.join(claims)}, against {check.against} on {' and '.join(names)} ({effort})"
    return f"{line}. {check.note}" if check.note else line


def columns(chain: Any) -> list[dict[str, Any]]:
    """What each component of a chain reads and writes, in call order."""
    return [
        {"stage": p.stage, "name": p.name, "reads": list(p.declares("needs")), "writes": list(p.declares("writes"))}
        for p in chain
    ]


def paper_line(paper: Any) -> str:
    from gainstage.running import citation

    return citation(paper)


def paper_short(line: Any) -> str:
    """The arXiv id or the year of a paper's line; its title is what `show` is for."""
    found = re.search(r"arXiv (\S+)$|\((\d{4})\)$", str(line))
    return (found[1] or found[2]) if found else ""


@people_errors
def tasks(
    name: Annotated[
        str | None, typer.Argument(help="Show this one with its settings and an example.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks, or show one with its settings and a problem.

    Examples:

      gainstage tasks

      gainstage tasks arithmetic

      gainstage tasks rg:chain_sum
    """
    prepare()
    from gainstage import registry
    from gainstage.chain import build_task

    if name is None:
        rows = [(n, registry.find("task", n).summary) for n in registry.names("task")]
        if as_json:
            print(json.dumps([{"name": n, "summary": s} for n, s in rows], indent=1))
            return
        width = max(len(n) for n, _ in rows)
        for n, summary in rows:
            print(f"{n:{width}}  {summary}")
        print(
            "\nmore: jsonl:PATH, parquet:PATH, hf:OWNER/NAME, rg:NAME (every reasoning-gym task), gym:ID (every "
            "Gymnasium environment), minari:PATH"
        )
        return
    part = build_task(name)
    entry = registry.find("task", part.component)
    problem = part.it.problems("train")[0]
    settings = {key: getattr(part.it, key, parameter.default) for key, parameter in entry.settings.items()}
    if as_json:
        print(
            json.dumps(
                {"name": part.name, "settings": settings, "prompt": problem.prompt, "answer": problem.answer},
                default=str,
                indent=1,
            )
        )
        return
    print(
        f"{part.name}: {entry.summary}\n  offers   {', '.join(sorted(part.it.capabilities))}\n  settings "
        + ", ".join(f"{k}={v!r}" for k, v in settings.items())
    )
    print(f"  problem  {problem.prompt!r}")
    if problem.answer is not None:  # some problems have many answers, which are checked and not stored
        print(f"  answer   {problem.answer!r}")
