"""Tensors that live in a file: larger than memory, read and written like any other."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor


def mapped_zeros(folder: str | Path, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros in a file of that folder. The file has no name: it goes with the tensor, also where the process is killed.

    Raises:
        OSError: the folder cannot be written, or has no room.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix="tensor-", dir=folder)
    try:
        size = math.prod(shape)
        if size:
            os.truncate(handle, size * torch.empty((), dtype=dtype).element_size())
        return torch.from_file(name, shared=True, size=size, dtype=dtype).reshape(*shape)
    finally:
        os.close(handle)
        os.unlink(name)
