from dataclasses import replace

import pytest

from gainstage.measure.compare import compare
from gainstage.measure.ledger import (
    QUICK,
    LedgerRow,
    append,
    commit,
    evidence,
    held,
    line,
    load,
    markdown,
    newest,
    rows_of,
    shipped,
)


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


def test_a_row_judges_the_claim(make_runs):
    report = compare(make_runs({"grpo": 0.5, "better": 0.8}, seeds=range(5)))
    for word, says in (("higher", "as claimed"), ("lower", "against the claim"), ("equal", "against the claim")):
        (row,) = rows_of(report, "2026-01-31", expected={"better": word})
        assert (row.expected, row.outcome) == (word, says)
        assert 0 <= row.p < 0.01 and says in line(row)
    assert rows_of(report, "2026-01-31")[0].outcome == ""


def test_the_margin_of_other_metrics_is_relative_to_the_baseline(make_runs):
    """Lengths near 19 tokens: a margin of 5 % is about a token, of 0.01 % nothing."""
    report = compare(make_runs({"grpo": 0.5, "same": 0.5}, seeds=range(5)), "length/mean")
    assert report.arms[0].value.value > 10
    outcomes = [rows_of(report, "2026-01-31", expected={"same": "equal"}, margin=m)[0].outcome for m in (0.5, 1e-4)]
    assert outcomes == ["as claimed", "undecided"]


def test_a_quick_look_has_no_verdict_and_is_no_evidence(make_runs):
    report = compare(make_runs({"grpo": 0.5, "better": 0.8}, seeds=range(5)))
    (row,) = rows_of(report, "2026-01-31", expected={"better": "higher"}, quick=True)
    assert (row.verdict, row.outcome) == (QUICK, "")
    assert evidence([row]) == [] and "no evidence" in line(row)


def test_what_cannot_be_compared_bears_nothing_out(make_runs, make_run, manifest):
    other = replace(manifest, problems="other")
    runs = [*make_runs({"grpo": 0.5}), *(make_run("better", seed, 0.8, manifest=other) for seed in range(3))]
    (row,) = rows_of(compare(runs), "2026-01-31", expected={"better": "higher"})
    assert (row.verdict, row.outcome, row.gain) == ("not comparable", "undecided", None)


def test_a_repeated_measurement_counts_once():
    row = LedgerRow("2026-01-02", "b", "a", "t", "pass@1", "gain confirmed", settings="s", code="c", p=0.01)
    again, other = replace(row, date="2026-02-02"), replace(row, code="d")
    assert newest([row, again, other]) == [again, other]
    old = LedgerRow("2025-01-02", "b", "a", "t", "pass@1", "gain confirmed")  # before rows told their settings
    assert newest([old, old]) == [old, old]


def test_chance_findings_of_a_large_ledger_do_not_stand():
    rows = [LedgerRow("d", f"m{i}", "a", "t", "pass@1", "v", p=p) for i, p in enumerate((0.04, 0.0001, None, 0.5))]
    assert held(rows) == [False, True, None, False]
    assert held(rows[:1]) == [True]
    table = markdown(rows).splitlines()
    assert ["stands" in row for row in table[2:]] == [False, True, False, False]


def test_the_shipped_ledger_is_there_and_holds_measurements_only():
    rows = load(shipped())
    assert rows and not any(row.quick for row in rows)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"method": null}\n', "line 1: date"),
        (b"\n[1]\n", "line 2: the row"),
        (b'{"date": "x", "method": 3}\n', "line 1: method"),
        (b"{\n", "line 1"),
        (b"\xff\xfe\n", "no text in UTF-8"),
    ],
)
def test_a_damaged_ledger_names_file_line_and_field(tmp_path, text, says):
    book = tmp_path / "ledger.jsonl"
    book.write_bytes(text)
    with pytest.raises(ValueError, match=f"ledger.jsonl.*{says}"):
        load(book)
