"""Prompt templates: named, versioned and hashed data around a problem's own prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from gainstage.types import Message

HOLE = "{prompt}"


@dataclass(frozen=True)
class PromptTemplate:
    """Text around a prompt. `text` holds `{prompt}` exactly once; other braces stand for themselves.

    Raises:
        ValueError: `text` has no `{prompt}`, or more than one.
    """

    name: str
    text: str
    version: int = 1

    def __post_init__(self) -> None:
        if (found := self.text.count(HOLE)) != 1:
            raise ValueError(f"template {self.name!r} must hold {HOLE} exactly once, it holds it {found} times")

    @property
    def hash(self) -> str:
        """Twelve hex digits of the text, so that a run says which wording it used."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    @property
    def tag(self) -> str:
        """`name/version:hash`, as it is recorded with every answer."""
        return f"{self.name}/{self.version}:{self.hash}"

    def render(self, prompt: str | Sequence[Message]) -> str | list[Message]:
        """The prompt inside the template; of a conversation, its last user message.

        Raises:
            ValueError: a conversation without a user message of plain text.
        """
        before, _, after = self.text.partition(HOLE)
        if isinstance(prompt, str):
            return before + prompt + after
        messages = list(prompt)
        for index in reversed(range(len(messages))):
            message = messages[index]
            if message.get("role") == "user" and isinstance(message.get("content"), str):
                messages[index] = {**message, "content": before + message["content"] + after}
                return messages
        raise ValueError(f"template {self.name!r}: the conversation has no user message of plain text to put it around")


TEMPLATES = {
    template.name: template
    for template in (
        PromptTemplate("plain", "{prompt}"),
        PromptTemplate(
            "think",
            "{prompt}\n\nFirst reason between <think> and </think>, then give only the final answer between <answer> "
            "and </answer>.",
        ),
        PromptTemplate("boxed", "{prompt}\n\nReason step by step, and put the final answer within \\boxed{}."),
        PromptTemplate("steps", "{prompt}\n\nReason step by step, then end with a line '#### ' and the final answer."),
        PromptTemplate("direct", "{prompt}\n\nGive only the final answer, nothing else."),
        PromptTemplate("question", "Question: {prompt}\nAnswer:"),
    )
}


def find_template(name: str | None) -> PromptTemplate | None:
    """The template of that name; a text of the user's own that holds `{prompt}` is one as well.

    Raises:
        ValueError: neither a known name nor a text with `{prompt}`.
    """
    if name is None:
        return None
    if name in TEMPLATES:
        return TEMPLATES[name]
    if HOLE in name:
        return PromptTemplate("own", name)
    raise ValueError(f"template: {name!r} is neither one of {', '.join(TEMPLATES)} nor a text that holds {HOLE}")
