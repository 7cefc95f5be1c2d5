"""Checkpoints: round trips, damage, interrupted writers."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from gainstage import checkpoint


class Roles:
    """Two roles, one of which never moves."""

    def __init__(self) -> None:
        self.policy, self.frozen = torch.randn(4, 3), torch.ones(5)

    def state_dict(self):
        return {"policy": {"w": self.policy}, "frozen": {"w": self.frozen}}

    def moving(self):
        return ["policy"]


STATE = {
    "iteration": 3,
    "nested": {"a": [1, 2.5, None, "x"], "t": torch.arange(4)},
    "optimizer": {0: {"m": torch.ones(2)}, 1: {}},
}


def test_round_trip_keeps_types_and_bits(tmp_path: Path) -> None:
    roles = Roles()
    folder = checkpoint.save(tmp_path, STATE, roles, fingerprint="f")
    state, weights, manifest = checkpoint.load(folder)
    assert torch.equal(state["nested"]["t"], STATE["nested"]["t"]) and state["nested"]["a"] == STATE["nested"]["a"]
    assert set(state["optimizer"]) == {0, 1} and torch.equal(state["optimizer"][0]["m"], torch.ones(2))
    assert torch.equal(weights["policy"]["w"], roles.policy)
    assert manifest["fingerprint"] == "f" and (tmp_path / "latest").read_text() == "000003"


def test_frozen_roles_are_linked_and_old_ones_go(tmp_path: Path) -> None:
    roles = Roles()
    for iteration in range(4):
        checkpoint.save(tmp_path, {**STATE, "iteration": iteration}, roles, fingerprint="f", keep=2)
    kept = checkpoint.complete(tmp_path)
    assert [folder.name for folder in kept] == ["000002", "000003"]
    inodes = {os.stat(folder / "models" / "frozen.safetensors").st_ino for folder in kept}
    assert len(inodes) == 1
    checkpoint.load(kept[-1])


def test_random_damage_is_always_found(tmp_path: Path) -> None:
    roles = Roles()
    checkpoint.save(tmp_path, {**STATE, "iteration": 1}, roles, fingerprint="f", keep=5)
    newest = checkpoint.save(tmp_path, {**STATE, "iteration": 2}, roles, fingerprint="f", keep=5)
    files = [path for path in newest.rglob("*") if path.is_file() and path.name != "frozen.safetensors"]
    rng = random.Random(0)
    for _ in range(60):
        file = rng.choice(files)
        before = file.read_bytes()
        if rng.random() < 0.5:
            damaged = before[: rng.randrange(len(before))]
        else:
            place = rng.randrange(len(before))
            damaged = before[:place] + bytes([before[place] ^ (1 << rng.randrange(8))]) + before[place + 1 :]
        file.write_bytes(damaged)
        try:
            good, complaints = checkpoint.newest_good(tmp_path)
            if file.name == "manifest.json" and good == newest:
                state, _, _ = checkpoint.load(newest)  # a bit of a version text, say: every tensor is still verified
                assert state["iteration"] == 2
            else:
                assert good is not None and good.name == "000001" and complaints, file
        finally:
            file.write_bytes(before)
    assert checkpoint.newest_good(tmp_path)[0] == newest


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_failing_call_leaves_the_last_good_one(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The k-th call fails, for every k: what was there still loads and nothing half-written stays."""
    roles = Roles()
    checkpoint.save(tmp_path, {**STATE, "iteration": 1}, roles, fingerprint="f")
    target = {"write": (checkpoint, "write_file"), "fsync": (os, "fsync"), "rename": (os, "rename")}[call]
    original = getattr(*target)
    for k in range(12):
        calls = 0

        def fail(*args, k=k, **kwargs):
            nonlocal calls
            calls += 1
            if calls == k + 1:
                raise OSError(28, "No space left on device")
            return original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(*target, fail)
            try:
                checkpoint.save(tmp_path, {**STATE, "iteration": 2 + k}, roles, fingerprint="f", keep=99)
            except OSError as error:
                assert "No space" in str(error)
        good, complaints = checkpoint.newest_good(tmp_path)
        assert good is not None and not complaints
        checkpoint.load(good)
        assert not [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")]


def test_foreign_and_absent_files_have_clear_errors(tmp_path: Path) -> None:
    (tmp_path / "000009").mkdir()
    (tmp_path / "000009" / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(checkpoint.CheckpointError, match="format 99"):
        checkpoint.load(tmp_path / "000009")
    with pytest.raises(checkpoint.CheckpointError, match="unreadable"):
        checkpoint.load(tmp_path / "nothing")
    with pytest.raises(TypeError, match="cannot be saved"):
        checkpoint.pack({"f": open}, {})


def test_strays_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    stray = tmp_path / ".000004.99.tmp"
    stray.mkdir()
    (stray / "state.json").write_text("{")
    checkpoint.clean(tmp_path)
    assert not stray.exists()


@pytest.mark.parametrize("call", ["fsync", "hf", "latest"])
def test_a_full_disk_is_told_with_the_file_and_what_is_left(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "run" / "checkpoints"
    roles = Roles()
    good = checkpoint.save(root, {**STATE, "iteration": 1}, roles, fingerprint="f")

    def refuse(*args, **kwargs):
        raise OSError(28, "No space left on device")

    class Policy:
        def save(self, folder) -> None:
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    if call == "fsync":
        monkeypatch.setattr(os, "fsync", refuse)
    if call == "latest":
        monkeypatch.setattr(checkpoint, "replace_file", refuse)
    with pytest.raises(OSError, match="No space left on device") as caught:
        checkpoint.save(
            root, {**STATE, "iteration": 2}, roles, fingerprint="f", policy=Policy() if call == "hf" else None
        )
    said = str(caught.value)
    left = root / "000002" if call == "latest" else good
    assert caught.value.errno == 28 and f"the last checkpoint, {left}, is intact" in said
    assert f"--resume {tmp_path / 'run'}" in said
    assert str(root / ("latest" if call == "latest" else "000002")) in said
    assert "state.json" in said or call != "fsync"
    monkeypatch.undo()
    assert checkpoint.newest_good(root) == (left, [])


def test_the_first_checkpoint_on_a_full_disk_has_nothing_to_fall_back_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="there is no earlier checkpoint"):
        checkpoint.save(tmp_path, STATE, Roles(), fingerprint="f")


ROWS = [
    {"id": "a", "prompt": "1+1=", "completion": "2", "reward": 1.0, "tokens": [1, 2]},
    {"id": "b", "prompt": "ü", "completion": "", "reward": None, "tokens": []},
]


def test_rows_that_a_phase_hands_on_are_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    artifacts = {"round data/1": ROWS, "count": 3, "tensor": torch.arange(3)}
    folder = checkpoint.save(tmp_path, {**STATE, "artifacts": artifacts}, Roles(), fingerprint="f")
    file = folder / "artifacts" / "round%20data%2F1.parquet"
    assert pq.read_table(file).to_pylist() == ROWS
    assert "completion" not in (folder / "state.json").read_text()
    state, _, manifest = checkpoint.load(folder)
    assert list(state["artifacts"]) == list(artifacts) and state["artifacts"]["round data/1"] == ROWS
    assert state["artifacts"]["count"] == 3 and torch.equal(state["artifacts"]["tensor"], torch.arange(3))
    assert f"artifacts/{file.name}" in manifest["sha256"]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(checkpoint.CheckpointError, match="not what was written"):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    "value",
    [
        [],
        [{}],
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, {"a": 2.5}],
        [{"a": 1}, {"a": "x"}],
        [{"a": {"x": 1}}, {"a": {"y": 1}}],
        [{"a": torch.ones(2)}],
        [{1: 2}],
        [{"a": 2**70}],
        {"a": [1, 2]},
        "text",
    ],
)
def test_what_parquet_would_change_stays_with_the_state(value, tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, {**STATE, "artifacts": {"v": value}}, Roles(), fingerprint="f")
    assert not (folder / "artifacts").exists()
    back = checkpoint.load(folder)[0]["artifacts"]["v"]
    if isinstance(value, list) and value and isinstance(value[0].get("a"), torch.Tensor):
        assert torch.equal(back[0]["a"], value[0]["a"])
    else:
        assert back == value and str(back) == str(value)
