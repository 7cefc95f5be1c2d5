"""Programs in the texts of models."""

from __future__ import annotations

import re

_BLOCK = re.compile(r"```[ \t]*(?:python|py|python3)?[ \t]*\n(.*?)(?:\n?```|\Z)", re.DOTALL | re.IGNORECASE)
_NEXT = re.compile(r"\n(?=def |class |async def |if __name__|print\(|#|@|assert |```)")


def last_block(text: str) -> str | None:
    """The last fenced code block that is not empty, also one whose closing fence was cut off."""
    blocks = [block for block in _BLOCK.findall(text) if block.strip()]
    return blocks[-1] if blocks else None


def complete_function(head: str, name: str, text: str) -> str:
    """The program that an answer makes of a function's head.

    Args:
        head: imports, helpers, signature and docstring.
        name: the function asked for.
        text: a fenced block or plain code with the whole function, or the continuation of the head; what a
            continuation goes on with after the function is dropped.
    """
    block = last_block(text)
    code = block if block is not None else text
    if re.search(rf"^(?:async )?def {re.escape(name)}\b", code, re.MULTILINE):
        before = re.split(rf"^(?:async )?def {re.escape(name)}\b", head, flags=re.MULTILINE)[0]
        return f"{before}\n{code}\n"
    if block is not None and not block.startswith((" ", "\t")):
        code = "\n".join("    " + line for line in block.splitlines())
    return head + _NEXT.split(code, maxsplit=1)[0] + "\n"
