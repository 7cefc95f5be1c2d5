"""Gymnasium's spaces as ours and ours as its, and its observations as rows of an array."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gainstage.types.spaces import Box, Discrete, MultiDiscrete, Piece, Space

GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")
TAKEN = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"


@dataclass(frozen=True)
class Observing:
    """How observations of a Gymnasium space become rows of one array.

    Args:
        space: what the rows are.
        dtype: of the array.
        write: puts one observation into `array[row]`.
        batch: turns a vector environment's batched observation into an array `"B *"`.
    """

    space: Space
    dtype: Any
    write: Callable[[np.ndarray, int, Any], None]
    batch: Callable[[Any], np.ndarray]

    def empty(self, size: int) -> np.ndarray:
        """Room for `size` observations."""
        return np.empty((size, *self.shape), self.dtype)

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        return self.space.shape


def observing(space: Any, keys: Sequence[str] | None = None) -> Observing:
    """The layout of a Gymnasium observation space.

    A Dict or Tuple is laid out end to end in one float vector, its Discrete and MultiDiscrete parts one-hot, as
    `gymnasium.spaces.flatten` does it; `keys` keeps some entries of a Dict, and a single one keeps its own shape.

    Raises:
        ValueError: a space that cannot be laid out, or keys that are not there.
    """
    from gymnasium import spaces

    if keys is not None:
        if not isinstance(space, spaces.Dict):
            raise ValueError(f"keys: the observations are no dictionary but {space}; leave keys out")
        if missing := [key for key in keys if key not in space.spaces]:
            raise ValueError(f"keys: the observations have no {missing[0]!r}; they have {', '.join(space.spaces)}")
        if len(keys) == 1:
            return _entry(keys[0], observing(space[keys[0]]))
        space = spaces.Dict({key: space[key] for key in keys})
    if isinstance(space, spaces.Box):
        return _box(space)
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return Observing(
            Discrete(int(space.n)),
            np.int64,
            lambda array, row, seen: array.__setitem__(row, seen - start),
            lambda seen: np.asarray(seen, np.int64) - start,
        )
    return _end_to_end(space)


def _entry(key: str, inner: Observing) -> Observing:
    return Observing(
        inner.space,
        inner.dtype,
        lambda array, row, seen: inner.write(array, row, seen[key]),
        lambda seen: inner.batch(seen[key]),
    )


def _box(space: Any) -> Observing:
    if not math.prod(space.shape):
        raise ValueError(f"an observation space of shape {space.shape} holds no number")
    picture = space.dtype == np.uint8
    dtype = np.uint8 if picture else np.float32
    with np.errstate(over="ignore"):  # float64 bounds beyond float32 become infinite
        low, high = (torch.from_numpy(np.array(bound, np.float32)) for bound in (space.low, space.high))
    shape = space.shape

    def write(array: np.ndarray, row: int, seen: Any) -> None:
        if np.shape(seen) != shape:  # numpy would stretch a single number
            raise ValueError(f"its space has observations of shape {shape}, not {np.shape(seen)}")
        array[row] = seen

    return Observing(
        Box(low, high, torch.uint8 if picture else torch.float32), dtype, write, lambda seen: np.array(seen, dtype)
    )


def leaves(space: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The parts of a nested Dict or Tuple space with the way to each."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        for key, sub in space.spaces.items():
            yield from leaves(sub, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, sub in enumerate(space.spaces):
            yield from leaves(sub, (*path, index))
    else:
        yield path, space


def follow(value: Any, path: Sequence[Any]) -> Any:
    """The part of a nested value at the end of a way."""
    for key in path:
        value = value[key]
    return value


def _end_to_end(space: Any) -> Observing:
    """One float vector with the parts of a nested space, or of a single one that is neither Box nor Discrete."""
    pieces: dict[str, Piece] = {}
    lows, highs, parts = [], [], []
    place = 0
    for path, leaf in leaves(space):
        low, high, values = _leaf(leaf, path)
        size = low.size
        shape = low.shape or (1,)
        pieces["/".join(map(str, path))] = Piece(place, place + size, shape)
        parts.append((path, place, place + size, values))
        lows.append(low.reshape(-1))
        highs.append(high.reshape(-1))
        place += size
    if not parts:
        raise ValueError(f"the observation space {space} is empty")
    bottom, top = (torch.from_numpy(np.concatenate(bounds)) for bounds in (lows, highs))

    def write(array: np.ndarray, row: int, seen: Any) -> None:
        target = array[row]
        for path, start, stop, values in parts:
            target[start:stop] = values(follow(seen, path), ()).reshape(-1)

    def batch(seen: Any) -> np.ndarray:
        columns = []
        for path, _, _, values in parts:
            part = follow(seen, path)
            columns.append(values(part, (len(part),)).reshape(len(part), -1))
        return np.concatenate(columns, 1, dtype=np.float32)

    return Observing(Box(bottom, top, pieces=pieces if len(pieces) > 1 else {}), np.float32, write, batch)


def _leaf(space: Any, path: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, Callable[[Any, tuple[int, ...]], Any]]:
    """Bounds of a part, and its numbers with leading axes `lead`."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        with np.errstate(over="ignore"):
            low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        return low, high, lambda seen, lead: np.asarray(seen, np.float32)
    if isinstance(space, spaces.Discrete):
        rows, start = np.eye(int(space.n), dtype=np.float32), int(space.start)
        return np.zeros(len(rows), np.float32), np.ones(len(rows), np.float32), lambda seen, lead: rows[seen - start]
    if isinstance(space, spaces.MultiDiscrete):
        sizes = space.nvec.reshape(-1)
        total, starts = int(sizes.sum()), space.start.reshape(-1)
        offsets = np.concatenate(([0], np.cumsum(sizes)[:-1])) - starts

        def one_hot(seen: Any, lead: tuple[int, ...]) -> np.ndarray:
            places = np.asarray(seen).reshape(*lead, -1) + offsets
            out = np.zeros((*lead, total), np.float32)
            np.put_along_axis(out, places, 1.0, -1)
            return out

        return np.zeros(total, np.float32), np.ones(total, np.float32), one_hot
    if isinstance(space, spaces.MultiBinary):
        zeros = np.zeros(space.shape, np.float32)
        return zeros, zeros + 1, lambda seen, lead: np.asarray(seen, np.float32)
    where = f" (at {'/'.join(map(str, path))})" if path else ""
    hint = "; leave it out: keys: [those that are wanted]" if path and isinstance(path[0], str) else ""
    raise ValueError(
        f"the observation space {type(space).__name__}{where} cannot be laid out as numbers; taken are {TAKEN}{hint}"
    )


def in_pieces(space: Space, obs: np.ndarray) -> Any:
    """Observations `"B *"` as Gymnasium has them: those that are laid out in pieces are a dictionary again."""
    if not (isinstance(space, Box) and space.pieces):
        return obs
    return {
        name: obs[:, piece.start : piece.stop].reshape(len(obs), *piece.shape) for name, piece in space.pieces.items()
    }


def gym_space(space: Space) -> Any:
    """One of our spaces as Gymnasium's; a Box with pieces is a Dict again."""
    from gymnasium import spaces

    if isinstance(space, Box):
        dtype: Any = np.uint8 if space.dtype == torch.uint8 else np.float32
        low: Any = space.low.numpy().astype(dtype)
        high: Any = space.high.numpy().astype(dtype)
        if not space.pieces:
            return spaces.Box(low, high, dtype=dtype)
        parts: dict[str, Any] = {}
        for name, piece in space.pieces.items():
            place = slice(piece.start, piece.stop)
            parts[name] = spaces.Box(low[place].reshape(piece.shape), high[place].reshape(piece.shape), dtype=dtype)
        return spaces.Dict(parts)
    if isinstance(space, Discrete):
        return spaces.Discrete(space.n)
    if isinstance(space, MultiDiscrete):
        return spaces.MultiDiscrete(list(space.nvec))
    return spaces.MultiBinary(space.n)
