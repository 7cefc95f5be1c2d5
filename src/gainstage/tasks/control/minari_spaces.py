"""How Minari writes spaces and their parts down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def space_of(data: Mapping[str, Any]) -> Any:
    """A Gymnasium space as Minari writes it down."""
    from gymnasium import spaces

    kind = data["type"]
    if kind == "Dict":
        return spaces.Dict({key: space_of(sub) for key, sub in data["subspaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([space_of(sub) for sub in data["subspaces"]])
    if kind == "Box":
        dtype = np.dtype(data["dtype"])
        low, high = (np.array(data[side], dtype).reshape(data["shape"]) for side in ("low", "high"))
        return spaces.Box(low, high, dtype=dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data.get("start", 0))
    if kind == "MultiDiscrete":
        start = data.get("start")
        return spaces.MultiDiscrete(np.array(data["nvec"]), start=None if start is None else np.array(start))
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Text":
        return spaces.Text(data["max_length"], min_length=data["min_length"], charset=data["charset"])
    raise ValueError(f"the space {kind} is not known")


def space_data(space: Any) -> dict[str, Any]:
    """What Minari writes down of a Gymnasium space."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "subspaces": {key: space_data(sub) for key, sub in space.spaces.items()}}
    if isinstance(space, spaces.Box):
        low, high = space.low.tolist(), space.high.tolist()
        return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), "low": low, "high": high}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    if isinstance(space, spaces.MultiDiscrete):
        start, nvec = space.start.tolist(), space.nvec.tolist()
        return {"type": "MultiDiscrete", "dtype": str(space.dtype), "nvec": nvec, "start": start}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": int(space.n) if isinstance(space.n, int) else list(space.n)}
    raise ValueError(f"{space} cannot be written to a data set")


def piece_name(name: str) -> str:
    """The name of a part of an observation in a file, where a slash would be a folder."""
    return name.replace("/", ".")


def is_picture(space: Any) -> bool:
    """What Minari takes for a picture: 8-bit, two or three axes, at least 32 a side."""
    return space.dtype == np.uint8 and len(space.shape) in (2, 3) and min(space.shape[:2]) >= 32
