"""Rows of a data set: JSONL, JSON, Parquet, Arrow, folders of those, and the Hugging Face hub's cache.

A source names any of them; nothing is fetched unless `GAINSTAGE_ALLOW_HUB=1`. Only pyarrow is needed.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA_VARIABLE = "GAINSTAGE_DATA"
HUB_VARIABLE = "GAINSTAGE_ALLOW_HUB"
SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".json", ".json.gz", ".parquet", ".arrow")
SPLIT_WORDS = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
}  # fmt: skip
_METADATA = {"dataset_info.json", "dataset_dict.json", "state.json", "config.json", "package.json"}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class DataError(ValueError):
    """A data set that is missing or malformed; the message names file, line and column."""


@dataclass(frozen=True)
class Raw:
    """One row as read, and where it stands."""

    row: dict[str, Any]
    where: str


def data_dir() -> Path:
    """The local data folder: `GAINSTAGE_DATA`, or `~/.cache/gainstage/data`."""
    return Path(os.environ.get(DATA_VARIABLE) or "~/.cache/gainstage/data").expanduser()


def find_files(source: str, config: str | None = None) -> dict[str, list[Path]]:
    """Split name -> files, for a file, a folder, a path with `{split}`, or a hub id.

    Args:
        source: what to read.
        config: subset of a data set that has several (a folder inside it).

    Raises:
        DataError: nothing there; the message says where it was looked for and how to get it.
    """
    if "{split}" in source:
        return _placeholder(source)
    path = Path(source).expanduser()
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise DataError(f"{path}: unknown kind of file; known are {', '.join(SUFFIXES)}")
        return {_split_of(path) or "train": [path]}
    if path.is_dir():
        return _folder(path, config)
    if _HUB_ID.fullmatch(source) and not source.endswith(SUFFIXES):
        return _folder(hub_folder(source), config)
    local = data_dir() / source
    if not path.is_absolute() and local.exists():
        return find_files(str(local), config)
    looked = [path] if path.is_absolute() else [path.absolute(), local]
    raise DataError(f"no data set at {source}: looked for {' and '.join(map(str, looked))}")


def hub_folder(name: str) -> Path:
    """The local folder of a hub data set: the data folder first, then the caches, then (if allowed) the hub.

    Raises:
        DataError: it is in none of them, and fetching is not allowed.
    """
    owner, short = name.split("/")
    looked = [data_dir() / owner / short, data_dir() / short, *_cached(owner, short)]
    for folder in looked:
        if folder.is_dir():
            return folder
    if os.environ.get(HUB_VARIABLE) == "1":
        from huggingface_hub import snapshot_download

        kinds = [f"*{suffix}" for suffix in SUFFIXES]
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=kinds))
    raise DataError(
        f"data set {name} is not on this machine; looked in {', '.join(str(folder) for folder in looked)}. "
        f"Set {HUB_VARIABLE}=1 to fetch it from the hub, or run: "
        f"hf download {name} --repo-type dataset --local-dir {data_dir() / owner / short}"
    )


def _cached(owner: str, short: str) -> Iterator[Path]:
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"datasets--{owner}--{short}"
    reference = hub / "refs" / "main"
    if reference.is_file():
        yield hub / "snapshots" / reference.read_text().strip()
    else:
        yield hub
    yield Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets") / f"{owner}___{short}".lower()


def read_rows(files: Sequence[Path]) -> list[Raw]:
    """All rows of the files, in order.

    Raises:
        DataError: a file that cannot be read, a line that is no JSON object, or no row at all.
    """
    rows = [raw for file in files for raw in _read(file)]
    if not rows:
        raise DataError(f"no rows in {', '.join(str(file) for file in files)}")
    return rows


def _read(file: Path) -> Iterator[Raw]:
    name = file.name.removesuffix(".gz")
    if name.endswith((".parquet", ".arrow")):
        yield from _table(file)
    elif name.endswith(".json"):
        yield from _json(file)
    else:
        yield from _lines(file)


def _text(file: Path) -> str:
    try:
        data = gzip.decompress(file.read_bytes()) if file.name.endswith(".gz") else file.read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{file}:{line}: not UTF-8 text") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: cannot be read: {error}") from None


def _lines(file: Path) -> Iterator[Raw]:
    for number, line in enumerate(_text(file).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: no valid JSON at character {error.pos + 1}: {error.msg}") from None
        except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
            raise DataError(f"{where}: no readable JSON: {error}") from None
        yield Raw(_object(row, where), where)


def _json(file: Path) -> Iterator[Raw]:
    try:
        content = json.loads(_text(file))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # one object a line under the wrong ending
            yield from _lines(file)
            return
        raise DataError(f"{file}:{error.lineno}: no valid JSON at column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise DataError(f"{file}: no readable JSON: {error}") from None
    if isinstance(content, dict):
        lists = {key: value for key, value in content.items() if isinstance(value, list)}
        if len(lists) != 1:
            raise DataError(f"{file}: it must be a list of objects, or one list under a key; got {list(content)}")
        content = next(iter(lists.values()))
    if not isinstance(content, list):
        raise DataError(f"{file}: it must be a list of objects, got {type(content).__name__}")
    for index, row in enumerate(content):
        yield Raw(_object(row, f"{file}[{index}]"), f"{file}[{index}]")


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f"{where}: a row must be a JSON object, got {type(row).__name__}")
    return row


def _table(file: Path) -> Iterator[Raw]:
    import pyarrow
    import pyarrow.parquet

    try:
        if file.name.endswith(".parquet"):
            table = pyarrow.parquet.read_table(file, partitioning=None)
        else:
            with pyarrow.memory_map(str(file)) as mapped, pyarrow.ipc.open_stream(mapped) as stream:
                table = stream.read_all()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from None
    for index, row in enumerate(table.to_pylist()):
        yield Raw(row, f"{file} row {index}")


def _placeholder(source: str) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for word, split in SPLIT_WORDS.items():
        path = Path(source.replace("{split}", word)).expanduser()
        path = path if path.is_absolute() or path.exists() else data_dir() / path
        if path.is_file():
            found.setdefault(split, []).append(path)
    if not found:
        raise DataError(f"no file for any split at {source}: looked here and in {data_dir()}")
    return found


def _folder(folder: Path, config: str | None) -> dict[str, list[Path]]:
    """Files by split: a split is named by the file or its folder; the train split has the rest."""
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.name.endswith(SUFFIXES) and path.name not in _METADATA and not path.name.startswith((".", "cache-"))
        if path.is_file()
    )
    subsets: dict[str, list[Path]] = {}
    for path in files:
        parts = [p for p in path.relative_to(folder).parts[:-1] if p != "data" and p not in SPLIT_WORDS]
        subsets.setdefault(parts[0] if parts else "", []).append(path)
    if config is not None:
        if config not in subsets:
            raise DataError(f"{folder}: no subset {config!r}; it has {', '.join(sorted(subsets)) or 'no data file'}")
        files = subsets[config]
    elif len(subsets) > 1:
        chosen = next((name for name in ("default", "main", "") if name in subsets), None)
        if chosen is None:
            raise DataError(f"{folder} has several subsets: set config to one of {', '.join(sorted(subsets))}")
        files = subsets[chosen]
    if not files:
        raise DataError(f"{folder}: no data file in it ({', '.join(SUFFIXES)})")
    found: dict[str, list[Path]] = {}
    for path in files:
        found.setdefault(_split_of(path, folder) or "train", []).append(path)
    return found


def _split_of(path: Path, root: Path | None = None) -> str | None:
    """The split that the file's name or its folder (below `root`) states.

    A hub shard `NAME-00000-of-00001` states it exactly, so that `train_sft` and `train_prefs` stay apart.
    """
    shard = re.match(r"(.+?)-\d{5}-of-\d{5}", path.name)
    if shard and shard.group(1) != "data":
        return SPLIT_WORDS.get(shard.group(1).lower(), shard.group(1))
    folders = path.relative_to(root).parts[:-1] if root else ()
    for word in [*reversed(re.split(r"[^a-z]+", path.name.lower())), *(f.lower() for f in reversed(folders))]:
        if word in SPLIT_WORDS:
            return SPLIT_WORDS[word]
    return None
