"""What a phase hands to the next one, as files: rows become Parquet, everything else stays with the state."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

TABLE = "__table__"


def to_tables(artifacts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Artifacts with each list of rows replaced by the name of its file, and the files: name -> Parquet.

    A row is a mapping with text keys; all rows have the same ones. What Parquet would give back changed in value or
    type (numbers of mixed kind, tensors) is left as it is.
    """
    rest: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for name, value in artifacts.items():
        data = _table(value)
        rest[name] = value
        if data is not None:
            file = f"{quote(name, safe='')}.parquet"
            rest[name], files[file] = {TABLE: file}, data
    return rest, files


def from_tables(artifacts: Mapping[str, Any], read: Callable[[str], bytes]) -> dict[str, Any]:
    """The inverse: `read` gives the bytes of a file by its name.

    Raises:
        ValueError: a file that is no Parquet.
    """
    import pyarrow.parquet as pq

    return {
        name: pq.read_table(io.BytesIO(read(value[TABLE]))).to_pylist()
        if isinstance(value, Mapping) and set(value) == {TABLE}
        else value
        for name, value in artifacts.items()
    }


def _table(value: Any) -> bytes | None:
    """Parquet of a list of rows that comes back as it was; None for anything else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) and row for row in value)
    if not rows or any(list(row) != list(value[0]) for row in value):
        return None
    try:
        table = pa.Table.from_pylist(value)
        if json.dumps(table.to_pylist()) != json.dumps(value):
            return None
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()
