"""What was sampled, as Parquet: one file an iteration, one row a context."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gainstage.types import Batch, Stop, declared

NUMBERS = ("group", "sample", "episode", "version", "reward", "temperature", "success")
"""Row columns that are kept as they are."""

STEPS = {
    "tokens": "int32",
    "actions": None,
    "author": "int8",
    "turn": "int16",
    "mask": "bool",
    "rewards": "float32",
    "advantages": "float32",
    "returns": "float32",
    "values": "float32",
    "behaviour_logprobs": "float32",
    "old_logprobs": "float32",
    "ref_logprobs": "float32",
    "entropy": "float32",
    "weight": "float32",
}
"""Step columns that are kept, as lists over the real positions of the row, prompt included."""

TEXTS = ("prompt", "completion")
"""Keys of `info` that become columns of their own; the rest is kept as JSON under `info`."""


def write_rollouts(
    path: str | Path, batch: Batch, *, iteration: int, infos: Sequence[dict[str, Any]] | None = None
) -> Path:
    """Write the rows of a batch, best after credit so that the advantages are there.

    Columns: `iteration`, `problem` (id), `answer` (gold, JSON), `prompt`, `completion` (texts), the row columns of
    `NUMBERS`, `stop`, `parts` (map of reward parts; null where one does not apply), `turn_rewards`, the step
    columns of `STEPS` as lists that all have the row's length, `info` (JSON). What the batch has not is left out.

    Args:
        path: of the file; it appears whole or not at all.
        infos: what is only looked at, a row each; `batch.info` where absent.

    Raises:
        ValueError: `infos` and the batch differ in rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    infos = batch.info if infos is None else infos
    if infos and len(infos) != batch.rows:
        raise ValueError(f"write_rollouts: {len(infos)} infos for {batch.rows} rows")
    table = pa.table(_columns(batch, list(infos) or [{}] * batch.rows, iteration))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        pq.write_table(table, temporary, compression="zstd")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return path


def read_rollouts(run: str | Path, iteration: int | None = None) -> Any:
    """The rollouts of one iteration, or of all of them, as a `pyarrow.Table`.

    Raises:
        FileNotFoundError: there are none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(run) / "rollouts"
    parts = sorted(folder.glob("*.parquet")) if iteration is None else [folder / f"{iteration:06d}.parquet"]
    if not parts or not parts[0].exists():
        raise FileNotFoundError(f"{folder} holds no rollouts" + ("" if iteration is None else f" of {iteration}"))
    return pa.concat_tables([pq.read_table(part) for part in parts], promote_options="default")


def _columns(batch: Batch, infos: list[dict[str, Any]], iteration: int) -> dict[str, Any]:
    import pyarrow as pa

    rows = batch.rows
    columns: dict[str, Any] = {"iteration": pa.array([iteration] * rows, pa.int32())}
    problems = batch.problems or [None] * rows
    columns["problem"] = pa.array([None if p is None else p.id for p in problems], pa.string())
    columns["answer"] = pa.array([None if p is None else _json(p.answer) for p in problems], pa.string())
    for key in TEXTS:
        columns[key] = pa.array([_text(info.get(key)) for info in infos], pa.string())
    for name in NUMBERS:
        if name in batch:
            columns[name] = pa.array([_number(value) for value in batch[name].tolist()])
    if "stop" in batch:
        columns["stop"] = pa.array([str(Stop.from_code(int(code))) for code in batch["stop"].tolist()], pa.string())
    columns["parts"] = pa.array(_parts(batch), pa.map_(pa.string(), pa.float64()))
    if "turn_rewards" in batch:
        kept = batch["turn_mask"].bool().cpu()
        turns = [values[keep].tolist() for values, keep in zip(batch["turn_rewards"].cpu(), kept, strict=True)]
        columns["turn_rewards"] = pa.array(turns, pa.list_(pa.float32()))
    real = _real(batch)
    for name, kind in STEPS.items():
        if name in batch and real is not None and declared(name).kind == "step":
            columns[name] = _lists(batch[name].detach().cpu(), real, kind)
    rest = [{key: value for key, value in info.items() if key not in TEXTS} for info in infos]
    columns["info"] = pa.array([_json(info) if info else None for info in rest], pa.string())
    return columns


def _real(batch: Batch) -> torch.Tensor | None:
    """`Bool "B T"`; with an axis of agents a position is real where it is for one of them."""
    if "mask" not in batch:
        return None
    real = batch.real().bool().cpu()
    return real if real.dim() == 2 else real.flatten(2).any(-1)


def _parts(batch: Batch) -> list[dict[str, float | None]]:
    names = [name for name in batch.columns if name.startswith("parts/")]
    values = {name.removeprefix("parts/"): batch[name].tolist() for name in names}
    return [{name: _number(column[row]) for name, column in values.items()} for row in range(batch.rows)]


def _lists(column: torch.Tensor, real: torch.Tensor, kind: str | None) -> Any:
    """Positions that are real, as a list array; a trailing axis stays a list inside the list."""
    import pyarrow as pa

    rows = [values[keep] for values, keep in zip(column, real, strict=True)]
    if kind is None or column.dim() > 2:
        return pa.array([row.tolist() for row in rows])
    flat = torch.cat(rows) if rows else column.new_zeros(0)
    lengths = torch.tensor([0] + [len(row) for row in rows]).cumsum(0)
    values = flat.to(torch.float32) if kind == "float32" else flat
    inner = pa.array(values.numpy()).cast(getattr(pa, kind + "_" if kind == "bool" else kind)())
    return pa.ListArray.from_arrays(pa.array(lengths.numpy(), pa.int32()), inner)


def _number(value: Any) -> Any:
    """None for NaN, which stands for "does not apply"."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _text(value: Any) -> str | None:
    """Texts as UTF-8 can hold them: half a surrogate pair becomes a question mark."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else _json(value)


def _json(value: Any) -> str | None:
    return None if value is None else _text(json.dumps(value, ensure_ascii=False, default=str))
