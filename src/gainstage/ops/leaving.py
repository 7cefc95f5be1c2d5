"""Code of the user's own that tries to end the whole program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def staying() -> Iterator[None]:
    """`os._exit` inside raises SystemExit, so that whoever called can be named; a forked child still ends at once."""
    leave, here = os._exit, os.getpid()

    def stay(status: int) -> NoReturn:
        if os.getpid() != here:
            leave(status)
        raise SystemExit(status)

    os._exit = stay
    try:
        yield
    finally:
        os._exit = leave


def said(error: BaseException) -> str:
    """What went wrong in somebody else's code, in one line."""
    if isinstance(error, SystemExit):
        return f"it asked the whole program to end (exit {error.code!r}); raise an exception where something is wrong"
    return f"{type(error).__name__}: {error}"
