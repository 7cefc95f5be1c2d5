"""What is left of a run when it is over: its record, and the words of its card."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gainstage.chain import Chain
from gainstage.measure.evaluate import EvalRecord
from gainstage.measure.runs import RunRecord

BEFORE = "before.json"
"""Answers of the look before training, in the run's folder."""


def steps_note(chain: Chain) -> list[str]:
    """How many optimizer steps a batch is used for, and what one step means; empty without rollouts."""
    plan, samples = chain.recipe.plan, chain.samples
    if not chain.rollout or samples is None:
        return []
    answers = plan.groups * samples
    updates = plan.epochs * -(-answers // (plan.minibatch or answers))
    note = f"{updates} optimizer step{'s' if updates > 1 else ''} for each batch of {answers} answers"
    same = "the ratio is 1 and no clip acts, so GRPO's surrogate and RGRA's log-likelihood have the same gradient"
    return [f"{note}; {same}" if updates == 1 else f"{note} (with one step a batch {same})"]


def ks(samples: int) -> tuple[int, ...]:
    """The k of pass@k that so many answers a problem allow."""
    return tuple(k for k in (1, 4, 16, 64) if k <= samples)


def flat(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row."""
    return {key: float(value) for key, value in row.items() if isinstance(value, int | float)}


def measured(numbers: Mapping[str, float], task: str, before: Mapping[str, float]) -> dict[str, Any]:
    """Figures for the card under short names, without the task's prefix; `NAME/before` is that before training."""
    prefix = f"eval/{task}/"
    out = {key.removeprefix(prefix): value for key, value in numbers.items() if key.startswith(prefix)}
    for key, value in before.items():
        stem, _, end = key.removeprefix(prefix).rpartition("/")
        if key in numbers:
            out[f"{stem}/before/{end}" if end in ("low", "high") else f"{key.removeprefix(prefix)}/before"] = value
    return out


def citation(paper: Any) -> str:
    """One line that names the source of a method."""
    if isinstance(paper, Mapping):
        arxiv = f", arXiv {paper['arxiv']}" if paper.get("arxiv") else ""
        return f"{paper.get('title', '')} ({paper.get('year', '')}){arxiv}"
    return str(paper or "")


def bibtex(paper: Any) -> str:
    """A BibTeX entry for the source of a method; empty where the recipe names none."""
    if not isinstance(paper, Mapping) or not paper.get("title"):
        return ""
    arxiv = str(paper.get("arxiv") or "")
    fields = {"title": "{" + str(paper["title"]) + "}", "year": str(paper.get("year") or "")}
    fields |= {"eprint": arxiv, "archivePrefix": "arXiv"} if arxiv else {}
    key = re.sub(r"\W+", "", str(paper["title"]).split()[0].lower()) + fields["year"]
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@misc{{{key},", *lines, "}"])


def load_before(path: Path) -> list[EvalRecord]:
    """The answers of a run's first look; none where the file is missing or damaged: only the report needs them."""
    try:
        return [EvalRecord.from_dict(row) for row in json.loads((path / BEFORE).read_text())]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def load_record(path: Path) -> RunRecord | None:
    """The record of a finished run; None where there is none yet."""
    file = path / "record.json"
    if not file.is_file():
        return None
    try:
        return RunRecord.from_json(file.read_text())
    except (ValueError, KeyError, json.JSONDecodeError):
        return None
