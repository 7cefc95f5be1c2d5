"""Where metrics go besides the run's own folder: TensorBoard, Trackio, Weights & Biases."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gainstage.ops.extras import require
from gainstage.tracking.folder import read_status
from gainstage.tracking.names import ALIASES, spelling
from gainstage.tracking.secrets import redact


class Sink(Protocol):
    """Takes a row of numbers at a time."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def identity(folder: Path) -> str:
    """A name that stays through resumes and is new when a run of the same name is started anew elsewhere or later."""
    start = f"{folder.resolve()} {read_status(folder).get('started', '')}"
    return f"{folder.name}-{hashlib.sha256(start.encode()).hexdigest()[:6]}"


class TensorBoard:
    """Event files in `<run>/tensorboard`."""

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        require("tensorboard", extra="track")
        self._writer = require("torch.utils.tensorboard", extra="track").SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Trackio:
    """A local Trackio project; `trackio show` opens it."""

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        self._trackio = require("trackio", extra="track")
        self._trackio.init(project="gainstage", name=identity(folder), config=redact(dict(recipe)), resume="allow")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._trackio.log(dict(metrics), step=step)

    def close(self) -> None:
        self._trackio.finish()


class WandB:
    """Weights & Biases; the `WANDB_*` variables hold (project, mode, key)."""

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        wandb = require("wandb", extra="track")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "gainstage"), id=identity(folder), name=folder.name,
            dir=str(folder), config=redact(dict(recipe)), resume="allow",
        )  # fmt: skip

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


SINKS: dict[str, Callable[[Path, Mapping[str, Any]], Sink]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WandB,
}


class Sinks:
    """All sinks of a run. One that fails is said, left out from then on, and ends no training.

    Args:
        names: out of `SINKS`.
        folder: of the run.
        recipe: shown as the run's configuration, secrets masked.
        log_names: spelling of metric names: None (ours), `trl`, `verl` or `sb3`.

    Raises:
        ValueError: an unknown sink or spelling.
        MissingExtra: the package is not installed; the message carries the pip command.
    """

    def __init__(
        self, names: Sequence[str], folder: str | Path, recipe: Mapping[str, Any], log_names: str | None = None
    ) -> None:
        if unknown := [name for name in names if name not in SINKS]:
            raise ValueError(f"unknown tracker {unknown[0]!r}; known are {', '.join(SINKS)}")
        if log_names not in (None, "gainstage", *ALIASES):
            raise ValueError(f"log_names must be one of gainstage, {', '.join(ALIASES)}; got {log_names!r}")
        self._spelling = log_names
        self._open: dict[str, Sink] = {name: SINKS[name](Path(folder), recipe) for name in names}

    def log(self, row: Mapping[str, Any]) -> None:
        """A row as `RunFolder.log` returns it; `iteration` is the step."""
        numbers = {
            spelling(name, self._spelling): value
            for name, value in row.items()
            if name != "iteration" and isinstance(value, int | float) and math.isfinite(value)
        }
        self._each(lambda sink: sink.log(row["iteration"], numbers))

    def close(self) -> None:
        self._each(lambda sink: sink.close())
        self._open.clear()

    def _each(self, act: Callable[[Sink], None]) -> None:
        for name, sink in list(self._open.items()):
            try:
                act(sink)
            except Exception as error:  # whatever a tracker's client raises, the run goes on
                del self._open[name]
                warnings.warn(f"{name} is left out from here on: {type(error).__name__}: {error}", stacklevel=3)
