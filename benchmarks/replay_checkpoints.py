"""What a checkpoint of a full replay costs, and how much memory the replay takes: a million steps of HalfCheetah.

    ./gs python benchmarks/replay_checkpoints.py
    ./gs python benchmarks/replay_checkpoints.py --steps 1000000 --new 10000 --rounds 5 --folder /somewhere/on/a/disk

Each round adds `--new` steps and saves twice: with the ring as tensors of the state, so that all of it is written, and
as a history, of which later checkpoints write what is new. The two take turns. Bytes are those of files that were not
there before. Peaks are of the process's resident memory, over what it had before.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gainstage import checkpoint
from gainstage.store.replay import Replay
from gainstage.types import Batch

OBS, ACTIONS, FRAGMENT = 17, 6, 1000
MB = 1e6


class NoRoles:
    """A run without weights: the replay is what is measured."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def moving(self) -> list[str]:
        return []


def fragment(steps: int) -> Batch:
    obs = torch.randn(1, steps + 1, OBS)
    flags = torch.zeros(1, steps, dtype=torch.bool)
    return Batch({
        "obs": obs, "next_obs": obs[:, 1:], "actions": torch.randn(1, steps, ACTIONS), "rewards": torch.randn(1, steps),
        "terminated": flags, "cut": flags, "mask": ~flags,
    })  # fmt: skip


def fill(store: Replay, steps: int) -> None:
    for _ in range(steps // FRAGMENT):
        store.add(fragment(FRAGMENT), None)


def memory(what: str) -> float:
    """Resident memory in MB: `VmRSS` now, `VmHWM` at its peak since the last `forget_peak`."""
    with open("/proc/self/status") as file:
        return next(float(line.split()[1]) * 1024 / MB for line in file if line.startswith(what))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def measured(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and MB of memory that it took for a while."""
    forget_peak()
    before, started = memory("VmRSS"), time.perf_counter()
    call()
    return time.perf_counter() - started, memory("VmHWM") - before


def inodes(root: Path) -> dict[int, int]:
    return {path.stat().st_ino: path.stat().st_size for path in root.rglob("*") if path.is_file()}


def whole(store: Replay) -> dict[str, Any]:
    """The state with the ring as tensors."""
    state = store.state_dict()
    del state["steps"]
    filled = min(store.clock, store.length)
    return {**state, "columns": {name: ring[:filled] for name, ring in store.columns.items()}}


def grow(store: Replay, steps: int) -> None:
    """Fill an empty ring and say what it takes on the way."""
    start = memory("VmRSS")
    forget_peak()
    print("a ring that fills: resident memory, over that of the process before, and the bytes of the steps in it")
    done = 0
    for share in (0.01, 0.1, 0.5, 1.0):
        wanted = int(share * steps)
        fill(store, wanted - done)
        done = wanted
        held = store.row_bytes * len(store) / MB
        print(
            f"  {share:5.0%}: {memory('VmRSS') - start:7.1f} MB, peak {memory('VmHWM') - start:7.1f}, steps {held:7.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--new", type=int, default=10_000, help="steps between two checkpoints")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--on-disk", action="store_true", help="map the ring into a file")
    parser.add_argument(
        "--folder", default=None, help="where checkpoints go; the system's for temporary files if absent"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    home = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        store = Replay(capacity=options.steps, on_disk=str(home) if options.on_disk else False)
        store.add(fragment(FRAGMENT), None)  # what torch allocates once
        store = Replay(capacity=options.steps, on_disk=str(home) if options.on_disk else False)
        grow(store, options.steps)
        print(f"arrays of the whole ring: {store.nbytes / MB:.1f} MB")
        rows: dict[str, list[tuple[float, float, float]]] = {"whole": [], "segments": []}
        for number in range(options.rounds + 1):
            for name, state in (("whole", whole), ("segments", Replay.state_dict)):
                root = home / name
                known = inodes(root)

                def save(root: Path = root, state: Any = state, number: int = number) -> None:
                    tree = {"iteration": number, "parts": state(store)}
                    checkpoint.save(root, tree, NoRoles(), fingerprint="")

                seconds, peak = measured(save)
                new = sum(size for inode, size in inodes(root).items() if inode not in known) / MB
                rows[name].append((seconds, new, peak))
            fill(store, options.new)
        print(f"a checkpoint with {options.new} new steps, medians of {options.rounds} (first one, with all of it new)")
        for name, found in rows.items():
            first, rest = found[0], list(zip(*found[1:], strict=True))
            seconds, new, peak = (statistics.median(column) for column in rest)
            print(
                f"  {name:9}: {seconds:7.3f} s, {new:7.2f} MB written, {peak:6.1f} MB of memory "
                f"({first[0]:.2f} s, {first[1]:.1f} MB, {first[2]:.1f} MB)"
            )
        newest = checkpoint.latest(home / "segments")
        assert newest is not None
        again = Replay(capacity=options.steps)
        seconds, peak = measured(lambda: again.load_state_dict(checkpoint.load(newest)[0]["parts"]))
        print(f"  read again: {seconds:.2f} s, {peak:.1f} MB of memory for a ring of {again.nbytes / MB:.1f} MB")
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
