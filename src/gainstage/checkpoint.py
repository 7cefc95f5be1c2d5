"""Checkpoints: written beside, checked by hash, renamed into place. Safetensors, JSON, Parquet; nothing is unpickled.

checkpoints/000120/  manifest.json   format, recipe fingerprint, versions, iteration, sha256 of every file
  models/<role>.safetensors          every role with weights; frozen ones are hard links after the first time
  state.json, state.safetensors      components, optimizers, meter, place in the schedule
  store/<name>-<start>-<stop>.safetensors   steps of a replay: written once, then hard links
  artifacts/<name>.parquet           rows that one phase hands to the next
  hf/                                the trained policy as any engine loads it
latest                               name of the newest one, written last
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors

from gainstage.tracking import segments
from gainstage.tracking.artifacts import from_tables, to_tables
from gainstage.tracking.files import writing
from gainstage.tracking.trees import pack, unpack
from gainstage.types.history import History, Segment

FORMAT, STORE = 2, "store"
READ = (1, FORMAT)
"""Formats that can be read; in the first one, replays were tensors of the state."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read; the message names the file and what is wrong."""


def write_file(path: Path, data: bytes) -> str:
    """Write and fsync; returns the sha256. An error names the file."""
    try:
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    return hashlib.sha256(data).hexdigest()


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write beside and rename: readers see the old or the new file, never a part."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_file(scratch, data)
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    sync_folder(path.parent)


def save(
    root: Path, state: Mapping[str, Any], models: Any, *, fingerprint: str, policy: Any = None, keep: int = 2
) -> Path:
    """Write a checkpoint named after its iteration; the one before stays until this one is complete.

    Args:
        root: the `checkpoints` folder.
        models: the run's roles (`state_dict`, `moving`).
        policy: handle whose Hugging Face folder is written as `hf/`.
        keep: how many are kept.

    Raises:
        OSError: the disk refused; nothing that was there is changed and no partial folder stays.
    """
    target = root / f"{state['iteration']:06d}"
    with writing(target, lambda: remedy(root)):
        root.mkdir(parents=True, exist_ok=True)
        scratch = root / f".{target.name}.{os.getpid()}.tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            written = _fill(scratch, state, models, policy, fingerprint, before=latest(root))
            _swap(scratch, target)
            sync_folder(root)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        for history, files in written:
            history.written[:] = [replace(found, file=target / STORE / found.file.name) for found in files]
    with writing(root / "latest", lambda: remedy(root)):
        replace_file(root / "latest", target.name.encode())
    for old in complete(root)[:-keep]:
        with contextlib.suppress(OSError):
            _remove(old)
    return target


def _swap(scratch: Path, target: Path) -> None:
    """Put a folder in place. One of that name is put aside first: a kill in between leaves it for `clean` to find."""
    aside = target.with_name(f".{target.name}.aside")
    if target.exists():
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(target, aside)
    try:
        os.rename(scratch, target)
    except BaseException:
        if aside.exists():
            os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Delete a checkpoint; there is never a half of one under its name."""
    doomed = folder.with_name(f".{folder.name}.old.tmp")
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remedy(root: Path) -> str:
    """What is left after something could not be written, and how to go on."""
    good = latest(root)
    if good is None:
        return "there is no earlier checkpoint; make room and start again"
    return f"the last checkpoint, {good}, is intact: make room and go on with gainstage train --resume {root.parent}"


def _fill(
    scratch: Path, state: Mapping[str, Any], models: Any, policy: Any, fingerprint: str, before: Path | None
) -> list[tuple[History, list[Segment]]]:
    """Every file of a checkpoint, the manifest last; gives the histories of the state and the files of each."""
    hashes: dict[str, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    written: list[tuple[History, list[Segment]]] = []
    artifacts, tables = to_tables(state.get("artifacts", {}))
    for folder in ("models", "artifacts") if tables else ("models",):
        (scratch / folder).mkdir(parents=True)
    for file, data in tables.items():
        hashes[f"artifacts/{file}"] = write_file(scratch / "artifacts" / file, data)

    def keep(path: str, history: History) -> dict[str, Any]:
        (scratch / STORE).mkdir(exist_ok=True)
        stem = quote(path.strip("/").replace("/", "."), safe="")
        files = segments.write(history, scratch / STORE / stem, write_file)
        hashes.update({f"{STORE}/{found.file.name}": found.sha256 for found in files})
        written.append((history, files))
        return segments.to_plain(history, files)

    packed = pack({**state, "artifacts": artifacts}, tensors, keep=keep)
    hashes["state.json"] = write_file(scratch / "state.json", json.dumps(packed).encode())
    hashes["state.safetensors"] = write_file(scratch / "state.safetensors", dump_tensors(tensors))
    moving = set(models.moving())
    if before is not None and before.name == f"{state['iteration']:06d}":
        before = None  # it is about to be replaced
    for role, found in models.state_dict().items():
        name = f"models/{role}.safetensors"
        if role not in moving and before is not None and _link(before, scratch, name, hashes):
            continue
        plain = {k: v.detach().cpu().contiguous().clone() for k, v in found.items()}
        hashes[name] = write_file(scratch / name, dump_tensors(plain))
    if policy is not None:
        policy.save(scratch / "hf")
        for path in sorted((scratch / "hf").rglob("*")):
            if path.is_file():
                hashes[str(path.relative_to(scratch))] = write_file(path, path.read_bytes())
    manifest = {
        "format": FORMAT, "fingerprint": fingerprint, "iteration": state["iteration"], "sha256": hashes,
        "torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }  # fmt: skip
    write_file(scratch / "manifest.json", json.dumps(manifest, indent=1).encode())
    for place in sorted({(scratch / name).parent for name in hashes} | {scratch}, reverse=True):
        sync_folder(place)
    return written


def _link(before: Path, scratch: Path, name: str, hashes: dict[str, str]) -> bool:
    """Hard-link a file that has not changed; False where the file system cannot."""
    try:
        known = json.loads((before / "manifest.json").read_text())["sha256"][name]
        os.link(before / name, scratch / name)
    except (OSError, KeyError, ValueError):
        return False
    hashes[name] = known
    return True


def complete(root: Path) -> list[Path]:
    """All finished checkpoints, oldest first."""
    if not root.is_dir():
        return []
    return sorted(p for p in root.iterdir() if p.name.isdigit() and (p / "manifest.json").is_file())


def latest(root: Path) -> Path | None:
    """The newest finished checkpoint."""
    found = complete(root)
    return found[-1] if found else None


def clean(root: Path) -> None:
    """Remove what a killed writer left behind, and put back what it had put aside."""
    for stray in root.glob(".*.tmp") if root.is_dir() else ():
        shutil.rmtree(stray, ignore_errors=True) if stray.is_dir() else stray.unlink(missing_ok=True)
    for aside in root.glob(".*.aside") if root.is_dir() else ():
        target = root / aside.name.split(".")[1]
        shutil.rmtree(aside, ignore_errors=True) if target.exists() else os.rename(aside, target)


def verify(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose every file has the recorded hash.

    Raises:
        CheckpointError: a missing, truncated or changed file, or a format of another version.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / 'manifest.json'}: unreadable ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("format") not in READ:
        raise CheckpointError(
            f"{folder}: checkpoint format {manifest.get('format') if isinstance(manifest, dict) else '?'}, "
            f"this version reads {' and '.join(map(str, READ))}"
        )
    for name, wanted in manifest["sha256"].items():
        try:
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise CheckpointError(f"{folder / name}: {error.strerror}") from None
        if found != wanted:
            raise CheckpointError(f"{folder / name}: its content is not what was written (sha256 differs)")
    return manifest


def load(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """State, weights by role and manifest of a verified checkpoint.

    Raises:
        CheckpointError: see `verify`.
    """
    manifest = verify(folder)
    try:
        tensors = load_tensors((folder / "state.safetensors").read_bytes())
        files = {Path(name).name: known for name, known in manifest["sha256"].items() if name.startswith(f"{STORE}/")}
        state = unpack(
            json.loads((folder / "state.json").read_text()),
            tensors,
            lambda plain: segments.from_plain(plain, folder / STORE, files),
        )
        state["artifacts"] = from_tables(
            state.get("artifacts", {}), lambda file: (folder / "artifacts" / Path(file).name).read_bytes()
        )
        weights = {
            path.stem: load_tensors(path.read_bytes()) for path in sorted((folder / "models").glob("*.safetensors"))
        }
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise CheckpointError(f"{folder}: {error}") from None
    return state, weights, manifest


def newest_good(root: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and a complaint for each newer one that does not."""
    complaints = []
    for folder in reversed(complete(root)):
        try:
            verify(folder)
        except CheckpointError as error:
            complaints.append(str(error))
        else:
            return folder, complaints
    return None, complaints
