"""Writing a file so that a killed process or a full disk leaves the old one or the new one, never a half."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError


@contextmanager
def writing(target: Path, remedy: Callable[[], str]) -> Iterator[None]:
    """Where the disk refuses (full, read-only, gone), say what was not written, and what to do.

    Raises:
        OSError: in place of the system's own, which names no file, and of the one that safetensors raises.
    """
    try:
        yield
    except OSError as error:
        file = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        raise OSError(error.errno, f"{target} was not written ({file}); {remedy()}") from error
    except SafetensorError as error:
        if (number := re.search(r"os error (\d+)", str(error))) is None:
            raise
        raise OSError(int(number[1]), f"{target} was not written ({error}); {remedy()}") from error


def replace_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a temporary file beside `path` and put it in place.

    Args:
        durable: wait until the disk has it, so that it also survives a power cut.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def replace_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """The same for plain data."""
    replace_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", durable=durable)


def append(path: Path, data: bytes) -> None:
    """Add `data` at the end; where that fails half-way the file is cut back to what it was.

    Raises:
        OSError: as the system gives it, for example where the disk is full.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
