"""Rollouts as Parquet: what was sampled comes back, row by row, without padding."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from gainstage.tracking import read_rollouts, write_rollouts
from gainstage.types import Author, Batch, Problem, Stop, Trajectory, collate


def trajectory(
    sample: int, answer: list[int], stop: Stop = Stop.EOS, text: str = "", **parts: float | None
) -> Trajectory:
    prompt = [1, 2, 3]
    size = len(prompt) + len(answer)
    columns = {
        "tokens": torch.tensor(prompt + answer),
        "author": torch.tensor([int(Author.PROMPT)] * 3 + [int(Author.POLICY)] * len(answer), dtype=torch.int8),
        "mask": torch.tensor([False] * 3 + [True] * len(answer)),
        "turn": torch.tensor([-1] * 3 + [0] * len(answer)),
        "behaviour_logprobs": torch.tensor([0.0] * 3 + [-0.5 * (i + 1) for i in range(len(answer))]),
        "advantages": torch.full((size,), 0.25),
        "reward": torch.tensor(float(sample)),
    }
    problem = Problem("p7", "What is 3 + 4?", answer={"value": 7})
    info = {"prompt": "What is 3 + 4?", "completion": text, "extracted": "7", "seconds": 0.5}
    return Trajectory(problem, 5, sample, sample, "policy", 3, stop, columns, parts, info)


@pytest.fixture
def batch() -> Batch:
    return collate(
        [
            trajectory(0, [9, 8], text="seven 👍", exact=1.0, format=None),
            trajectory(1, [9, 9, 9, 9], Stop.LENGTH, text="a\ud83d|b", exact=0.0, format=0.5),
        ]
    )


def test_rows_come_back_without_padding(batch: Batch, tmp_path: Path):
    path = write_rollouts(tmp_path / "rollouts" / "000012.parquet", batch, iteration=12)
    assert [p.name for p in path.parent.iterdir()] == ["000012.parquet"]  # no temporary file is left
    first, second = read_rollouts(tmp_path, 12).to_pylist()
    assert first["iteration"] == 12 and first["problem"] == "p7" and json.loads(first["answer"]) == {"value": 7}
    assert first["prompt"] == "What is 3 + 4?" and first["completion"] == "seven 👍"
    assert first["tokens"] == [1, 2, 3, 9, 8] and second["tokens"] == [1, 2, 3, 9, 9, 9, 9]
    assert first["author"] == [0, 0, 0, 1, 1] and first["turn"] == [-1, -1, -1, 0, 0]
    assert first["mask"] == [False] * 3 + [True] * 2
    assert first["behaviour_logprobs"] == [0, 0, 0, -0.5, -1] and second["advantages"] == [0.25] * 7
    assert (first["group"], first["sample"], first["version"], second["reward"]) == (5, 0, 3, 1.0)
    assert (first["stop"], second["stop"]) == ("eos", "length")
    assert dict(first["parts"]) == {"exact": 1.0, "format": None} and dict(second["parts"]) == {
        "exact": 0.0,
        "format": 0.5,
    }
    assert json.loads(first["info"]) == {"extracted": "7", "seconds": 0.5}
    assert second["completion"] == "a?|b"  # half a character cannot be stored


def test_every_step_column_has_the_rows_length(batch: Batch, tmp_path: Path):
    batch["ref_logprobs"] = torch.randn(2, 7)
    write_rollouts(tmp_path / "rollouts" / "000000.parquet", batch, iteration=0)
    table = read_rollouts(tmp_path)
    lists = [name for name in table.column_names if pa.types.is_list(table.schema.field(name).type)]
    assert "ref_logprobs" in lists and "advantages" in lists
    for row in table.to_pylist():
        assert {len(row[name]) for name in lists} == {len(row["tokens"])}


def test_iterations_with_other_parts_and_columns_are_read_together(batch: Batch, tmp_path: Path):
    write_rollouts(tmp_path / "rollouts" / "000000.parquet", batch, iteration=0)
    other = collate([trajectory(0, [4], text="x", style=2.0)])
    other["entropy"] = torch.zeros(1, 4)
    write_rollouts(tmp_path / "rollouts" / "000001.parquet", other, iteration=1)
    rows = read_rollouts(tmp_path).to_pylist()
    assert [row["iteration"] for row in rows] == [0, 0, 1]
    assert rows[0]["entropy"] is None and rows[2]["entropy"] == [0.0] * 4 and dict(rows[2]["parts"]) == {"style": 2.0}


def test_turns_keep_their_own_rewards(tmp_path: Path):
    row = trajectory(0, [4, 5])
    row.columns |= {"turn_rewards": torch.tensor([0.5, 0.0]), "turn_mask": torch.tensor([True, True])}
    longer = trajectory(1, [4, 5, 6])
    longer.columns |= {"turn_rewards": torch.tensor([0.1, 0.2, 0.3]), "turn_mask": torch.tensor([True] * 3)}
    write_rollouts(tmp_path / "rollouts" / "000000.parquet", collate([row, longer]), iteration=0)
    rows = read_rollouts(tmp_path).to_pylist()
    assert rows[0]["turn_rewards"] == [0.5, 0.0] and len(rows[1]["turn_rewards"]) == 3


def test_control_batches_have_actions_instead_of_texts(tmp_path: Path):
    steps = {"mask": torch.ones(2, 3, dtype=torch.bool), "rewards": torch.ones(2, 3), "actions": torch.zeros(2, 3, 4)}
    batch = Batch({"group": torch.arange(2), "reward": torch.tensor([math.nan, 1.0]), **steps})
    write_rollouts(tmp_path / "rollouts" / "000000.parquet", batch, iteration=0)
    rows = read_rollouts(tmp_path).to_pylist()
    assert rows[0]["actions"] == [[0.0] * 4] * 3 and rows[0]["rewards"] == [1.0] * 3
    assert rows[0]["completion"] is None and rows[0]["reward"] is None and rows[1]["reward"] == 1.0


def test_agents_share_the_rows_length(tmp_path: Path):
    mask = torch.tensor([[[True, True], [True, False], [False, False]]])
    author = torch.tensor([[[1, 1], [1, -1], [-1, -1]]])
    batch = Batch({"mask": mask, "author": author, "actions": torch.arange(6).reshape(1, 3, 2)})
    write_rollouts(tmp_path / "rollouts" / "000000.parquet", batch, iteration=0)
    assert read_rollouts(tmp_path).to_pylist()[0]["actions"] == [[0, 1], [2, 3]]


def test_wrong_infos_and_missing_rollouts_are_said(batch: Batch, tmp_path: Path):
    with pytest.raises(ValueError, match="1 infos for 2 rows"):
        write_rollouts(tmp_path / "x.parquet", batch, iteration=0, infos=[{}])
    with pytest.raises(FileNotFoundError, match="holds no rollouts"):
        read_rollouts(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no rollouts of 3"):
        read_rollouts(tmp_path, 3)
