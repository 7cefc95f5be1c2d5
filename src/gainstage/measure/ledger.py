"""The ledger: one dated row per measurement, the paper's claim beside what was seen here."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from pathlib import Path

from gainstage.measure.metrics import NONE, describe, short
from gainstage.measure.outcome import INCOMPARABLE, Report
from gainstage.measure.runs import plain


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


def rows_of(
    report: Report, date: str, claims: dict[str, str] | None = None, papers: dict[str, str] | None = None
) -> list[LedgerRow]:
    """A row for every arm but the baseline.

    Args:
        report: a finished comparison.
        date: ISO date of the measurement.
        claims, papers: by arm: what the paper claims, and which paper it is.
    """
    budget = report.manifest.get("budget", {})
    return [
        LedgerRow(
            date=date,
            method=c.arm,
            baseline=c.baseline,
            task=", ".join(report.tasks),
            metric=describe(report.metric).name,
            verdict=c.verdict,
            gain=c.difference.value if c.difference and c.verdict != INCOMPARABLE else None,
            low=c.difference.low if c.difference else None,
            high=c.difference.high if c.difference else None,
            level=report.level,
            seeds=c.difference.n if c.difference else 0,
            budget=", ".join(f"{short(limit)} {describe('budget/' + axis).label}" for axis, limit in budget.items()),
            claim=(claims or {}).get(c.arm, ""),
            paper=(papers or {}).get(c.arm, ""),
            commit=commit(),
            machine=machine(),
        )
        for c in report.comparisons
    ]


def append(path: str | Path, rows: Sequence[LedgerRow]) -> None:
    """Add rows at the end of a JSONL file, which is made where it is missing."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(plain(asdict(row)), ensure_ascii=False, allow_nan=False) + "\n")


def load(path: str | Path) -> list[LedgerRow]:
    """All rows, oldest first; a ledger that does not exist yet is empty.

    Raises:
        ValueError: a line that is no row; the message names file and line.
    """
    file = Path(path)
    if not file.exists():
        return []
    known = {f.name for f in fields(LedgerRow)}
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            rows.append(LedgerRow(**{key: value for key, value in data.items() if key in known}))
        except (json.JSONDecodeError, TypeError, AttributeError) as error:
            raise ValueError(f"ledger {file}, line {number}: {error}") from None
    return rows


def markdown(rows: Sequence[LedgerRow]) -> str:
    """The ledger as a Markdown table, newest first."""
    heads = ("date", "method", "against", "task", "claim of the paper", "measured gain", "verdict", "seeds", "budget",
             "commit", "machine")  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|" + "|".join("---" for _ in heads) + "|"]
    for row in sorted(rows, key=lambda r: r.date, reverse=True):
        claim = " ".join(filter(None, (row.claim, f"({row.paper})" if row.paper else ""))) or NONE
        cells = (row.date, row.method, row.baseline, row.task, claim, gain_text(row), row.verdict, str(row.seeds),
                 row.budget, row.commit, row.machine)  # fmt: skip
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def gain_text(row: LedgerRow) -> str:
    """`+4.1 points pass@1 [+1.9, +6.3]`; without an interval the number says so."""
    if row.gain is None:
        return NONE
    shown = describe(row.metric)
    text = " ".join(filter(None, (shown.change(row.gain), shown.change_unit, shown.label)))
    if row.low is None or row.high is None:
        return f"{text} (no interval)"
    return f"{text} [{shown.change(row.low)}, {shown.change(row.high)}]"


def _cell(text: str) -> str:
    flat = escape(re.sub(r"\s+", " ", text), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", flat) or NONE


def commit(folder: str | Path = ".") -> str:
    """Short hash of the checked-out commit, with + where files are changed; empty outside a repository."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=10", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def machine() -> str:
    """Processor and number of cores, or the accelerator's name."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    return f"{platform.machine()}, {os.cpu_count()} cores"
