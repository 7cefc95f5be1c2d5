"""Stateless streams: the generators that libraries share are seeded before a hook and put back after it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from gainstage.ops.noise import mix


class _Place:
    """Where the loop stands: inside `aside`, and how many streams are open there."""

    held = False
    open = 0


@contextmanager
def stream(*parts: int | str) -> Iterator[None]:
    """Inside, torch, numpy and random draw from a stream named by `parts`; outside, nothing has changed.

    So no generator has to be saved, a component that draws more does not shift another's stream, and a
    plugin that uses global randomness is exactly repeatable.
    """
    seed = mix(*parts)
    # a stream that nothing encloses but `aside` need not put back what that one will put back
    saved = None if _Place.held and not _Place.open else _states()
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    _Place.open += 1
    try:
        yield
    finally:
        _Place.open -= 1
        if saved is not None:
            _restore(saved)


@contextmanager
def aside() -> Iterator[None]:
    """Around many streams: the generators are put back once, at the end, instead of after each of them."""
    if _Place.held or _Place.open:
        yield
        return
    saved = _states()
    _Place.held = True
    try:
        yield
    finally:
        _Place.held = False
        _restore(saved)


def _states() -> Any:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _restore(saved: Any) -> None:
    torch.set_rng_state(saved[0])
    np.random.set_state(saved[1])
    random.setstate(saved[2])
