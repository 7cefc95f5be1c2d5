"""Text to token ids and back, for any Hugging Face tokenizer.

One place renders prompts for training, rollout, evaluation and scoring alike, so that a beginning-of-sequence token
stands exactly once. A plain string gets whatever the tokenizer itself puts in front of a sequence; a conversation is
rendered by the tokenizer's own template, which is complete by convention (the same ids as
`tokenizer.apply_chat_template`). Ids that were sampled are never re-tokenised: a further turn is appended as ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gainstage.types import Ids, Message

REPLACEMENT = "\ufffd"
_HOLE = "gainstageholegainstage"


def opener(tokenizer: Any) -> Ids:
    """The ids that the tokenizer's post-processor puts in front of a sequence; empty where it puts none."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a", add_special_tokens=True)["input_ids"]
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return list(full[:start])
    return []


def encode_text(tokenizer: Any, text: str, *, start: bool = True) -> Ids:
    """Ids of plain text; with `start` the tokenizer's opener in front, once, and never an end token behind.

    Args:
        start: whether `text` begins a sequence. False for whatever is appended to one.
    """
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    first = opener(tokenizer) if start else []
    return ids if ids[: len(first)] == first else first + ids


def encode_prompt(
    tokenizer: Any,
    prompt: str | Sequence[Message],
    *,
    chat: bool | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> Ids:
    """Ids of a prompt that is to be answered.

    Args:
        prompt: plain text, or role/content messages. A conversation that ends with an assistant message is
            continued inside that message; any other gets the generation prompt.
        chat: None renders messages by the chat template where the tokenizer has one, and takes a string as it is;
            True wraps a string into one user message and insists on a template; False joins messages as plain text.
        tools: JSON schemas handed to the template.

    Raises:
        ValueError: an empty prompt, a malformed message, or `chat=True` for a tokenizer without template.
    """
    if isinstance(prompt, str):
        if not chat:
            return _not_empty(encode_text(tokenizer, prompt))
        prompt = [{"role": "user", "content": prompt}]
    if chat is False or (chat is None and not getattr(tokenizer, "chat_template", None)):
        _check_messages(prompt)
        return _not_empty(encode_text(tokenizer, "\n\n".join(str(m.get("content") or "") for m in prompt)))
    text = render_chat(tokenizer, prompt, generation=True, tools=tools)
    return _not_empty(list(tokenizer(text, add_special_tokens=False)["input_ids"]))


def render_chat(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    generation: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """The conversation as text, by the tokenizer's template; `generation` opens the answer at its end."""
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "this tokenizer has no chat template: pass prompts as plain strings, set chat=false to join the "
            "messages as plain text, or give the policy a chat_template"
        )
    checked = _check_messages(messages)
    proceed = generation and checked[-1]["role"] == "assistant"
    return tokenizer.apply_chat_template(
        checked,
        tokenize=False,
        add_generation_prompt=generation and not proceed,
        continue_final_message=proceed,
        tools=list(tools) if tools else None,
    )


def encode_turn(
    tokenizer: Any,
    before: Sequence[Message],
    added: Sequence[Message],
    *,
    ended: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> Ids:
    """Ids to append behind a sampled assistant turn, so that `added` is said and the next answer opened.

    The sampled ids stay as they are: only what the template writes after the assistant's text is rendered.

    Args:
        before: the conversation so far, the sampled assistant message last.
        added: what follows (tool output, user messages).
        ended: whether the sampled ids end with the token that the template writes after an answer.

    Raises:
        ValueError: `before` does not end with an assistant message.
    """
    if not before or before[-1].get("role") != "assistant":
        raise ValueError("encode_turn: the conversation before must end with the assistant's message")
    hole = [*before[:-1], {"role": "assistant", "content": _HOLE}, *added]
    tail = render_chat(tokenizer, hole, generation=True, tools=tools).rpartition(_HOLE)[2]
    ids = list(tokenizer(tail, add_special_tokens=False)["input_ids"])
    return ids[1:] if ended and ids and ids[0] in end_ids(tokenizer) else ids


def end_ids(tokenizer: Any) -> frozenset[int]:
    """Tokens that end an answer: the end-of-sequence token, and what the chat template writes after an answer."""
    ends = set()
    if tokenizer.eos_token_id is not None:
        ends.add(int(tokenizer.eos_token_id))
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _HOLE}]
        tail = render_chat(tokenizer, messages, generation=False).rpartition(_HOLE)[2]
        first = tokenizer(tail, add_special_tokens=False)["input_ids"][:1]
        ends.update(int(i) for i in first if int(i) in set(tokenizer.all_special_ids) | _added(tokenizer))
    return frozenset(ends)


def template_is_append_only(tokenizer: Any) -> bool:
    """Whether a longer conversation renders as the shorter one plus something.

    Templates that drop earlier reasoning or number the turns are not; a multi-turn rollout then has to append ids
    (`encode_turn`) instead of rendering anew. A tokenizer without template joins plain text: True.
    """
    if not getattr(tokenizer, "chat_template", None):
        return True
    user, later = {"role": "user", "content": "one"}, {"role": "user", "content": "three"}
    answers = ("two", "<think>\nwhy\n</think>\n\ntwo")
    for answer in answers:
        talk = [user, {"role": "assistant", "content": answer}, later, {"role": "assistant", "content": answer}]
        shorter = ""
        for turns in range(1, len(talk) + 1):
            text = render_chat(tokenizer, talk[:turns], generation=talk[turns - 1]["role"] == "user")
            if not text.startswith(shorter):
                return False
            shorter = text
    return True


def set_chat_template(tokenizer: Any, template: str) -> None:
    """Store the template on the tokenizer, where every rendering and every save finds it.

    Args:
        template: a Jinja template, or the path of a file that holds one.
    """
    path = Path(template) if len(template) < 1024 and "{" not in template else None
    if path is not None and not path.is_file():
        raise ValueError(f"chat_template: {template!r} is neither a Jinja template nor a file")
    tokenizer.chat_template = path.read_text(encoding="utf-8") if path is not None else template


def decode(tokenizer: Any, ids: Sequence[int], *, special: bool = False) -> str:
    """Text of all ids at once, so that characters which span tokens come out whole.

    Args:
        special: keep special tokens in the text.
    """
    return tokenizer.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False)


class StreamDecoder:
    """Text piece by piece; a character whose bytes are not complete is held back until they are."""

    def __init__(self, tokenizer: Any, *, special: bool = False) -> None:
        self.tokenizer = tokenizer
        self.special = special
        self.ids: Ids = []
        self.start = 0
        self.read = 0

    def push(self, token: int) -> str:
        """The text that this token completes, perhaps none."""
        self.ids.append(int(token))
        new = self._new()
        if not new or new.endswith(REPLACEMENT):
            return ""
        self.start, self.read = self.read, len(self.ids)
        return new

    def flush(self) -> str:
        """What is left at the end, incomplete characters as U+FFFD."""
        new = self._new()
        self.start = self.read = len(self.ids)
        return new

    def _new(self) -> str:
        old = decode(self.tokenizer, self.ids[self.start : self.read], special=self.special)
        return decode(self.tokenizer, self.ids[self.start :], special=self.special)[len(old) :]


def _added(tokenizer: Any) -> set[int]:
    return {int(i) for i in getattr(tokenizer, "added_tokens_decoder", {})}


def _not_empty(ids: Ids) -> Ids:
    if not ids:
        raise ValueError("prompt: it is empty, and this tokenizer puts no token in front; a model needs at least one")
    return ids


def _check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if not messages:
        raise ValueError("prompt: the conversation has no message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or "role" not in message:
            raise ValueError(f"prompt: message {index} needs the keys 'role' and 'content', got {message!r}")
        if "content" not in message and "tool_calls" not in message:
            raise ValueError(f"prompt: message {index} ({message['role']}) has neither 'content' nor 'tool_calls'")
    return [dict(message) for message in messages]
