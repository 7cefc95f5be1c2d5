"""Write docs/reference/: a page per method from the catalogue and the components' docstrings, and a list of components.

python tools/pages.py          # write
python tools/pages.py --check  # exit 1 where a page is out of date
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from gainstage import registry
from gainstage.chain import Part, build_chain
from gainstage.cli.catalogue import check_line
from gainstage.measure.ledger import evidence, markdown
from gainstage.measure.ledger import load as all_rows
from gainstage.recipe import Evaluate, Plan, Recipe, Save, catalog, load, phase_recipe
from gainstage.running import citation

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "reference"
LEDGER = ROOT / "docs" / "ledger" / "ledger.jsonl"
LEDGER_HEAD = """# Ledger

What each paper claims beside what was measured here, good or bad, newest first. `expected` is what the claim says of
the metric in the method's small-scale check, `outcome` whether the 95 % interval bears it out, `over all` whether the
difference still stands after Holm's correction over all rows. How it is made:
[reproduce a claim](../how-to/reproduce.md).

"""


def method_page(name: str) -> str:
    """One method: paper, claim, chain, components with their settings, recipe, what was measured."""
    recipe = load(name)
    lines = [f"# {name}", "", recipe.title + ".", "", f"- paper: {citation(recipe.paper)}", f"- claim: {recipe.claim}"]
    lines.append(f"- check: {check_line(recipe.check)}")
    if recipe.notes:
        lines.append(f"- note: {recipe.notes}")
    if recipe.extends:
        lines.append(f"- extends: [{recipe.extends}]({recipe.extends}.md)")
    lines += [
        "",
        "```",
        f"gainstage train {name}",
        f"gainstage show {name} --flat",
        f"gainstage reproduce {name}",
        f"gainstage compare {partner(recipe)} {name}",
        "```",
        "",
    ]
    for index in range(max(len(recipe.phases), 1)):
        if recipe.phases:
            lines += [f"## Phase {recipe.phases[index]['name']}", ""]
        chain = build_chain(phase_recipe(recipe, index))
        lines += [
            "## The chain" if not recipe.phases else "### The chain",
            "",
            "| stage | component | reads | writes |",
            "|---|---|---|---|",
        ]
        lines += [f"| {p.stage} | `{p.name}` | {columns(p, 'needs')} | {columns(p, 'writes')} |" for p in chain]
        lines += ["", *[line for part in chain for line in component_lines(part)]]
    lines += ["## Measured here", "", *measured(name), "", "## The recipe", "", "```yaml", own_yaml(recipe), "```", ""]
    return "\n".join(lines)


def partner(recipe: Recipe) -> str:
    """A recipe to compare with: the check's baseline, or one for the same kind of tasks."""
    against = recipe.check.against.partition(",")[0]
    usual = ("ppo", "a2c") if "control" in recipe.tags else ("grpo", "rgra")
    if "control" in recipe.tags and against in catalog() and against != recipe.name:
        return against
    return usual[0] if recipe.name != usual[0] else usual[1]


def columns(part: Part, what: str) -> str:
    return ", ".join(f"`{c}`" for c in part.declares(what)) or "-"


def component_lines(part: Part) -> list[str]:
    """What a component of the credit and update stages does, in its own words."""
    if part.stage not in ("select", "reward", "credit", "update"):
        return []
    entry = registry.find(part.stage, part.component)
    text = (inspect.getdoc(entry.make) or "").strip()
    lines = [f"**`{part.name}`** {text}", ""]
    for name, term in getattr(part.it, "terms", []):
        settings = ", ".join(f"{k}={v}" for k, v in term.keywords.items()) or "defaults"
        lines += [f"- objective **`{name}`** ({settings}): {(inspect.getdoc(term.func) or '').splitlines()[0]}"]
    return [*lines, ""] if getattr(part.it, "terms", None) else lines


def own_yaml(recipe: Recipe) -> str:
    return catalog()[recipe.name].read_text(encoding="utf-8").strip()


def measured(name: str) -> list[str]:
    mine = [row for row in evidence(all_rows(LEDGER)) if row.method.partition(" (")[0] == name]
    return markdown(mine).splitlines() if mine else ["No measurement yet."]


def components_page() -> str:
    """Every registered component with its settings."""
    lines = [
        "# Components",
        "",
        "Every name that a recipe can use, by stage, with its settings and their defaults.",
        "",
    ]
    for title, model in (("plan", Plan), ("evaluate", Evaluate), ("save", Save)):
        lines += [f"## {title} (a recipe key)", ""]
        for name, spec in model.model_fields.items():
            lines.append(f"- **`{title}.{name}`** (default {spec.default}): {spec.description or ''}")
        lines.append("")
    for kind in registry.ROOMS:
        lines += [f"## {kind}", ""]
        for name in registry.names(kind):
            entry = registry.find(kind, name)
            settings = ", ".join(
                f"{k}={'(needed)' if p.default is p.empty else short(p.default)}" for k, p in entry.settings.items()
            )
            lines.append(f"- **`{name}`** ({settings}): {entry.summary}")
        lines.append("")
    return "\n".join(lines)


def short(value: object) -> str:
    text = repr(value)
    return "[]" if "factory" in text else text if len(text) < 40 else text[:37] + "..."


def pages() -> dict[Path, str]:
    """Path -> text of everything that is generated."""
    found = {OUT / "methods" / f"{name}.md": method_page(name) for name in catalog()}
    index = ["# Methods", "", "| method | what it is | paper |", "|---|---|---|"]
    index += [f"| [{n}](methods/{n}.md) | {load(n).title} | {citation(load(n).paper)} |" for n in catalog()]
    rows = evidence(all_rows(LEDGER))
    seen = {row.method.partition(" (")[0] for row in rows}
    missing = ", ".join(f"[{n}](../reference/methods/{n}.md)" for n in catalog() if n not in seen)
    found[LEDGER.parent / "index.md"] = (
        LEDGER_HEAD
        + (markdown(rows) if rows else "Nothing yet.\n")
        + (f"\nNot measured yet: {missing}.\n" if missing else "")
    )
    return {**found, OUT / "methods.md": "\n".join([*index, ""]), OUT / "components.md": components_page()}


def main() -> int:
    stale = []
    for path, text in pages().items():
        text = "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if "--check" not in sys.argv:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    verb = "out of date" if "--check" in sys.argv else "written"
    print(f"{len(stale)} pages {verb}" + "".join(f"\n  {p.relative_to(ROOT)}" for p in stale[:10]))
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
