"""Rows to problems: the type of a data set is read off its columns.

The types and formats are those of TRL (prompt-only, prompt-completion, language modelling, preference with explicit or
implicit prompt, unpaired preference, stepwise supervision; plain or conversational), and verl's Parquet rows.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gainstage.tasks.text.readers import DataError, Raw
from gainstage.types import Problem

PROMPT_NAMES = ("prompt", "question", "problem", "instruction", "query", "input")
GOLD_NAMES = ("answer", "solution", "ground_truth")
ROLES = ("prompt", "answer", "messages", "completion", "chosen", "rejected", "text", "label", "completions", "labels")
"""What a `columns` mapping may rename: role -> the data set's own column."""


@dataclass(frozen=True)
class Layout:
    """What was found in a data set's columns.

    Attributes:
        kind: `prompt_only`, `prompt_completion`, `language_modelling`, `preference`, `unpaired_preference`, `stepwise`.
        prompt: column of the prompt; None where it is implicit.
        gold: column of the gold answer, or None. verl's is `reward_model.ground_truth`.
        also: further columns that could have been the gold answer.
    """

    kind: str
    prompt: str | None
    gold: str | None
    also: tuple[str, ...] = ()
    verl: bool = False

    def describe(self) -> str:
        text = f"{self.kind.replace('_', '-')}, prompt from {self.prompt or 'the conversation'!r}"
        text += f", gold answer from {self.gold!r}" if self.gold else ", no gold answer"
        return text + (f" (not from {', '.join(self.also)})" if self.also else "")


def detect(raw: Raw, columns: Mapping[str, str] | None = None) -> Layout:
    """The layout of a data set by its first row.

    Args:
        columns: role -> column name, for data sets with names of their own.

    Raises:
        DataError: no known type; the message lists the columns.
    """
    columns = dict(columns or {})
    if unknown := set(columns) - set(ROLES):
        raise DataError(f"columns: unknown role {sorted(unknown)}; roles are {', '.join(ROLES)}")
    for role, name in columns.items():
        if name not in raw.row:
            raise DataError(f"columns.{role}: no column {name!r} at {raw.where}; it has {', '.join(raw.row)}")
    row = renamed(raw.row, columns)
    prompt = columns.get("prompt") or next((name for name in PROMPT_NAMES if name in row), None)
    golds = [columns["answer"]] if "answer" in columns else [n for n in GOLD_NAMES if row.get(n) is not None]
    golds = [name for name in golds if name != prompt]
    verl = isinstance(row.get("reward_model"), Mapping) and "ground_truth" in row["reward_model"]
    gold = "reward_model.ground_truth" if verl else golds[0] if golds else None
    also = tuple(golds if verl else golds[1:])
    kind = _kind(row, prompt)
    if kind is None:
        raise DataError(
            f"{raw.where}: no known type of data set; its columns are {', '.join(raw.row)}. It needs a prompt "
            f"({' | '.join(PROMPT_NAMES)}), 'messages', 'text', or 'chosen' and 'rejected'; "
            "name others by columns={prompt: ..., answer: ...}"
        )
    return Layout(kind, None if kind == "language_modelling" else prompt, gold, also, verl)


def renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The row with each renamed column under its role as well."""
    return dict(row) | {role: row[name] for role, name in columns.items() if name in row and role != "answer"}


def _kind(row: Mapping[str, Any], prompt: str | None) -> str | None:
    if row.get("messages") is not None:
        if "completion" in row:
            warnings.warn("the data set has 'messages' and 'completion': 'messages' is used", stacklevel=4)
        answered = _is_chat(row["messages"]) and _ends_with_answer(row["messages"])
        return "language_modelling" if answered else "prompt_only"
    if "chosen" in row and "rejected" in row:
        return "preference"
    if prompt is None:
        return "language_modelling" if isinstance(row.get("text"), str) else None
    if "completions" in row and "labels" in row:
        return "stepwise"
    if "completion" in row:
        return "unpaired_preference" if "label" in row else "prompt_completion"
    return "prompt_only"


def to_problem(raw: Raw, layout: Layout, columns: Mapping[str, str] | None = None) -> Problem:
    """One row as a problem; further columns travel in `meta`.

    Raises:
        DataError: a missing column or a value of the wrong form; the message names file, line and column.
    """
    row = renamed(raw.row, columns or {})
    prompt, meta = _SPLITTERS[layout.kind](row, layout, raw.where)
    _check_prompt(prompt, layout.prompt or "messages", raw.where)
    answer = _gold(row, layout, raw.where)
    kept = {key: value for key, value in row.items() if key != layout.prompt} | meta
    content = json.dumps([prompt, answer, meta], sort_keys=True, default=str, ensure_ascii=False)
    try:
        name = hashlib.sha256(content.encode()).hexdigest()[:16]
    except UnicodeEncodeError as error:
        half = error.object[error.start : error.end]
        raise DataError(f"{raw.where}: {half!a} is half a character, which no text can hold; mend it") from None
    return Problem(name, prompt, answer, _difficulty(row), kept)


def _gold(row: Mapping[str, Any], layout: Layout, where: str) -> Any:
    if layout.verl:
        model = row.get("reward_model")
        if not isinstance(model, Mapping) or model.get("ground_truth") is None:
            raise DataError(f"{where}: column 'reward_model' has no 'ground_truth'")
        return model["ground_truth"]
    if layout.gold is None:
        return None
    gold = row.get(layout.gold)
    if gold is None or gold != gold:  # NaN is what tables write where a cell is empty
        raise DataError(f"{where}: column {layout.gold!r} (the gold answer) is missing, null or NaN")
    return gold


def _prompt_only(row: Mapping[str, Any], layout: Layout, where: str) -> tuple[Any, dict[str, Any]]:
    name = "messages" if row.get("messages") is not None else layout.prompt
    return _required(row, name or "prompt", where), {}


def _prompt_completion(row: Mapping[str, Any], layout: Layout, where: str) -> tuple[Any, dict[str, Any]]:
    return _required(row, layout.prompt, where), {"completion": _required(row, "completion", where)}


def _language_modelling(row: Mapping[str, Any], layout: Layout, where: str) -> tuple[Any, dict[str, Any]]:
    if row.get("messages") is not None:
        messages = row["messages"]
        if not _is_chat(messages):
            raise DataError(f"{where}: column 'messages' must be a list of role/content messages, got {messages!r:.80}")
        cut = len(messages) - 1 if _ends_with_answer(messages) else len(messages)
        return messages[:cut], {"completion": messages[cut:]}
    return "", {"completion": _required(row, "text", where)}


def _preference(row: Mapping[str, Any], layout: Layout, where: str) -> tuple[Any, dict[str, Any]]:
    chosen, rejected = _required(row, "chosen", where), _required(row, "rejected", where)
    if type(chosen) is not type(rejected):
        raise DataError(f"{where}: columns 'chosen' and 'rejected' differ in form (plain text or messages)")
    if layout.prompt is not None:
        prompt = _required(row, layout.prompt, where)
        if _is_chat(chosen) and isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        if _is_chat(chosen) and chosen[: len(prompt)] == rejected[: len(prompt)] == prompt:
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        return prompt, {"chosen": chosen, "rejected": rejected}
    cut = _common(chosen, rejected)
    return chosen[:cut], {"chosen": chosen[cut:], "rejected": rejected[cut:]}


def _unpaired(row: Mapping[str, Any], layout: Layout, where: str) -> tuple[Any, dict[str, Any]]:
    prompt, meta = _prompt_completion(row, layout, where)
    return prompt, meta | {"label": bool(_required(row, "label", where))}


def _stepwise(row: Mapping[str, Any], layout: Layout, where: str) -> tuple[Any, dict[str, Any]]:
    steps, labels = _required(row, "completions", where), _required(row, "labels", where)
    if not isinstance(steps, list) or not isinstance(labels, list) or len(steps) != len(labels):
        raise DataError(f"{where}: columns 'completions' and 'labels' must be lists of equal length")
    return _required(row, layout.prompt, where), {"completions": steps, "labels": labels}


_SPLITTERS = {
    "prompt_only": _prompt_only,
    "prompt_completion": _prompt_completion,
    "language_modelling": _language_modelling,
    "preference": _preference,
    "unpaired_preference": _unpaired,
    "stepwise": _stepwise,
}


def _common(chosen: Any, rejected: Any) -> int:
    """Length of the implicit prompt: what both answers share, up to a message or the blank before a word."""
    cut = 0
    while cut < min(len(chosen), len(rejected)) and chosen[cut] == rejected[cut]:
        cut += 1
    return cut - 1 if isinstance(chosen, str) and cut and chosen[cut - 1] == " " else cut


def _required(row: Mapping[str, Any], name: str | None, where: str) -> Any:
    if name is None or row.get(name) is None:
        raise DataError(f"{where}: column {name!r} is missing or null; the row has {', '.join(row)}")
    return row[name]


def _check_prompt(prompt: Any, column: str, where: str) -> None:
    if not isinstance(prompt, str) and not _is_chat(prompt):
        raise DataError(f"{where}: column {column!r} must be text or role/content messages, got {prompt!r:.80}")


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(m, Mapping) and "role" in m and ("content" in m or "tool_calls" in m) for m in value)
    )


def _ends_with_answer(messages: Sequence[Mapping[str, Any]]) -> bool:
    return bool(messages) and messages[-1]["role"] == "assistant"


def _difficulty(row: Mapping[str, Any]) -> float | None:
    for name in ("difficulty", "level"):
        value = row.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, str) and (digits := re.fullmatch(r"(?:level\s*)?(\d+(?:\.\d+)?)", value.strip().lower())):
            return float(digits.group(1))
    return None
