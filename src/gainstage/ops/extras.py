"""Optional packages: one place that says how to get them."""

from __future__ import annotations

import importlib
import importlib.util
import shlex
from pathlib import Path
from types import ModuleType


class MissingExtra(ImportError):
    """An optional package is not installed; the message carries the pip command."""


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or say in one line which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtra(f"{module} is not installed: pip install {source(extra)}") from None


def source(extra: str) -> str:
    """What pip is to install for an extra, quoted for a shell: this clone, or the published package."""
    root = Path(__file__).parents[3]
    if (root / "pyproject.toml").is_file() and (root / "src" / "gainstage").is_dir():
        return "-e " + shlex.quote(f"{root}[{extra}]")
    return shlex.quote(f"gainstage[{extra}]")


def available(module: str) -> bool:
    """Whether `module` can be found, without importing it."""
    return importlib.util.find_spec(module) is not None
