"""Stateless streams: the generators that libraries share are seeded before a hook and put back after it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from gainstage.ops.noise import mix


@contextmanager
def stream(*parts: int | str) -> Iterator[None]:
    """Inside, torch, numpy and random draw from a stream named by `parts`; outside, nothing has changed.

    So no generator has to be saved, a component that draws more does not shift another's stream, and a
    plugin that uses global randomness is exactly repeatable.
    """
    seed = mix(*parts)
    saved = (torch.get_rng_state(), np.random.get_state(), random.getstate())
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(saved[0])
        np.random.set_state(saved[1])
        random.setstate(saved[2])
