"""Tensors that live in a file: larger than memory, read and written like any other."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor


def mapped_zeros(folder: str | Path, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros in a file of that folder. The file has no name: it goes with the tensor, also where the process is killed.

    Its room on the disk is taken at once where the system can: a disk that is full later would kill the process.

    Raises:
        OSError: the folder cannot be written, or has no room.
    """
    size = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    if not size:
        return torch.zeros(*shape, dtype=dtype)
    Path(folder).mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".tensor-", suffix=".tmp", dir=folder)
    try:
        os.unlink(name)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, size)
        else:
            os.truncate(handle, size)
        return torch.frombuffer(mmap.mmap(handle, size), dtype=dtype).reshape(*shape)
    finally:
        os.close(handle)
