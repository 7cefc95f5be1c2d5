"""Answers compared as text, numbers and formats."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reward.helpers_reward import answered

from gainstage.reward.verifiers.exact import Exact, choice, contains_span, exact, normalise, prefix_match, token_f1
from gainstage.reward.verifiers.format import TagFormat, json_block, tag_spans
from gainstage.reward.verifiers.numbers import Numbers, last_number, parse_number, within

# -- text -------------------------------------------------------------------------------------------------------------


def test_normalised_equality():
    assert normalise(" The  Ｅiffel-Tower! ") == "eiffeltower"
    assert exact("the Eiffel Tower.", "Eiffel tower") and exact("b", ["a", "b"])
    assert not exact("Eiffel", "Eiffel tower")
    assert exact(" x ", "x", normalised=False) and not exact("X", "x", normalised=False)


def test_an_answer_of_punctuation_or_articles_equals_only_itself():
    assert exact("+", "+") and not exact("-", "+") and not exact("", "+") and not exact("the", "a")


def test_spans_are_whole_words():
    assert contains_span("It is in New York, I think", "new york")
    assert not contains_span("carthage", "art") and not contains_span("anything", "") and not contains_span("x", "...")


def test_word_overlap():
    assert token_f1("the red fox", "a red dog") == pytest.approx(0.5)
    assert token_f1("red red", "red") == pytest.approx(2 / 3)
    assert token_f1("", "") == 1.0 and token_f1("x", "") == 0.0
    assert token_f1("red", ["blue", "red"]) == 1.0


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("B", "B"),
        (" (C). ", "C"),
        ("The answer is (B).", "B"),
        ("Answer: D", "D"),
        ("I weigh A. against B. and the answer is C", "C"),
        ("A good question. It must be (D)", "D"),
        ("**B** because", "B"),
        ("A or B", None),
        ("(A) or (B)", None),
        ("The answer is A. No, the answer is B.", None),
        ("I do not know", None),
        ("", None),
        ("BAD", None),
    ],
)
def test_option_letters(text: str, want: str | None):
    assert choice(text) == want


def test_byte_prefixes_end_at_a_token_boundary():
    truth, boundaries = "über all".encode(), {3, 5, 9}
    assert prefix_match("üb".encode(), truth, boundaries)
    assert not prefix_match("ü".encode(), truth, boundaries)
    assert not prefix_match(b"", truth, {0, 3}) and not prefix_match(b"xyz", truth, boundaries)


def test_the_text_reward_by_every_comparison():
    rows = [answered("thus: Paris", "Paris"), answered("Paris", "paris"), answered("Rome", "Paris"), answered("x")]
    assert Exact().judge(rows, None) == [0.0, 1.0, 0.0, None]
    assert Exact(how="contains").judge(rows, None) == [1.0, 1.0, 0.0, None]
    assert Exact(how="f1").judge(rows, None) == [pytest.approx(2 / 3), 1.0, 0.0, None]
    assert Exact(after="thus:").judge(rows, None) == [1.0, 0.0, 0.0, None]
    assert Exact(how="choice").judge([answered("(B)", "b"), answered("none", "B")], None) == [1.0, 0.0]


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("42", Fraction(42)),
        (" -3.50 ", Fraction(-7, 2)),
        ("−2", Fraction(-2)),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("1,2", None),
        ("1,23,456", None),
        ("3/4", Fraction(3, 4)),
        ("1/0", None),
        ("50%", Fraction(1, 2)),
        ("$18.", Fraction(18)),
        ("1e-3", Fraction(1, 1000)),
        (".5", Fraction(1, 2)),
        ("1e99999999", None),
        ("9" * 500, None),
        ("x = 3", None),
        ("", None),
        ("nan", None),
    ],
)
def test_a_text_that_is_one_number(text: str, want: Fraction | None):
    assert parse_number(text) == want


@given(st.fractions(max_denominator=999))
def test_what_is_written_is_read_back(value: Fraction):
    assert parse_number(str(value)) == value


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("first 3, then 4", Fraction(4)),
        ("7-3", Fraction(3)),
        ("it is -3.", Fraction(-3)),
        ("so 1,000 in all", Fraction(1000)),
        ("about 25 %", Fraction(1, 4)),
        ("none", None),
    ],
)
def test_the_last_number_of_a_text(text: str, want: Fraction | None):
    assert last_number(text) == want


def test_hostile_numbers_cost_no_time():
    started = time.perf_counter()
    for text in ("9e999999999", "1" * 100_000, "1/" * 50_000, "1," * 50_000, "1e" + "9" * 5_000):
        last_number(text)
        parse_number(text)
    assert time.perf_counter() - started < 5


def test_tiny_numbers_are_not_equal_by_an_absolute_tolerance():
    assert within(Fraction(1, 2**99), Fraction(1, 2**98)) == 0.0
    assert within(Fraction(1, 2**99), Fraction(1, 2**98), relative=1e-6) == 0.0
    assert within(Fraction(1, 3), Fraction(1, 3)) == 1.0


def test_tolerances_steps_and_nan():
    assert within(10.4, 10.0, tol=0.5) == 1.0 and within(10.6, 10.0, tol=0.5) == 0.0
    assert within(-99, -100, relative=0.01) == 1.0
    steps = [(0.2, 0.5), (0.1, 0.8)]
    assert [within(p, 100, steps=steps) for p in (100, 109, 115, 125)] == [1.0, 0.8, 0.5, 0.0]
    assert within(1, 0, relative=0.5, steps=steps) == 0.0
    assert within(math.nan, 1.0, tol=9) == 0.0 and within(math.inf, 1.0, relative=1.0) == 0.0
    assert within(Fraction("10.3"), Fraction(10), tol=0.3) == 1.0
    assert within(10**399, 10**399 + 1) == 0.0 and within(10**399, 10**399 + 1, tol=1) == 1.0
    with pytest.raises(ValueError, match="must not be negative"):
        within(1, 1, tol=-1)


def test_the_number_reward():
    rows = [answered("so 12 + 30 = 42", "42"), answered("41", 42), answered("?", "42"), answered("42")]
    assert Numbers().judge(rows, None) == [1.0, 0.0, 0.0, None]
    assert Numbers(tol=1.0).judge(rows, None) == [1.0, 1.0, 0.0, None]
    assert Numbers(after="####").judge([answered("3 #### 42", "42"), answered("42", "42")], None) == [1.0, 0.0]
    with pytest.raises(ValueError, match="'forty' of p is no number"):
        Numbers().judge([answered("1", "forty")], None)


# -- formats ----------------------------------------------------------------------------------------------------------

TAGS = ("think", "answer")
GOOD = "<think>a</think><answer>7</answer>"


def fits(text: str, **settings) -> bool:
    return tag_spans(text, TAGS, **settings) is not None


def test_spans_hold_the_contents():
    spans = tag_spans(f" {GOOD}\n", TAGS)
    assert spans is not None
    assert [f" {GOOD}\n"[slice(*spans[tag])] for tag in TAGS] == ["a", "7"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<think>a</think>",
        "<think>a<answer>7</answer></think>",
        "<think>a</think><answer>7",
        "a</think><answer>7</answer>",
        "<answer>7</answer><think>a</think>",
        "<think>a</think><think>b</think><answer>7</answer>",
        GOOD + " and more",
        "first " + GOOD,
        "<think>a</think> so <answer>7</answer>",
        GOOD + "</answer>",
        "<THINK>a</THINK><ANSWER>7</ANSWER>",
    ],
)
def test_what_breaks_the_grammar(text: str):
    assert not fits(text)


def test_every_rule_can_be_relaxed():
    assert fits("<think>a</think> <answer>7</answer>")
    assert not fits("<think>a</think> <answer>7</answer>", whitespace=False) and fits(GOOD, whitespace=False)
    assert fits("<answer>7</answer><think>a</think>", ordered=False)
    assert fits("<think>a</think><think>b</think><answer>7</answer>", exactly_once=False)
    assert fits("so " + GOOD + " done", nothing_outside=False)


def test_the_format_reward():
    rows = [answered(GOOD), answered(GOOD + " tail")]
    assert TagFormat().judge(rows, None) == [1.0, 0.0]
    assert TagFormat(wrong=-1.0).judge(rows, None) == [1.0, -1.0]
    assert TagFormat(tags=["answer"], nothing_outside=False).judge(rows, None) == [1.0, 1.0]
    with pytest.raises(ValueError, match="each block once"):
        TagFormat(tags=["a", "a"])


def test_json_is_all_of_the_text_or_its_only_block():
    assert json_block('{"a": [1]}') == {"a": [1]}
    assert json_block('so:\n```json\n{"a": 1}\n```\ndone') == {"a": 1}
    for text in ("", "{", "```\n1\n```\n```\n2\n```", '{"a": NaN}', "text"):
        with pytest.raises(ValueError):
            json_block(text)
