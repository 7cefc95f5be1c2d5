"""The ledger: one dated row per measurement, the paper's claim beside what was seen here."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gainstage.measure.expectation import outcome
from gainstage.measure.metrics import NONE, describe, short
from gainstage.measure.outcome import CONTAMINATED, INCOMPARABLE, Report
from gainstage.measure.runs import plain
from gainstage.measure.statistics import holm

QUICK = "quick look, no evidence"
"""Verdict of a row that is no measurement."""


@dataclass(frozen=True)
class LedgerRow:
    """One measurement of one method. `gain` is the paired difference against `baseline`, None if not comparable."""

    date: str
    method: str
    baseline: str
    task: str
    metric: str
    verdict: str
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    level: float = 0.95
    seeds: int = 0
    budget: str = ""
    claim: str = ""
    paper: str = ""
    commit: str = ""
    machine: str = ""
    p: float | None = None
    """Two-sided p value of the paired test, before any correction."""
    expected: str = ""
    """What the claim says of this metric on such a check."""
    outcome: str = ""
    """Whether the interval bears that out."""
    quick: bool = False
    """A try-out at a fraction of the budget: never evidence."""
    model: str = ""
    settings: str = ""
    """Hash of all that decides the numbers: recipes, seeds, budget, evaluation, metric."""
    code: str = ""
    """Hash of the package's code and weights that the runs came from."""
    versions: dict[str, str] = field(default_factory=dict)


def rows_of(
    report: Report,
    date: str,
    claims: Mapping[str, str] | None = None,
    papers: Mapping[str, str] | None = None,
    *,
    expected: Mapping[str, str] | None = None,
    margin: float = 0.05,
    **facts: Any,
) -> list[LedgerRow]:
    """A row for every arm but the baseline.

    Args:
        report: a finished comparison.
        date: ISO date of the measurement.
        claims, papers, expected: by arm: what the paper claims, which paper it is, what it says of this metric.
        margin: what counts as equal: absolute for shares, relative to the baseline's mean for other metrics.
        facts: further fields of the rows (quick, commit, machine, settings, code, versions).
    """
    shown = describe(report.metric)
    budget = ", ".join(
        f"{short(limit)} {describe('budget/' + axis).label}"
        for axis, limit in report.manifest.get("budget", {}).items()
    )
    base = report.arms[0].value
    room = margin if shown.rate else margin * abs(base.value if base else 0.0)
    common = {"commit": commit(), "machine": machine(), **facts}
    rows = []
    for c in report.comparisons:
        difference = c.difference if c.verdict != INCOMPARABLE else None
        word, void = (expected or {}).get(c.arm, ""), c.verdict == CONTAMINATED
        row = LedgerRow(
            date=date,
            method=c.arm,
            baseline=c.baseline,
            task=", ".join(report.tasks) or str(report.manifest.get("verifier", "")),
            metric=shown.name,
            verdict=QUICK if facts.get("quick") else c.verdict,
            gain=difference.value if difference else None,
            low=difference.low if difference else None,
            high=difference.high if difference else None,
            level=report.level,
            seeds=difference.n if difference else 0,
            budget=budget,
            claim=(claims or {}).get(c.arm, ""),
            paper=(papers or {}).get(c.arm, ""),
            p=difference.p if difference else None,
            expected=word,
            outcome="" if not word or facts.get("quick") else outcome(word, None if void else difference, room),
            model=Path(str(report.manifest.get("model", ""))).name,
            **common,
        )
        rows.append(row)
    return rows


def append(path: str | Path, rows: Sequence[LedgerRow]) -> None:
    """Add rows at the end of a JSONL file, which is made where it is missing; all of them in one write."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(plain(asdict(row)), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    with file.open("a", encoding="utf-8") as out:
        out.write("".join(lines))


def load(path: str | Path) -> list[LedgerRow]:
    """All rows, oldest first; a ledger that does not exist yet is empty.

    Raises:
        ValueError: a line that is no row; the message names file and line.
    """
    file = Path(path)
    if not file.exists():
        return []
    row_type = TypeAdapter(LedgerRow)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"ledger {file} is no text in UTF-8: {error}") from None
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            rows.append(row_type.validate_python(data))
        except json.JSONDecodeError as error:
            raise ValueError(f"ledger {file}, line {number}: {error}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the row"
            raise ValueError(f"ledger {file}, line {number}: {where}: {first['msg']}") from None
    return rows


def shipped() -> Path:
    """The ledger that comes with the package: in the wheel, or in the clone that it runs from."""
    inside = Path(__file__).parent / "ledger.jsonl"
    return inside if inside.exists() else Path(__file__).parents[3] / "docs" / "ledger" / "ledger.jsonl"


def newest(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """Of several rows under the same settings and code the last one; rows that do not tell these all stay."""
    found: dict[Any, LedgerRow] = {}
    for index, row in enumerate(rows):
        same = (row.settings, row.code, row.method, row.baseline, row.task, row.metric) if row.settings else index
        found.pop(same, None)
        found[same] = row
    return list(found.values())


def evidence(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """Measurements only, each once: no quick looks."""
    return newest(row for row in rows if not row.quick)


def held(rows: Sequence[LedgerRow], level: float = 0.95) -> list[bool | None]:
    """Of each row, whether its difference still stands after Holm's correction over all rows; None without a p value.

    A table of fifty comparisons without any effect holds two or three "confirmed" ones; these do not stand here.
    """
    adjusted = iter(holm([row.p for row in rows if row.p is not None]))
    return [None if row.p is None else next(adjusted) <= 1 - level for row in rows]


def markdown(rows: Sequence[LedgerRow]) -> str:
    """The ledger as a Markdown table, newest first."""
    heads = ("date", "method", "against", "task", "claim of the paper", "expected", "measured", "verdict", "outcome",
             "over all", "seeds", "budget", "commit", "machine")  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|" + "|".join("---" for _ in heads) + "|"]
    stands = dict(zip(map(id, rows), held(rows), strict=True))
    for row in sorted(rows, key=lambda r: r.date, reverse=True):
        claim = " ".join(filter(None, (row.claim, f"({row.paper})" if row.paper else ""))) or NONE
        cells = (row.date, row.method, row.baseline, row.task, claim, row.expected, gain_text(row), row.verdict,
                 row.outcome, stands_text(stands[id(row)]), str(row.seeds), row.budget, row.commit,
                 row.machine)  # fmt: skip
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def stands_text(stands: bool | None) -> str:
    """How `held` is written in a table."""
    return "" if stands is None else "stands" if stands else "no"


def gain_text(row: LedgerRow) -> str:
    """`+4.1 points pass@1 [+1.9, +6.3]`; without an interval the number says so."""
    if row.gain is None:
        return NONE
    shown = describe(row.metric)
    text = " ".join(filter(None, (shown.change(row.gain), shown.change_unit, shown.label)))
    if row.low is None or row.high is None:
        return f"{text} (no interval)"
    return f"{text} [{shown.change(row.low)}, {shown.change(row.high)}]"


def line(row: LedgerRow) -> str:
    """A row in one line, for a terminal."""
    said = f"; claimed: {row.expected}: {row.outcome}" if row.outcome else ""
    return f"{row.method} against {row.baseline} on {row.task}: {row.verdict}: {gain_text(row)}{said}"


def _cell(text: str) -> str:
    flat = escape(re.sub(r"\s+", " ", text), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", flat) or NONE


def commit(folder: str | Path | None = None) -> str:
    """Short hash of the commit that a folder (the package's own by default) is checked out at, with + where files are
    changed; empty outside a repository."""

    where = folder or Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=where, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()

    try:
        if folder is None:  # an installed package inside somebody's repository has no commit of its own
            git("ls-files", "--error-unmatch", __file__)
        return git("rev-parse", "--short=10", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def machine() -> str:
    """Processor and number of cores, or the accelerator's name."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    return f"{platform.machine()}, {os.cpu_count()} cores"
