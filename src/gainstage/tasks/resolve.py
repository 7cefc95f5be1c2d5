"""Short names of tasks: `jsonl:PATH`, `hf:ID`, `rg:NAME`, `gym:ID`, `minari:PATH`, a file, or a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HUB_NAMES = {
    "openai/gsm8k": "gsm8k",
    "gsm8k": "gsm8k",
    "huggingfaceh4/math-500": "math500",
    "openai/openai_humaneval": "humaneval",
    "openai_humaneval": "humaneval",
}
"""Hub ids of data sets that have a task of their own, with the right verifier."""

_FILES = {".jsonl": "jsonl", ".jsonl.gz": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".json": "dataset"}


def resolve(spec: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Registry name and settings of what a recipe or command line calls a task.

    `jsonl:PATH`, `parquet:PATH`, `dataset:PATH`; `hf:OWNER/NAME` or `hf:OWNER/NAME:CONFIG`; `rg:NAME`
    (reasoning-gym); `gym:ID` (Gymnasium); `pettingzoo:ID`; `minari:PATH` (recorded episodes); a path that ends in a
    known suffix; a registered name; or a mapping of one of these to settings.

    Raises:
        ValueError: an empty name after the colon, or a mapping that is not `{name: settings}`.
    """
    if isinstance(spec, Mapping):
        if len(spec) != 1:
            raise ValueError(f"task: write it as a name or as {{name: settings}}, got the keys {sorted(spec)}")
        (name, extra), *_ = spec.items()
        if extra is not None and not isinstance(extra, Mapping):
            raise ValueError(f"task.{name}: the settings must be a mapping, got {extra!r}")
        found, settings = resolve(str(name))
        return found, settings | dict(extra or {})
    scheme, colon, rest = spec.partition(":")
    if colon and scheme in _SCHEMES:
        if not rest:
            raise ValueError(f"task {spec!r}: nothing after the colon; write it as {_SCHEMES[scheme]}")
        return _from_scheme(scheme, rest)
    for suffix, kind in _FILES.items():
        if spec.endswith(suffix):
            return kind, {"path": spec}
    return spec, {}


_SCHEMES = {
    "jsonl": "jsonl:PATH",
    "parquet": "parquet:PATH",
    "dataset": "dataset:PATH",
    "hf": "hf:OWNER/NAME or hf:OWNER/NAME:CONFIG",
    "rg": "rg:NAME",
    "gym": "gym:ID, for instance gym:CartPole-v1",
    "minari": "minari:PATH",
    "pettingzoo": "pettingzoo:FAMILY/NAME, for instance pettingzoo:sisl/pursuit_v5",
}


def _from_scheme(scheme: str, rest: str) -> tuple[str, dict[str, Any]]:
    if scheme == "rg":
        return "rg", {"dataset": rest}
    if scheme in ("gym", "pettingzoo"):
        return {"gym": "gymnasium"}.get(scheme, scheme), {"id": rest}
    if scheme != "hf":
        return scheme, {"path": rest}
    name, _, config = rest.partition(":")
    if name.lower() in HUB_NAMES and config in ("", "main", "default", HUB_NAMES[name.lower()]):
        return HUB_NAMES[name.lower()], {}
    return "dataset", {"path": name} | ({"config": config} if config else {})
