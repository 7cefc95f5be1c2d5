"""`gainstage ledger`: what the papers claim beside what was measured here."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gainstage.cli.catalogue import paper_short
from gainstage.cli.common import AsJson, people_errors

LEDGER = Path("docs") / "ledger" / "ledger.jsonl"
"""The ledger of a clone, which is shipped and published."""
NAME = "ledger.jsonl"
"""The reader's own, in the folder of runs."""


@people_errors
def ledger(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Only these methods (names or YAML files).", show_default=False)
    ] = None,
    path: Annotated[
        list[Path] | None,
        typer.Option("--path", help="Read these files; absent = the shipped one and your own.", show_default=False),
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help=f"Folder of runs, whose {NAME} is your own ledger.")] = Path(
        "runs"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Show quick looks as well; they are no evidence.")] = False,
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table of the rows.")] = False,
) -> None:
    """Print what each paper claims beside what was measured here, good or bad.

    `expected` is what the claim says of the check's metric; `outcome` whether the interval bears it out. `over all`
    (JSON: `stands`) says whether the difference also holds after Holm's correction over all rows of the ledger: among
    many rows some are "confirmed" by chance.

    Examples:

      gainstage ledger

      gainstage ledger dapo rgra

      gainstage ledger --markdown > ledger.md

      gainstage ledger --path my_ledger.jsonl --json
    """
    from gainstage.measure.ledger import evidence, held, load, markdown, newest, shipped
    from gainstage.recipe import catalog
    from gainstage.recipe import load as recipe
    from gainstage.registry import RecipeError
    from gainstage.running import citation

    for file in path or []:
        if not file.is_file():
            raise RecipeError(f"--path {file}: no such file")
    files = path or list(dict.fromkeys(f.resolve() for f in (shipped(), LEDGER, runs / NAME)))
    everything = [row for file in files for row in load(file)]
    rows = evidence(everything)
    stands = dict(zip(map(id, rows), held(rows), strict=True))
    if quick:
        rows += newest(row for row in everything if row.quick)
    known = [recipe(name) for name in methods or catalog()]
    if methods:
        # an arm of a method is called "method (changes)"
        rows = [row for row in rows if any(row.method.partition(" (")[0] == found.name for found in known)]
    if as_markdown:
        print(markdown(rows), end="")
        return
    said = [
        {
            "method": found.name, "claim": found.claim, "paper": citation(found.paper),
            "check": found.check.model_dump(mode="json"),
            "rows": [
                {**asdict(row), "stands": stands.get(id(row))}
                for row in rows if row.method.partition(" (")[0] == found.name
            ],
        }
        for found in known
    ]  # fmt: skip
    others = [row for row in rows if all(row.method.partition(" (")[0] != found.name for found in known)]
    if as_json:
        said += [{"method": r.method, "claim": r.claim, "paper": r.paper, "rows": [asdict(r)]} for r in others]
        print(json.dumps(said, indent=1, ensure_ascii=False))
        return
    _print(said, [asdict(row) for row in others])


def _print(said: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "claimed", "measured here", "seeds", "date", box=None, padding=(0, 2, 0, 0))
    for method in said:
        source = paper_short(method["paper"])
        claim = " ".join(filter(None, (method["claim"], f"({source})" if source else "")))
        for number, row in enumerate(method["rows"] or [None]):
            table.add_row(method["method"] if not number else "", claim if not number else "", *_cells(row))
    for row in others:
        table.add_row(row["method"], row["claim"], *_cells(row))
    Console(markup=False).print(table)
    measured = sum(any(not row["quick"] for row in method["rows"]) for method in said)
    print(f"\n{measured} of {len(said)} methods measured. Measure one: gainstage reproduce NAME (--quick for a look)")


def _cells(row: dict[str, Any] | None) -> tuple[str, str, str]:
    from gainstage.measure.ledger import LedgerRow, gain_text, stands_text

    if row is None:
        return "not yet", "", ""
    here = LedgerRow(**{key: value for key, value in row.items() if key != "stands"})
    words = [f"{here.task}, against {here.baseline}: {gain_text(here)}", here.verdict]
    if here.expected and here.outcome:
        words.append(f"expected {here.expected}: {here.outcome}")
    if stands := stands_text(row.get("stands")):
        words.append(f"over all rows: {stands}")
    return "; ".join(words), str(here.seeds), here.date
