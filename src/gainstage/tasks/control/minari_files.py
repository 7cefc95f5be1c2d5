"""Data sets in Minari's formats, read without Minari: HDF5, Parquet, Arrow.

A data set is a folder `data` with `metadata.json` and either `main_data.hdf5` (a group an episode) or a folder an
episode. An episode has one observation more than actions, rewards and flags.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gainstage.ops.extras import require
from gainstage.tasks.control.gym_actions import action_rows
from gainstage.tasks.control.gym_spaces import observing
from gainstage.tasks.control.minari_spaces import is_picture, space_of
from gainstage.types.episodes import Episode, EpisodeSet

HDF5, METADATA = "main_data.hdf5", "metadata.json"
FORMATS = ("hdf5", "parquet", "arrow")
STEP_COLUMNS = ("rewards", "terminations", "truncations")


def find_data(path: str | Path) -> Path:
    """The `data` folder of a data set: given itself, its parent, or an id in Minari's own folder.

    Raises:
        ValueError: there is none.
    """
    own = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
    tried = dict.fromkeys((Path(path), Path(path) / "data", Path(own) / path / "data"))
    for folder in tried:
        if (folder / METADATA).is_file():
            return folder
    raise ValueError(
        f"{path}: no Minari data set is here: no {METADATA} in {', '.join(map(str, tried))}. "
        "minari download ID fetches one, gainstage collect records one"
    )


class MinariSet:
    """A data set on disk.

    Args:
        path: its folder, or an id that Minari has downloaded.

    Raises:
        ValueError: there is none, or its metadata cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        require("gymnasium", extra="control")
        self.path = find_data(path)
        try:
            self.metadata: dict[str, Any] = json.loads((self.path / METADATA).read_text(encoding="utf-8"))
            self.total_episodes = int(self.metadata["total_episodes"])
            self.format = str(self.metadata.get("data_format", "hdf5"))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path / METADATA} is no metadata of a Minari data set: {error!r}") from None
        if self.format not in FORMATS:
            raise ValueError(f"{self.path}: data_format {self.format!r} is not known; known are {', '.join(FORMATS)}")
        self.observation_space, self.action_space = (
            self._space(name) for name in ("observation_space", "action_space")
        )

    def _space(self, name: str) -> Any:
        try:
            if name in self.metadata:
                return space_of(json.loads(self.metadata[name]))
            from gainstage.tasks.control.gymnasium import find_spec, single_env

            recorded = recorded_env(self.metadata)  # older data sets have only the environment
            env = single_env(find_spec(recorded["id"]), recorded["kwargs"])
            space = getattr(env, name)
            env.close()
            return space
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path}: {name} cannot be read from {METADATA}: {error}") from None

    def __len__(self) -> int:
        return self.total_episodes

    def episodes(
        self, *, keys: Sequence[str] | None = None, info: Sequence[str] = (), limit: int | None = None
    ) -> EpisodeSet:
        """All episodes in memory.

        Args:
            keys: entries of dictionary observations that are kept.
            info: numbers of `infos` that are kept.
            limit: the first so many only.

        Raises:
            ValueError: the file is cut or of another format, lengths do not fit, a number is not finite.
        """
        count = self.total_episodes if limit is None else min(limit, self.total_episodes)
        seen = observing(self.observation_space, keys)
        kept = []
        for number, raw in enumerate(self._raw(count)):
            try:
                kept.append(self._episode(raw, seen, info))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise ValueError(f"{self.path}: episode {number}: {error}") from None
        if not kept:
            raise ValueError(f"{self.path} holds no episode")
        return EpisodeSet.join(kept)

    def _episode(self, raw: Mapping[str, Any], seen: Any, info: Sequence[str]) -> Episode:
        obs = seen.batch(raw["observations"])
        actions = action_rows(self.action_space, raw["actions"])
        reward = np.asarray(raw["rewards"]).reshape(-1).astype(np.float32)
        terminated, truncated = (np.asarray(raw[name]).reshape(-1).astype(np.bool_) for name in STEP_COLUMNS[1:])
        steps = len(reward)
        for name, length in (
            ("terminations", len(terminated)),
            ("truncations", len(truncated)),
            ("actions", len(actions)),
        ):
            if length != steps:
                raise ValueError(f"{length} {name} for {steps} rewards")
        if len(obs) != steps + 1:
            raise ValueError(f"{len(obs)} observations for {steps} rewards; there has to be one more, the last one")
        for name, value in (("observation", obs), ("action", actions), ("reward", reward)):
            if value.dtype == np.float32 and not np.isfinite(value).all():
                step = int(np.argwhere(~np.isfinite(value))[0][0])
                raise ValueError(f"the {name} of step {step} is not finite")
        facts = {}
        for name in info:
            if name not in (raw.get("infos") or {}):
                raise ValueError(f"infos has no {name!r}; it has {', '.join(raw.get('infos') or {}) or 'nothing'}")
            facts[name] = torch.from_numpy(np.array(raw["infos"][name], np.float32)[-steps:])
        o, a, r, end, cut = (torch.from_numpy(array) for array in (obs, actions, reward, terminated, truncated))
        return Episode(o, a, r, end, cut, facts)

    def _raw(self, count: int) -> Iterator[dict[str, Any]]:
        jpeg = bool(self.metadata.get("jpeg_encoding", True))
        if self.format == "hdf5":
            yield from _from_hdf5(self.path / HDF5, count, self.observation_space, self.action_space, jpeg)
        else:
            yield from _from_arrow(self.path, self.format, count, self.observation_space, self.action_space, jpeg)


def recorded_env(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Id, arguments and step limit of the environment that a data set was recorded in, as settings of task `gymnasium`.

    Nothing that the file names is imported: an id has to be one that Gymnasium knows here.

    Raises:
        ValueError: the data set does not say it, or says more than an id.
    """
    try:
        data = json.loads(metadata.get("env_spec") or "")
        id, kwargs, limit = data["id"], dict(data.get("kwargs") or {}), data.get("max_episode_steps")
    except (ValueError, KeyError, TypeError):
        raise ValueError("the data set does not say which environment it was recorded in") from None
    if not isinstance(id, str) or ":" in id:
        raise ValueError(f"it was recorded in {id!r}, which names code to import")
    if data.get("additional_wrappers"):
        raise ValueError(f"it was recorded in {id} with wrappers around it")
    kwargs.pop("render_mode", None)
    return {"id": id, "kwargs": kwargs, "max_steps": limit}


# -- reading ----------------------------------------------------------------------------------------------------------


def _from_hdf5(path: Path, count: int, seen: Any, acted: Any, jpeg: bool) -> Iterator[dict[str, Any]]:
    h5py = require("h5py", extra="control")
    try:
        with h5py.File(path, "r") as file:
            for number in range(count):
                if f"episode_{number}" not in file:
                    raise ValueError(f"{path} ends after {number} episodes, its metadata says {count}")
                group = file[f"episode_{number}"]
                missing = {"observations", "actions", *STEP_COLUMNS} - set(group)
                if missing:
                    raise ValueError(f"{path}: episode {number} has no {', '.join(sorted(missing))}")
                yield {
                    "observations": _of_group(group["observations"], seen, jpeg),
                    "actions": _of_group(group["actions"], acted, jpeg),
                    "infos": _facts(group["infos"]) if "infos" in group else {},
                    **{name: group[name][()] for name in STEP_COLUMNS},
                }
    except (OSError, RuntimeError, KeyError) as error:  # all that h5py says of one that is damaged
        raise ValueError(f"{path} cannot be read: it is cut, damaged or no HDF5 file ({error})") from None


def _of_group(node: Any, space: Any, jpeg: bool) -> Any:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {key: _of_group(node[key], sub, jpeg) for key, sub in space.spaces.items() if key in node}
    if isinstance(space, spaces.Tuple):
        return tuple(_of_group(node[f"_index_{index}"], sub, jpeg) for index, sub in enumerate(space.spaces))
    value = node[()]
    return _pictures(value, space) if jpeg and is_picture(space) and value.ndim != len(space.shape) + 1 else value


def _facts(group: Any) -> dict[str, Any]:
    """Flat facts of an episode; nested ones are named `a/b`."""
    out: dict[str, Any] = {}
    for key, node in group.items():
        if hasattr(node, "items"):
            out |= {f"{key}/{sub}": value for sub, value in _facts(node).items()}
        else:
            out[key] = node[()]
    return out


def _from_arrow(path: Path, format: str, count: int, seen: Any, acted: Any, jpeg: bool) -> Iterator[dict[str, Any]]:
    from pyarrow import ArrowException, dataset

    for number in range(count):
        folder = path / str(number)
        try:
            table = dataset.dataset(folder, format=format, ignore_prefixes=["_", ".", METADATA]).to_table()
        except (OSError, ArrowException, ValueError) as error:
            raise ValueError(f"{folder} cannot be read: it is missing, cut or damaged ({error})") from None
        missing = {"observations", "actions", *STEP_COLUMNS} - set(table.column_names)
        if missing:
            raise ValueError(f"{folder} has no column {', '.join(sorted(missing))}")
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        yield {
            "observations": _of_array(columns["observations"], seen, jpeg),
            "actions": _of_array(columns["actions"].slice(0, len(table) - 1), acted, jpeg),
            "infos": _infos(columns["infos"]) if "infos" in columns else {},
            **{name: columns[name].slice(0, len(table) - 1).to_numpy(zero_copy_only=False) for name in STEP_COLUMNS},
        }


def _of_array(array: Any, space: Any, jpeg: bool) -> Any:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {key: _of_array(array.field(key), sub, jpeg) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_of_array(array.field(str(index)), sub, jpeg) for index, sub in enumerate(space.spaces))
    if isinstance(space, spaces.Discrete):
        return array.to_numpy(zero_copy_only=False)
    if jpeg and is_picture(space):
        return _pictures(array.to_pylist(), space)
    return array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), *space.shape)


def _infos(array: Any) -> dict[str, Any]:
    out = {}
    for index, field in enumerate(array.type):
        values = array.field(index)
        flat = values.flatten() if hasattr(values, "flatten") and "list" in str(field.type) else values
        out[field.name] = flat.to_numpy(zero_copy_only=False).reshape(len(array), -1)
        if out[field.name].shape[1] == 1:
            out[field.name] = out[field.name][:, 0]
    return out


def _pictures(encoded: Sequence[Any], space: Any) -> np.ndarray:
    images = require("PIL.Image", extra="control")
    return np.stack([np.asarray(images.open(io.BytesIO(bytes(e)))) for e in encoded]).reshape(-1, *space.shape)
