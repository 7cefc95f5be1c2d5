"""Replays in checkpoints: each step is written once, shared, checked, and never lost to a kill."""

from __future__ import annotations

import builtins
import itertools
import os
from pathlib import Path

import pytest
import torch

from gainstage import checkpoint
from gainstage.registry import RecipeError
from gainstage.store.replay import Replay
from gainstage.tracking import segments
from gainstage.types import Batch


class Roles:
    def state_dict(self):
        return {"policy": {"w": torch.ones(2)}}

    def moving(self):
        return ["policy"]


def steps(first: int, count: int, copies: int = 2) -> Batch:
    number = (1000 * torch.arange(copies).unsqueeze(1) + torch.arange(first, first + count + 1)).float()
    flags = torch.zeros(copies, count, dtype=torch.bool)
    return Batch({
        "obs": number.unsqueeze(2), "next_obs": number[:, 1:].unsqueeze(2), "actions": number[:, :-1].long(),
        "rewards": number[:, :-1].clone(), "terminated": flags, "cut": flags.clone(), "mask": ~flags,
    })  # fmt: skip


def save(root: Path, store: Replay, iteration: int, keep: int = 2) -> Path:
    state = {"iteration": iteration, "parts": {"main": {"store.replay": store.state_dict()}}}
    return checkpoint.save(root, state, Roles(), fingerprint="f", keep=keep)


def loaded(folder: Path, capacity: int) -> Replay:
    store = Replay(capacity=capacity)
    store.load_state_dict(checkpoint.load(folder)[0]["parts"]["main"]["store.replay"])
    return store


def same(one: Replay, other: Replay) -> bool:
    numbers = [(s.clock, s.copies, s.length, s.holes, s.oldest) for s in (one, other)]
    filled = min(one.clock, one.length)
    return numbers[0] == numbers[1] and all(
        torch.equal(value[:filled], other.columns[name][:filled]) for name, value in one.columns.items()
    )


def files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in sorted((folder / "store").iterdir())}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 8 steps: 46 bytes a step of two copies."""
    monkeypatch.setattr(segments, "BYTES", 8 * 46 + 5)


def test_a_step_is_written_once_and_what_the_ring_forgot_goes(tmp_path: Path, small: None) -> None:
    store, clock, inodes = Replay(capacity=40), 0, dict[str, int]()
    ever: set[str] = set()
    for iteration, count in enumerate((3, 10, 20, 1, 4, 19, 7)):
        store.add(steps(clock, count), None)
        clock += count
        folder = save(tmp_path, store, iteration)
        now = files(folder)
        assert {name: inode for name, inode in now.items() if name in ever} == {
            name: inodes[name] for name in now if name in ever
        }, "written again"
        spans = [tuple(map(int, name.split(".")[-2].split("-")[1:])) for name in now]
        assert spans == sorted(spans) and all(0 < stop - start <= 8 for start, stop in spans)
        assert all(a[1] == b[0] for a, b in itertools.pairwise(spans)) and spans[-1][1] == clock
        assert spans[0][0] <= store.oldest < spans[0][1], "a segment that has lost all its steps is left out"
        inodes, ever = now, ever | set(now)
        assert same(store, loaded(folder, 40))
    there = {path.stat().st_ino for path in tmp_path.rglob("*-*.safetensors")}
    assert there == {ino for folder in checkpoint.complete(tmp_path) for ino in files(folder).values()}
    assert len(there) < len(ever), "segments that no checkpoint refers to are gone"


def test_after_a_restart_the_files_are_still_shared(tmp_path: Path, small: None) -> None:
    store = Replay(capacity=100)
    store.add(steps(0, 20), None)
    before = files(save(tmp_path, store, 1))
    again = loaded(tmp_path / "000001", 100)
    again.add(steps(20, 5), None)
    after = files(save(tmp_path, again, 2))
    assert before.items() <= after.items() and len(after) == len(before) + 2


def test_steps_of_a_run_that_was_taken_back_are_not_taken_for_its_own(tmp_path: Path, small: None) -> None:
    """The same steps once more, other than before: nothing of the checkpoint that was given up is linked."""
    store = Replay(capacity=100)
    store.add(steps(0, 10), None)
    save(tmp_path, store, 1)
    again = loaded(tmp_path / "000001", 100)
    store.add(steps(10, 10), None)
    save(tmp_path, store, 2)
    again.add(steps(500, 10), None)
    assert same(again, loaded(save(tmp_path, again, 2), 100))


def test_an_episode_that_is_cut_off_after_all_is_written_again(tmp_path: Path, small: None) -> None:
    store = Replay(capacity=100)
    store.add(steps(0, 20), None)
    before = files(save(tmp_path, store, 1))
    again = loaded(tmp_path / "000001", 100)
    piece = steps(20, 2)
    piece["start"] = torch.tensor([[True, False], [False, False]])
    again.add(piece, None)
    assert again.columns["cut"][:20].nonzero().tolist() == [[19, 0]] and not again.columns["terminated"].any()
    folder = save(tmp_path, again, 2)
    assert same(again, loaded(folder, 100))
    assert len(before.items() & files(folder).items()) == len(before) - 1


@pytest.mark.parametrize("harm", ["cut", "gone", "bit"])
def test_a_damaged_segment_is_told_and_the_checkpoint_before_taken(harm: str, tmp_path: Path, small: None) -> None:
    store = Replay(capacity=100)
    for iteration in (1, 2):
        store.add(steps(10 * iteration, 10), None)
        save(tmp_path, store, iteration)
    state = checkpoint.load(tmp_path / "000002")[0]["parts"]["main"]["store.replay"]
    newest = sorted((tmp_path / "000002" / "store").iterdir())[-1]
    data = newest.read_bytes()
    if harm == "gone":
        newest.unlink()
    else:
        newest.write_bytes(data[:-5] if harm == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    good, complaints = checkpoint.newest_good(tmp_path)
    assert good == tmp_path / "000001" and len(complaints) == 1 and newest.name in complaints[0]
    with pytest.raises(checkpoint.CheckpointError, match=newest.name):
        checkpoint.load(tmp_path / "000002")
    with pytest.raises(ValueError, match=newest.name):  # damaged between the check and the reading
        Replay(capacity=100).load_state_dict(state)
    save(tmp_path, store, 3)  # the ring is in memory still: what is broken is written anew
    if harm != "bit":  # that would only be found by reading everything at every checkpoint
        assert same(store, loaded(tmp_path / "000003", 100))


def test_where_links_cannot_be_made_all_is_written(tmp_path: Path, small: None, monkeypatch) -> None:
    def refuse(*args):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = Replay(capacity=100)
    for iteration in (1, 2):
        store.add(steps(10 * iteration, 10), None)
        folder = save(tmp_path, store, iteration)
    assert same(store, loaded(folder, 100))


def test_lists_with_gaps_and_old_states_are_refused(tmp_path: Path) -> None:
    plain = {"start": 3, "stop": 9, "step_bytes": 1, "files": [[0, 4, "a"], [6, 9, "b"]]}
    for name in "ab":
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="step 4 of the history is in no file"):
        segments.from_plain(plain, tmp_path, {"a": "", "b": ""})
    with pytest.raises(ValueError, match="in no file"):
        segments.from_plain({**plain, "files": [[0, 4, "a"]]}, tmp_path, {"a": ""})
    with pytest.raises(RecipeError, match="older version saved this replay"):
        Replay().load_state_dict({"clock": 1, "copies": 1, "length": 1, "holes": False, "columns": {}})


class Killed(BaseException):
    """Stands for a process that is gone: nothing it does afterwards reaches the disk."""


def dying(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    """The k-th call that changes files does not happen, nor does any after it."""
    calls = 0

    def mortal(call):
        def wrapped(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls >= k:
                raise Killed
            return call(*args, **kwargs)

        return wrapped

    for place, name in [(builtins, "open"), *((os, name) for name in ("rename", "replace", "link", "fsync"))]:
        monkeypatch.setattr(place, name, mortal(getattr(place, name)))
    for name in ("unlink", "rmdir", "mkdir"):
        monkeypatch.setattr(os, name, mortal(getattr(os, name)))


@pytest.mark.parametrize("keep", [1, 2])
def test_killed_at_any_call_a_good_checkpoint_is_left(
    keep: int, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the k-th call that changes a file, for every k: over a new checkpoint, and over one that is written a
    second time under its name."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # counted, not waited for
    left = set()
    for k in range(1, 1000):
        root = tmp_path / str(k)
        store = Replay(capacity=60)
        for iteration in (1, 2):
            store.add(steps(20 * iteration, 20), None)
            if iteration == 1:
                save(root, store, 1, keep)
        before = loaded(root / "000001", 60)
        with monkeypatch.context() as patch:
            dying(patch, k)
            try:
                save(root, store, 2, keep)
                save(root, store, 2, keep)
            except Killed:
                killed = True
            else:
                killed = False
        checkpoint.clean(root)
        good, complaints = checkpoint.newest_good(root)
        assert good is not None and not complaints, (k, complaints)
        left.add(good.name)
        again = loaded(good, 60)
        assert same(again, before if good.name == "000001" else store), k
        assert not list(root.glob(".*")) and all((p / "manifest.json").exists() for p in root.iterdir() if p.is_dir())
        if not killed:
            break
    assert left == {"000001", "000002"} and not killed and k > 40
