"""Gymnasium's action spaces as ours, and what passes between them: rows of an array to actions, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gainstage.tasks.control.gym_spaces import TAKEN, follow, leaves
from gainstage.types.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, choices


@dataclass(frozen=True)
class Acting:
    """How rows of an array become actions of a Gymnasium space.

    Args:
        space: what the rows are.
        dtype: of the array.
        rows: actions of single environments, none of which shares memory with the array.
        batch: the action of a vector environment.
    """

    space: Space
    dtype: Any
    rows: Callable[[np.ndarray], Sequence[Any]]
    batch: Callable[[np.ndarray], Any]


def acting(space: Any) -> Acting:
    """The layout of a Gymnasium action space. A Dict or Tuple has to be all Box, or all Discrete and the like.

    Raises:
        ValueError: a space that nothing here can act in.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return Acting(Discrete(int(space.n)), np.int64, lambda rows: (rows + start).tolist(), lambda rows: rows + start)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _nested(space)
    ours, values = _single(space, ())

    def convert(rows: np.ndarray) -> np.ndarray:
        return values(rows).reshape(len(rows), *space.shape)

    return Acting(ours, _numbers(ours), lambda rows: list(convert(rows)), convert)


def _numbers(space: Space) -> Any:
    return np.float32 if isinstance(space, Box) else np.int64


def _single(space: Any, path: Sequence[Any]) -> tuple[Space, Callable[[np.ndarray], np.ndarray]]:
    """One part of an action space, and its values of rows `"B K"`, always newly made."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        with np.errstate(over="ignore"):
            low, high = (np.array(bound, np.float32) for bound in (space.low, space.high))
        ours = Box(torch.from_numpy(low), torch.from_numpy(high))
        if space.dtype == np.float32:
            return ours, lambda rows: np.array(rows, np.float32)
        lower, upper = space.low.reshape(-1), space.high.reshape(-1)
        whole = np.issubdtype(space.dtype, np.integer)

        def convert(rows: np.ndarray) -> np.ndarray:
            wide = rows.reshape(len(rows), -1).astype(np.float64)
            return np.clip(np.rint(wide) if whole else wide, lower, upper).astype(space.dtype)

        return ours, convert
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return MultiDiscrete((int(space.n),)), lambda rows: rows + start
    if isinstance(space, spaces.MultiDiscrete):
        starts = space.start.reshape(-1)
        nvec = tuple(int(n) for n in space.nvec.reshape(-1))
        return MultiDiscrete(nvec), lambda rows: (rows + starts).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return MultiBinary(int(np.prod(space.shape))), lambda rows: rows.astype(space.dtype)
    where = f" (at {'/'.join(map(str, path))})" if path else ""
    raise ValueError(
        f"the action space {type(space).__name__}{where} is not one that can be acted in; taken are {TAKEN}"
    )


def _nested(space: Any) -> Acting:
    from gymnasium import spaces

    found = [(path, leaf, *_single(leaf, path)) for path, leaf in leaves(space)]
    boxes = [ours for _, _, ours, _ in found if isinstance(ours, Box)]
    if boxes and len(boxes) < len(found):
        raise ValueError(
            f"the action space {space} mixes Box with Discrete parts; only all of one kind can be acted in"
        )
    if not found:
        raise ValueError(f"the action space {space} is empty")
    sizes = [int(np.prod(ours.shape)) for _, _, ours, _ in found]
    ends = np.cumsum(sizes).tolist()
    places = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    ours: Space
    if boxes:
        ours = Box(
            torch.cat([box.low.reshape(-1) for box in boxes]), torch.cat([box.high.reshape(-1) for box in boxes])
        )
    else:
        ours = MultiDiscrete(tuple(n for _, _, part, _ in found for n in choices(part).tolist()))  # type: ignore[arg-type]

    def build(part: Any, path: tuple[Any, ...], made: dict[tuple[Any, ...], Any]) -> Any:
        if isinstance(part, spaces.Dict):
            return {key: build(sub, (*path, key), made) for key, sub in part.spaces.items()}
        if isinstance(part, spaces.Tuple):
            return tuple(build(sub, (*path, index), made) for index, sub in enumerate(part.spaces))
        return made[path]

    def columns(rows: np.ndarray) -> dict[tuple[Any, ...], np.ndarray]:
        return {
            path: values(rows[:, place]).reshape(len(rows), *leaf.shape)
            for (path, leaf, _, values), place in zip(found, places, strict=True)
        }

    def split(rows: np.ndarray) -> list[Any]:
        made = columns(rows)
        return [build(space, (), {path: value[row] for path, value in made.items()}) for row in range(len(rows))]

    return Acting(ours, _numbers(ours), split, lambda rows: build(space, (), columns(rows)))


def action_rows(space: Any, actions: Any) -> np.ndarray:
    """Actions of a vector environment as rows `"B *"`: what `acting(space).batch` makes of them, undone."""
    from gymnasium import spaces

    parts: list[np.ndarray] = []
    for path, leaf in leaves(space):
        value = np.asarray(follow(actions, path))
        size = len(value)
        if isinstance(leaf, spaces.Box):
            parts.append(value.astype(np.float32).reshape(size, *leaf.shape))
        elif isinstance(leaf, spaces.Discrete):
            parts.append(value.astype(np.int64).reshape(size) - int(leaf.start))
        else:
            start = leaf.start.reshape(-1) if isinstance(leaf, spaces.MultiDiscrete) else 0
            parts.append(value.astype(np.int64).reshape(size, -1) - start)
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return parts[0]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], 1)
