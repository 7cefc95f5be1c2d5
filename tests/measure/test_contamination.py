import pytest

from gainstage.measure.audits.contamination import hash_problems, ngram_overlap, overlap
from gainstage.types import Problem


def test_a_trailing_space_hides_nothing():
    got = overlap(["2+2?"], ["2+2? "])
    assert got.count == 1 and got.share == 1.0
    assert overlap(["2+2?"], ["2-2?", "2 + 2?"]).count == 0


def test_companions():
    got = overlap(["What  is\n2+2?", "x"], ["what is 2+2?", "y", "caf\u00e9", "z"])
    assert (got.count, got.training, got.evaluation) == (1, 2, 4) and got.examples == ("what is 2+2?",)
    assert overlap(["cafe\u0301"], ["caf\u00e9"]).count == 1
    assert "1 of 4" in got.message and overlap(["a"], ["b"]).message == ""


def test_same_seed_for_both_splits_is_named():
    rows = [Problem(str(i), f"{i}*7?") for i in range(20)]
    got = overlap(rows, rows)
    assert got.count == 20 and "same seed" in got.message and got.examples == ("0", "1", "2", "3", "4")


def test_messages_compare_by_content():
    chat = Problem("a", [{"role": "user", "content": "2+2?"}])
    other = Problem("b", [{"role": "user", "content": "2+2? "}])
    assert overlap([chat], [other]).count == 1


def test_ngrams_find_a_problem_inside_a_longer_one():
    words = " ".join(f"w{i}" for i in range(20))
    assert ngram_overlap([f"once upon a time {words} the end"], [words]).count == 1
    assert ngram_overlap([words], [" ".join(f"v{i}" for i in range(20))]).count == 0
    assert ngram_overlap(["a b c"], ["a b c"]).count == 0
    with pytest.raises(ValueError, match="n must be"):
        ngram_overlap([], [], n=0)


def test_hash_sees_content_and_not_order():
    a, b = Problem("1", "2+2?", "4"), Problem("2", "3+3?", "6")
    assert hash_problems([a, b]) == hash_problems([b, a])
    assert hash_problems([a, b]) != hash_problems([a])
    assert hash_problems([a]) != hash_problems([Problem("1", "2+2?", "5")])


def test_the_training_set_has_a_provenance_that_order_and_repeats_do_not_change():
    one = overlap(["a  B", "c"], ["x"]).training_hash
    assert one == overlap(["c", "A b", "c"], ["y"]).training_hash and len(one) == 16
    assert one != overlap(["a b", "d"], ["x"]).training_hash
