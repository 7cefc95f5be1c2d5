"""Optional packages: one place that says how to get them."""

from __future__ import annotations

import importlib
import importlib.util
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
        raise MissingExtra(f"{module} is not installed: pip install 'gainstage[{extra}]'") from None


def available(module: str) -> bool:
    """Whether `module` can be found, without importing it."""
    return importlib.util.find_spec(module) is not None
