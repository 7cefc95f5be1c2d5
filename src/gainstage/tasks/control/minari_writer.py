"""Episodes written as a data set that Minari reads as well."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gainstage.ops.extras import require
from gainstage.tasks.control.gym_spaces import gym_space, in_pieces
from gainstage.tasks.control.minari_files import FORMATS, HDF5, METADATA
from gainstage.tasks.control.minari_spaces import is_picture, piece_name, space_data
from gainstage.types.episodes import Episode
from gainstage.types.spaces import Box, Space

ID = re.compile(r"([-_\w][-_\w/]*/)?[-_\w]+-v\d+")


def write_episodes(
    path: str | Path, episodes: Iterable[Episode], *, observation_space: Space, action_space: Space,
    spec: Any = None, task: Mapping[str, Any] | None = None, format: str = "hdf5", **about: Any,
) -> Path:  # fmt: skip
    """Write a data set that Minari reads as well. It is complete or not there at all.

    Args:
        path: folder of the data set. Its last part is the name; in the metadata `-v0` is added where no version is.
        episodes: taken one by one.
        observation_space, action_space: of the episodes. A Box with pieces is written as a dictionary.
        spec: Gymnasium's entry of the environment, from which it is made again.
        task: name and settings of the task here, `{name: settings}`; comes before `spec` when read here.
        format: `hdf5`, `parquet` or `arrow`.
        about: further metadata, such as `algorithm_name` or `ref_max_score`.

    Returns:
        The folder `data` in it.

    Raises:
        ValueError: there is something already, no episode, or an episode that does not fit.
    """
    home = Path(path)
    refuse(home, format)
    home.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".writing-", dir=home))
    try:
        write = _to_hdf5 if format == "hdf5" else _to_arrow
        counts = write(partial, format, episodes, observation_space)
        if not counts:
            raise ValueError(f"{home}: there is no episode to write")
        seen = gym_space(_named(observation_space))
        size = sum(file.stat().st_size for file in partial.rglob("*") if file.is_file())
        metadata = {
            "total_episodes": len(counts), "total_steps": sum(counts), "data_format": format, "jpeg_encoding": False,
            "observation_space": json.dumps(space_data(seen)),
            "action_space": json.dumps(space_data(gym_space(action_space))),
            "dataset_id": home.name if ID.fullmatch(home.name) else f"{_word(home.name)}-v0",
            "minari_version": "0.5.4" if _has_pictures(seen) else "0.5.0", "dataset_size": round(size / 1e6, 1),
            **about,
        }  # fmt: skip
        if spec is not None:
            metadata["env_spec"] = spec.to_json()
        if task is not None:
            metadata["gainstage_task"] = dict(task)
        (partial / METADATA).write_text(json.dumps(metadata), encoding="utf-8")
        partial.chmod(0o755)
        partial.rename(home / "data")
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return home / "data"


def refuse(home: Path, format: str) -> None:
    """Say beforehand what `write_episodes` would not write.

    Raises:
        ValueError: an unknown format, or there is a data set already.
        MissingExtra: a package that the format needs is not installed.
    """
    require("gymnasium", extra="control")
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if format == "hdf5":
        require("h5py", extra="control")
    if (home / "data").exists() or (home / METADATA).exists():
        raise ValueError(f"{home} holds a data set already: choose another name, or delete it")


def _word(name: str) -> str:
    return re.sub(r"[^-_\w]", "-", name) or "episodes"


def _has_pictures(space: Any) -> bool:
    from gymnasium import spaces

    return any(map(is_picture, space.spaces.values() if isinstance(space, spaces.Dict) else [space]))


def _named(space: Space) -> Space:
    if not isinstance(space, Box):
        return space
    return replace(space, pieces={piece_name(name): piece for name, piece in space.pieces.items()})


def _checked(number: int, episode: Episode) -> Episode:
    """An episode that can be read again."""
    steps = len(episode.rewards)
    fits = len(episode.obs) == steps + 1 and len(episode.actions) == steps
    if not steps or not fits or len(episode.terminated) != steps or len(episode.truncated) != steps:
        raise ValueError(
            f"episode {number}: {len(episode.obs)} observations, {len(episode.actions)} actions, {steps} rewards; "
            "there has to be at least one step, and one observation more than steps"
        )
    for name in ("obs", "rewards", "actions"):
        if not bool(torch.isfinite(getattr(episode, name).float()).all()):
            raise ValueError(f"episode {number}: {name} holds numbers that are not finite")
    return episode


def _columns(episode: Episode, space: Space) -> dict[str, Any]:
    """What is written of an episode, in numpy; parts of a dictionary by name."""
    return {
        "observations": in_pieces(_named(space), episode.obs.cpu().numpy()),
        "actions": episode.actions.cpu().numpy(),
        "rewards": episode.rewards.cpu().numpy().astype(np.float64),
        "terminations": episode.terminated.cpu().numpy(),
        "truncations": episode.truncated.cpu().numpy(),
        "infos": {name: _edge(value.cpu().numpy()) for name, value in episode.info.items()},
    }


def _edge(values: np.ndarray) -> np.ndarray:
    """Facts of steps with one for the reset before them, as Minari has them."""
    return np.concatenate((np.zeros_like(values[:1]), values))


def _to_hdf5(folder: Path, format: str, episodes: Iterable[Episode], seen: Space) -> list[int]:
    h5py = require("h5py", extra="control")
    counts: list[int] = []
    with h5py.File(folder / HDF5, "w", track_order=True) as file:
        for number, episode in enumerate(episodes):
            columns = _columns(_checked(number, episode), seen)
            group = file.create_group(f"episode_{number}")
            group.attrs["id"], group.attrs["total_steps"] = number, len(episode)
            if episode.seed is not None:
                group.attrs["seed"] = episode.seed
            for name, value in columns.items():
                if not isinstance(value, dict):
                    group.create_dataset(name, data=value)
                elif value:
                    sub = group.create_group(name)
                    for key, part in value.items():
                        sub.create_dataset(key, data=part)
            counts.append(len(episode))
    return counts


def _to_arrow(folder: Path, format: str, episodes: Iterable[Episode], seen: Space) -> list[int]:
    import pyarrow as pa
    from pyarrow import feather, parquet

    def listed(value: np.ndarray) -> Any:
        if value.ndim == 1:
            return pa.array(value)
        flat = value.reshape(len(value), -1)
        return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])

    def struct(parts: Mapping[str, np.ndarray]) -> Any:
        return pa.StructArray.from_arrays([listed(part) for part in parts.values()], list(parts))

    counts: list[int] = []
    for number, episode in enumerate(episodes):
        columns = _columns(_checked(number, episode), seen)
        obs, facts = columns.pop("observations"), columns.pop("infos")
        table = {"observations": struct(obs) if isinstance(obs, dict) else listed(obs)}
        # the row of the last observation has no action: zeros stand there
        table |= {name: listed(np.concatenate((v, np.zeros_like(v[:1])))) for name, v in columns.items()}
        if facts:
            table["infos"] = struct(facts)
        place = folder / str(number)
        place.mkdir()
        if format == "parquet":
            parquet.write_table(pa.table(table), place / "part-0.parquet")
        else:
            feather.write_feather(pa.table(table), str(place / "part-0.arrow"), compression="uncompressed")
        about = {"id": number, "total_steps": len(episode)} | ({} if episode.seed is None else {"seed": episode.seed})
        (place / METADATA).write_text(json.dumps(about), encoding="utf-8")
        counts.append(len(episode))
    return counts
