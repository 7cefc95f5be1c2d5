"""The grammar of an answer: tagged blocks and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gainstage.registry import component
from gainstage.types import Trajectory


def tag_spans(
    text: str,
    tags: Sequence[str],
    ordered: bool = True,
    exactly_once: bool = True,
    nothing_outside: bool = True,
    whitespace: bool = True,
) -> dict[str, tuple[int, int]] | None:
    """Tag -> (start, end) of the content of its first block, None where the text breaks the grammar.

    Every tag must open and close; blocks do not nest in each other.

    Args:
        text: the answer.
        tags: names, `think` for `<think>...</think>`.
        ordered: first blocks come in the order of `tags`.
        exactly_once: no tag has a second block.
        nothing_outside: there is no text outside the blocks.
        whitespace: blanks outside the blocks are no text.
    """
    names = "|".join(re.escape(tag) for tag in tags)
    spans: dict[str, tuple[int, int]] = {}
    opened: str | None = None
    start = end_of_last = 0
    for mark in re.finditer(rf"<(/?)({names})>", text):
        closing, tag = bool(mark[1]), mark[2]
        if closing != (opened is not None) or (closing and tag != opened):
            return None
        if closing:
            if tag in spans and exactly_once:
                return None
            spans.setdefault(tag, (start, mark.start()))
            opened, end_of_last = None, mark.end()
        else:
            if nothing_outside and _is_text(text[end_of_last : mark.start()], whitespace):
                return None
            opened, start = tag, mark.end()
    if opened is not None or set(spans) != set(tags):
        return None
    if nothing_outside and _is_text(text[end_of_last:], whitespace):
        return None
    return None if ordered and sorted(tags, key=lambda tag: spans[tag]) != list(tags) else spans


def _is_text(between: str, whitespace: bool) -> bool:
    return bool(between.strip() if whitespace else between)


def json_block(text: str) -> Any:
    """The JSON value of a text: all of it, or its only fenced block.

    Raises:
        ValueError: no JSON, or several fenced blocks.
    """
    fenced = re.findall(r"```(?:json)?[ \t]*\n(.*?)```", text, re.DOTALL)
    if len(fenced) > 1:
        raise ValueError(f"json_block: {len(fenced)} fenced blocks, one is wanted")
    return json.loads(fenced[0] if fenced else text, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"json_block: {name} is not JSON")


@component("reward")
@dataclass
class TagFormat:
    """1 where the answer is made of the wanted tagged blocks, else `wrong`."""

    tags: list[str] = field(default_factory=lambda: ["think", "answer"])
    """Names of the blocks."""
    ordered: bool = True
    """The blocks come in this order."""
    exactly_once: bool = True
    """No block comes twice."""
    nothing_outside: bool = True
    """No text before, between or after the blocks."""
    whitespace: bool = True
    """Blanks between blocks are allowed."""
    wrong: float = 0.0
    """Value of an answer that breaks the grammar."""

    level = "row"

    def __post_init__(self) -> None:
        if not self.tags or len(set(self.tags)) != len(self.tags):
            raise ValueError(f"tag_format.tags must name each block once, got {self.tags}")

    def judge(self, trajs: Sequence[Trajectory], ctx: Any) -> list[float | None]:
        return [1.0 if self._fits(t.info["completion"]) else self.wrong for t in trajs]

    def _fits(self, text: str) -> bool:
        return (
            tag_spans(text, self.tags, self.ordered, self.exactly_once, self.nothing_outside, self.whitespace)
            is not None
        )
