"""The inside of the worker that scores reasoning-gym answers: some of its scorers evaluate what a model wrote."""

from __future__ import annotations

import functools
import json
from typing import Any


def warm_up() -> None:
    """Imports that should not count as scoring."""
    import reasoning_gym  # noqa: F401


@functools.lru_cache(maxsize=16)
def _dataset(name: str, settings: str, size: int, seed: int) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=size, seed=seed, **json.loads(settings))


def score(name: str, settings: str, size: int, seed: int, index: int, answer: str | None) -> float:
    """The data set's own score of an answer to item `index`."""
    dataset = _dataset(name, settings, size, seed)
    return float(dataset.score_answer(answer=answer, entry=dataset[index]))
