"""The folder of a run: what was asked, on what it ran, what was measured, what was sampled."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock
import yaml

from gainstage.tracking.environment import snapshot
from gainstage.tracking.files import append, replace_json, replace_text
from gainstage.tracking.secrets import redact
from gainstage.types import Batch

METRICS = "metrics.jsonl"
STATUS = "status.json"
STATES = ("running", "finished", "stopped", "failed")


class RunExists(ValueError):
    """The folder of a run is taken, or in use; the message says what to do."""


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics. A last line that a kill cut off is left out.

    Raises:
        ValueError: a line before the last one is not JSON, or a line is no row.
    """
    path = Path(folder) / METRICS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number} is not JSON ({error.msg}): changed by hand?") from None
        if not isinstance(rows[-1], dict) or not isinstance(rows[-1].get("iteration"), int):
            raise ValueError(f"{path}, line {number} is no row of metrics: changed by hand?")
    return rows


def read_status(folder: str | Path) -> dict[str, Any]:
    """State, iteration and times of a run; empty where there is none, or where a power cut has left none to read."""
    path = Path(folder) / STATUS
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class RunFolder:
    """Writes `runs/<name>/`. One process holds a folder at a time; the hold ends with the process.

    `recipe.yaml` (as resolved), `environment.json`, `metrics.jsonl` (one line an iteration), `rollouts/000012.parquet`,
    `status.json`; checkpoints go to `checkpoints/`. Make one with `create` or `resume`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = filelock.FileLock(path / ".lock", timeout=0)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            owner = read_status(path).get("pid", "unknown")
            raise RunExists(f"{path} is being written by process {owner}; wait for it or give another name") from None
        self._started = time.time()
        self._pending: list[str] = []
        self._failures = 0
        self._told: set[str] = set()
        self._status = read_status(path)
        self._status_at = 0.0

    @classmethod
    def create(
        cls, name: str | None = None, *, parent: str | Path = "runs", stem: str = "run", clean: bool = False
    ) -> RunFolder:
        """A new folder.

        Args:
            name: of the run; a path where it holds a slash. Absent: `<stem>-001`, the next number that is free.
            parent: folder of all runs.
            stem: what a made-up name begins with, e.g. "grpo-addition".
            clean: delete a run of that name first.

        Raises:
            RunExists: the name is taken, or its run is still being written.
        """
        parent = Path(parent)
        if name is None:
            path = _claim(parent, stem)
        else:
            path = Path(name) if "/" in name or os.sep in name else parent / name
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                if not clean:
                    raise RunExists(f"{path} exists: --resume continues it, --clean starts anew, --name names another")
                _delete(path)
            path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        folder.status("running", iteration=0, started=_now())
        return folder

    @classmethod
    def resume(cls, path: str | Path, iteration: int) -> RunFolder:
        """Open a run that was cut off, to go on after a checkpoint; what was written after that is taken back.

        Args:
            iteration: iterations that the checkpoint holds. Rows and rollouts of later ones are removed: they
                will be made again.

        Raises:
            RunExists: there is no such run, or another process writes it.
        """
        folder = cls.hold(path)
        folder.rewind(iteration)
        return folder

    @classmethod
    def hold(cls, path: str | Path) -> RunFolder:
        """The folder of a run that is there, held by this process, nothing in it changed.

        Raises:
            RunExists: there is no such run, or another process writes it.
        """
        path = Path(path)
        if not (path / STATUS).exists():
            raise RunExists(f"{path} is not the folder of a run: {STATUS} is missing")
        return cls(path)

    def rewind(self, iteration: int) -> None:
        """Take back the rows and rollouts of iterations from `iteration` on, and say that the run goes on."""
        kept = [row for row in read_metrics(self.path) if row["iteration"] < iteration]
        replace_text(self.path / METRICS, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))
        for part in (self.path / "rollouts").glob("*.parquet"):
            if part.stem.isdecimal() and int(part.stem) >= iteration:
                part.unlink()
        if kept:
            self._started -= kept[-1].get("seconds", 0.0)
        self.status("running", iteration=iteration)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go."""
        return self.path / "checkpoints"

    def write_recipe(self, recipe: Mapping[str, Any]) -> Path:
        """The recipe with everything it inherits, as YAML; secrets masked."""
        text = yaml.safe_dump(redact(recipe), sort_keys=False, allow_unicode=True, width=120)
        replace_text(self.path / "recipe.yaml", text)
        return self.path / "recipe.yaml"

    def write_environment(self, argv: Sequence[str] | None = None) -> Path:
        """The environment of the first start; every later start is added under `resumed`."""
        path = self.path / "environment.json"
        now = snapshot(argv)
        if path.exists():
            first = _environment(path)
            first.setdefault("resumed", []).append(now)
            now = first
        replace_json(path, now)
        return path

    def log(self, iteration: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Append one line. Nothing is smoothed or left out.

        A metric None does not apply and is left out; one that is not finite is written as null and named under
        `nonfinite`. The line is handed to the system at once, so a killed process loses none. Where the disk is full
        lines wait, in order, for the next call.

        Args:
            iteration: counted from 0. An evaluation belongs to the iteration that it follows (before the first
                one: -1) and is logged before the checkpoint of that iteration is written.

        Returns:
            The row as written.
        """
        row: dict[str, Any] = {"iteration": int(iteration), "seconds": round(time.time() - self._started, 3)}
        bad = []
        for name, value in metrics.items():
            if value is None:
                continue
            number = float(value)
            if not math.isfinite(number):
                bad.append(name)
            row[name] = None if not math.isfinite(number) else int(number) if _is_whole(value) else number
        if bad:
            row["nonfinite"] = bad
        if self._failures:
            row["failures/log"] = self._failures
            self._failures = 0
        self._pending.append(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        with self._tolerate(METRICS):
            append(self.path / METRICS, "".join(self._pending).encode())
            self._pending.clear()
        return row

    def write_rollouts(self, iteration: int, batch: Batch) -> Path:
        """The iteration's rows as `rollouts/000012.parquet`; see `tracking.rollouts.write_rollouts`."""
        from gainstage.tracking.rollouts import write_rollouts

        path = self.path / "rollouts" / f"{iteration:06d}.parquet"
        with self._tolerate("rollouts"):
            write_rollouts(path, batch, iteration=iteration)
        return path

    def status(self, state: str, **fields: Any) -> None:
        """Update `status.json`: the state, and whatever else is worth seeing in a list of runs.

        Calls that change no state are written once a second at most.

        Raises:
            ValueError: an unknown state.
        """
        if state not in STATES:
            raise ValueError(f"status: state must be one of {', '.join(STATES)}, got {state!r}")
        self._status.update(redact(fields))
        if state == self._status.get("state") and time.time() - self._status_at < 1:
            return
        self._status.update(state=state, pid=os.getpid(), updated=_now())
        self._status_at = time.time()
        with self._tolerate(STATUS):
            replace_json(self.path / STATUS, self._status, durable=False)

    @contextlib.contextmanager
    def _tolerate(self, what: str) -> Iterator[None]:
        """A record that cannot be written (full disk) is said and counted; it does not end the training."""
        try:
            yield
        except OSError as error:
            self._failures += 1
            if what not in self._told:
                self._told.add(what)
                warnings.warn(f"{self.path}: {what} not written ({error}); training goes on", stacklevel=3)
        else:
            self._told.discard(what)

    def close(self, state: str | None = None, **fields: Any) -> None:
        """Say how the run ended and let the folder go."""
        if state is not None:
            self.status(state, **fields)
        if self._pending:
            with self._tolerate(METRICS):
                append(self.path / METRICS, "".join(self._pending).encode())
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close("finished" if self._status.get("state") == "running" else None)  # `stopped` was said before
        elif isinstance(error, KeyboardInterrupt):
            self.close("stopped", message="interrupted from the keyboard")
        else:
            self.close("failed", message=f"{type(error).__name__}: {error}")


def _claim(parent: Path, stem: str) -> Path:
    """Make the next free `<stem>-NNN`; two processes never get the same one."""
    stem = re.sub(r"[^\w.+-]+", "-", stem).strip("-.") or "run"
    parent.mkdir(parents=True, exist_ok=True)
    taken = [int(found[1]) for p in parent.iterdir() if (found := re.fullmatch(re.escape(stem) + r"-(\d+)", p.name))]
    for number in itertools.count(max(taken, default=0) + 1):
        path = parent / f"{stem}-{number:03d}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable")


def _delete(path: Path) -> None:
    """Delete the folder of a run, and nothing else."""
    if not (path / STATUS).is_file():
        raise RunExists(f"{path} is not the folder of a run ({STATUS} is missing); --clean will not delete it")
    RunFolder(path).close()
    shutil.rmtree(path)


def _environment(path: Path) -> dict[str, Any]:
    """What was written; nothing where it cannot be read any more, which must not keep a run from going on."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("resumed", []), list) else {}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
