"""Writing a file so that a killed process or a full disk leaves the old one or the new one, never a half."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


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
