"""Judges whose faults are known."""

import random

import pytest

from gainstage.measure.audits.judge_audit import GARBAGE, RUBRICS, Item, is_pairwise, judge_audit

ITEMS = [Item(f"{a}+1?", str(a + 1), str(a + 2)) for a in range(20)]


def right(question, answer):
    return answer == str(int(question.split("+")[0]) + 1)


def good(question, answer, rubric):
    return float(right(question, answer))


def good_pair(question, first, second, rubric):
    return 0.5 + 0.5 * (right(question, first) - right(question, second))


def test_a_good_judge_has_no_fault():
    report = judge_audit(good, ITEMS)
    assert report.kind == "pointwise" and report.trustworthy and report.accuracy == 1
    assert report.rubric_flips == 0 == report.garbage and report.order_flips is None and report.accepted == ()
    assert report.calls == 20 * (2 * len(RUBRICS) + len(GARBAGE))
    pairs = judge_audit(good_pair, ITEMS)
    assert pairs.kind == "pairwise" and pairs.trustworthy and pairs.accuracy == 1
    assert pairs.order_flips == 0 == pairs.garbage and pairs.first_rate == 0.5


def test_a_judge_that_reads_the_wording_flips():
    found = judge_audit(lambda question, answer, rubric: float(rubric == RUBRICS[0] and right(question, answer)), ITEMS)
    assert found.rubric_flips == 0.5, "every other wording rejects what was accepted, and wrong answers stay rejected"


def test_position_bias_is_seen():
    report = judge_audit(lambda question, first, second, rubric: 0.9, ITEMS)
    assert report.order_flips == 1 and report.first_rate == 1 and report.accuracy == 0.5
    assert report.garbage == pytest.approx(0.5)
    last = judge_audit(lambda question, first, second, rubric: 0.1, ITEMS)
    assert last.first_rate == 0 and last.order_flips == 1
    undecided = judge_audit(lambda question, first, second, rubric: 0.5, ITEMS)
    assert undecided.first_rate == 0.5 and undecided.garbage == 1, "garbage that ties with a right answer got through"


def test_garbage_that_gets_through_is_named():
    report = judge_audit(lambda q, answer, r: float(right(q, answer) or answer.startswith("Thought")), ITEMS)
    assert report.accepted == ("Thought process:",) and report.garbage == pytest.approx(1 / len(GARBAGE))
    assert not report.trustworthy


def test_one_in_a_hundred_is_too_many():
    texts = [f"nothing {i}" for i in range(100)]
    report = judge_audit(lambda q, answer, r: float(answer == "nothing 7"), ITEMS[:1], garbage=texts)
    assert report.garbage == 0.01 and not report.trustworthy


def test_a_coin_flips_half_of_its_verdicts():
    rng = random.Random(0)
    report = judge_audit(lambda question, answer, rubric: rng.random(), ITEMS * 20)
    assert report.rubric_flips == pytest.approx(0.5, abs=0.05) and report.accuracy == pytest.approx(0.5, abs=0.08)


def test_forms_of_judges():
    assert not is_pairwise(good) and is_pairwise(good_pair)
    with pytest.raises(ValueError, match="the parameters text"):
        judge_audit(lambda text: 1.0, ITEMS)
    with pytest.raises(ValueError, match="at least two rubrics"):
        judge_audit(good, ITEMS, rubrics=["one"])
    with pytest.raises(ValueError, match="needs items"):
        judge_audit(good, [])


def test_garbage_that_is_the_right_answer_is_left_out():
    assert judge_audit(lambda q, a, r: float(a == "."), [Item("end?", ".", ",")]).garbage == 0
