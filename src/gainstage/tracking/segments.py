"""Histories as files: each step is written once, in segments that all checkpoints share by hard links."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from gainstage.types.history import History, Segment

BYTES = 1 << 24
"""Size of a segment that is full."""


def write(history: History, stem: Path, put: Callable[[Path, bytes], str]) -> list[Segment]:
    """Every step of a history under names that begin with `stem`: linked where a file holds it, written anew elsewhere.

    Segments end at multiples of their full size and where a checkpoint ends. One that has lost some steps is kept
    until it has lost all.

    Args:
        put: writes a file and gives its sha256.

    Raises:
        OSError: the disk refused.
    """
    full = max(1, BYTES // max(1, history.step_bytes))
    linked = [new for old in history.written if old.stop > history.start and (new := _link(old, stem)) is not None]
    segments, at = list[Segment](), history.start
    for known in [*linked, None]:
        until = history.stop if known is None else known.start
        for start, stop in _cut(at, until, full):
            segments.append(_new(history, start, stop, stem, put))
        if known is not None:
            segments.append(known)
            at = known.stop
    return segments


def _cut(start: int, stop: int, full: int) -> Iterator[tuple[int, int]]:
    while start < stop:
        end = min(stop, (start // full + 1) * full)
        yield start, end
        start = end


def _new(history: History, start: int, stop: int, stem: Path, put: Callable[[Path, bytes], str]) -> Segment:
    pieces = [columns for _, columns in history.read(start, stop)]
    columns = {name: torch.cat([piece[name] for piece in pieces]).cpu().contiguous() for name in pieces[0]}
    data, file = dump_tensors(columns), _named(stem, start, stop)
    return Segment(start, stop, file, len(data), put(file, data))


def _named(stem: Path, start: int, stop: int) -> Path:
    return stem.with_name(f"{stem.name}-{start:012d}-{stop:012d}.safetensors")


def _link(old: Segment, stem: Path) -> Segment | None:
    """Another name for a segment; None where it is gone or cut, or the file system has no hard links."""
    file = _named(stem, old.start, old.stop)
    try:
        if old.file.stat().st_size != old.size:
            return None
        os.link(old.file, file)
    except OSError:
        return None
    return replace(old, file=file)


def to_plain(history: History, segments: list[Segment]) -> dict[str, Any]:
    """What a checkpoint's JSON says of a history."""
    return {
        "start": history.start, "stop": history.stop, "step_bytes": history.step_bytes,
        "files": [[segment.start, segment.stop, segment.file.name] for segment in segments],
    }  # fmt: skip


def from_plain(plain: Mapping[str, Any], folder: Path, hashes: Mapping[str, str]) -> History:
    """The inverse. Files are read, and their content is checked, when their steps are asked for.

    Args:
        folder: where the files are.
        hashes: file name -> sha256.

    Raises:
        ValueError: a file is not listed, or steps are missing.
        OSError: a file is missing.
    """
    segments, at = list[Segment](), int(plain["start"])
    for start, stop, name in plain["files"]:
        file = folder / Path(name).name
        if name not in hashes or start > at:
            raise ValueError(f"{file}: step {min(start, at)} of the history is in no file that the checkpoint lists")
        segments.append(Segment(start, stop, file, file.stat().st_size, hashes[name]))
        at = stop
    if at < plain["stop"]:
        raise ValueError(f"{folder}: step {at} of the history is in no file")

    def read(first: int, last: int) -> Iterator[tuple[int, Mapping[str, Tensor]]]:
        for segment in segments:
            a, b = max(first, segment.start), min(last, segment.stop)
            if a < b:
                columns = _load(segment)
                yield a, {name: value[a - segment.start : b - segment.start] for name, value in columns.items()}

    return History(int(plain["start"]), int(plain["stop"]), int(plain["step_bytes"]), read, list(segments))


def _load(segment: Segment) -> dict[str, Tensor]:
    """Raises ValueError: the file cannot be read, or its content is not what was written."""
    try:
        data = segment.file.read_bytes()
        if hashlib.sha256(data).hexdigest() != segment.sha256:
            raise ValueError("its content is not what was written (sha256 differs)")
        return load_tensors(data)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"{segment.file}: {error}") from None
