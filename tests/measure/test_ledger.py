import pytest

from gainstage.measure.compare import compare
from gainstage.measure.ledger import LedgerRow, append, commit, load, markdown, rows_of


def test_rows_of_a_comparison_are_kept_and_read_back(make_runs, tmp_path):
    report = compare(make_runs({"grpo": 0.5, "better": 0.8}, seeds=range(4)))
    rows = rows_of(report, "2026-01-31", claims={"better": "+3 points on GSM8K"}, papers={"better": "arXiv 1234.56789"})
    file = tmp_path / "ledger" / "ledger.jsonl"
    append(file, rows)
    append(file, rows)
    assert load(file) == rows + rows
    row = rows[0]
    assert (row.method, row.baseline, row.task, row.seeds) == ("better", "grpo", "addition", 4)
    assert row.low < row.gain < row.high and row.budget == "100k generated tokens" and row.machine
    text = markdown(rows)
    assert "+3 points on GSM8K (arXiv 1234.56789)" in text and "points pass@1 \\[+" in text


def test_rows_without_an_interval_say_so(tmp_path):
    one = LedgerRow("2026-01-02", "b", "a", "t", "pass@1", "no difference shown", gain=0.1, seeds=1)
    none = LedgerRow("2026-01-03", "c|d", "a", "t\nx", "pass@1", "not comparable")
    text = markdown([one, none])
    assert "+10.0 points pass@1 (no interval)" in text
    lines = text.splitlines()
    assert len(lines) == 4 and lines[2].startswith("| 2026-01-03 | c\\|d | a | t x |")


def test_an_empty_and_a_broken_ledger(tmp_path):
    file = tmp_path / "ledger.jsonl"
    assert load(file) == []
    file.write_text('{"date": "2026-01-01"}\n')
    with pytest.raises(ValueError, match="line 1"):
        load(file)
    file.write_text("not json\n")
    with pytest.raises(ValueError, match="line 1"):
        load(file)


def test_commit_outside_a_repository(tmp_path):
    assert commit(tmp_path) == ""
