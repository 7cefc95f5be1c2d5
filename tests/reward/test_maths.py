"""Answers are extracted whole and compared exactly, both ways round, from any thread, within a limit."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gainstage import registry
from gainstage.ops.answers import (
    compare,
    exact_value,
    extract,
    extract_boxed,
    extract_hash,
    extract_phrase,
    last_number,
    math_equal,
)
from gainstage.ops.workers import Failure
from gainstage.reward.verifiers.maths import grade
from gainstage.types import Ctx, Problem, Stop, Trajectory

LIMIT = 60.0  # for honest pairs on a busy machine

EQUAL = [
    (r"$2x+4y-3=0$", r"$y = -1/2*x + 3/4$"),
    (r"$\text{13}$", "$13$"),
    ("0.5", r"\frac12"),
    (".5", "1/2"),
    ("1,234", "1234"),
    (r"10,\!080", "10080"),
    (r"50\%", "50"),
    (r"50\%", "0.5"),
    (r"1\frac{4}{5}", "9/5"),
    (r"137 \frac{1}{2}", "137.5"),
    ("137 1/2", "137.5"),
    ("x = 5", "5"),
    (r"\$36", "36"),
    (r"15\mbox{ cm}^2", "15"),
    (r"90^\circ", "90"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt3}"),
    (r"3\sqrt{13}", r"\sqrt{117}"),
    (r"\sqrt{4}", "2"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)"),
    (r"2\sin x\cos x", r"\sin 2x"),
    (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}"),
    (r"\{1,2\}", "2, 1"),
    (r"(-\infty,2)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,2)"),
    ("x>3", "3<x"),
    (r"x \in [2,3]", "[2,3]"),
    (r"1 < x < 2", "2 > x > 1"),
    (r"\begin{pmatrix}1 \\ 2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}"),
    (r"\text{(B)}", "B"),
    (r"\text{Evelyn}", "evelyn"),
    (r"10^{-3}", "0.001"),
    (r"1.5 \times 10^{3}", "1500"),
    (r"e^{i\pi}", "-1"),
    (r"\log_2 8", "3"),
    ("x^2-1", "(x-1)(x+1)"),
    (r"\frac{10!}{8!}", "90"),
    (r"\binom{5}{2}", "10"),
    ("52_8", "52_{8}"),
]
DIFFERENT = [
    (r"$\frac{1}{2^{99}}$", r"$\frac{1}{2^{98}}$"),
    (r"$\frac{1}{2004!}$", r"$\frac{1}{2006!}$"),
    (r"$1 - \frac{1}{\mathrm{e}}$", r"$1 + \frac{1}{\mathrm{e}}$"),
    (r"$1, 2, \ldots, n$", r"$1, 3, 5, \ldots, 2n-1$"),
    ("3*x-1*y+13=0", "3x + 4y + 14=0"),
    (r"e^{-100}", r"e^{-101}"),
    (r"\pi \cdot 10^{-40}", r"\pi \cdot 10^{-41}"),
    (r"\sqrt{2} \cdot 10^{30}", r"\sqrt{2} \cdot 10^{30} + 1"),
    ("10^{-30}", "0"),
    ("99999999999999999999", "99999999999999999998"),
    ("3.14", r"\pi"),
    (r"\sqrt{2}", "1.41421356237309504880"),
    ("0.333", r"\frac13"),
    ("(2,3)", "[2,3]"),
    ("(1,2)", "(2,1)"),
    ("1,2", "1,2,3"),
    ("1,1,2", "1,2,2"),
    ("x>3", "x<3"),
    ("x>3", r"x \ge 3"),
    ("x^2", "x^3"),
    ("x", "y"),
    ("-2x", "2x"),
    ("tea", "eat"),
    ("A", "B"),
    (r"\text{yes}", r"\text{no}"),
    (r"50\%", "500"),
    ("5", r"5\text{ or }6"),
    ("", "4"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}"),
]


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_equal_answers_both_ways(left, right):
    assert math_equal(left, right, seconds=LIMIT) is True
    assert math_equal(right, left, seconds=LIMIT) is True


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different_answers_both_ways(left, right):
    assert math_equal(left, right, seconds=LIMIT) is False
    assert math_equal(right, left, seconds=LIMIT) is False


def test_gold_answers_of_math500_equal_themselves_only():
    folder = os.environ.get("GAINSTAGE_DATA", "")
    file = Path(folder) / "math500.json"
    if not file.is_file():
        pytest.skip("math500.json is not in GAINSTAGE_DATA")
    golds = [row["answer"] for row in json.loads(file.read_text())]
    for gold in golds:
        for spelling in (f"${gold}$", gold.replace("\\frac", "\\dfrac"), gold.replace(" ", "")):
            assert compare(spelling, gold) is True, (spelling, gold)
    integers = sorted({gold for gold in golds if gold.lstrip("-").isdigit()})
    assert len(integers) > 100
    assert not any(compare(a, b) for a, b in itertools.pairwise(integers))


whole = st.integers(-(10**12), 10**12)


@given(whole, st.integers(1, 10**6), whole, st.integers(1, 10**6))
def test_rational_numbers_exactly(p, q, r, s):
    a, b = Fraction(p, q), Fraction(r, s)
    latex = rf"\frac{{{a.numerator}}}{{{a.denominator}}}"
    assert exact_value(latex) == exact_value(f"{a.numerator}/{a.denominator}") == a
    assert compare(latex, f"{b.numerator}/{b.denominator}") is (a == b)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6))
def test_decimals_exactly(value):
    assert exact_value(f"{value:f}") == Fraction(value)


@given(st.text(alphabet="0123456789+-*/^(){}[],.=<>!%_&| \\abexfrcsqtpi$\n", max_size=60))
def test_no_text_breaks_the_comparison(text):
    assert compare(text, "4") in (True, False, None)
    assert compare(text, "4") == compare("4", text)
    extract(text)


@pytest.mark.parametrize(
    "text",
    [
        "9" * 5000,
        "(" * 1000,
        r"\frac{" * 400,
        "x^{" * 300 + "}" * 300,
        "-" * 900 + "1",
        "1e999999999",
        "2^" * 500 + "2",
        "0^{-1}",
        r"\frac{1}{0}",
        "!" * 50,
        "5!!!!!!",
        "\ud800",
        "\x00",
    ],
)
def test_hostile_text_is_refused_at_once(text):
    start = time.monotonic()
    assert compare(text, "4") in (False, None)
    assert time.monotonic() - start < 5


TOWER = "$9^{9^{9^{9}}}$"


def _scores():
    hard, gold = r"\boxed{\frac{1}{3}}", r"\frac{1}{3}"
    root = grade(r"\boxed{\sqrt{12}}", r"2\sqrt3", seconds=LIMIT)
    return [grade(hard, gold)[0], grade("I don't know.", gold)[0], root[0]]


def test_same_scores_in_every_thread():
    found = {"main": _scores()}
    thread = threading.Thread(target=lambda: found.update(thread=_scores()))
    thread.start()
    thread.join()

    async def inside():
        return await asyncio.get_running_loop().run_in_executor(None, _scores)

    found["executor"] = asyncio.run(inside())
    assert found == {key: [1.0, 0.0, 1.0] for key in ("main", "thread", "executor")}


def test_time_limit_holds_off_the_main_thread():
    math_equal(r"\sqrt{2}", r"\sqrt{3}", seconds=LIMIT)  # the worker runs
    found = {}

    def ask():
        start = time.monotonic()
        found["verdict"], found["answer"] = grade(f"\\boxed{{{TOWER.strip('$')}}}", r"\frac{1}{3}", seconds=1.0)
        found["seconds"] = time.monotonic() - start

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found["verdict"] is None or found["verdict"] == 0.0
    assert found["answer"] == "9^{9^{9^{9}}}" and found["seconds"] < 10
    assert math_equal(r"\sqrt{8}", r"2\sqrt{2}", seconds=LIMIT) is True  # and the next check is served


def test_a_failure_is_no_truth_value():
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(Failure("time"))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{4}", "4"),
        (r"\boxed{\frac{1}{2}} and \boxed{\text{a } {b}}", r"\text{a } {b}"),
        (r"\boxed{1}, no, \boxed{2", "1"),
        (r"cut \boxed{\frac{1}{2", None),
        (r"\boxed 7", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{}", None),
        ("I don't know.", None),
        ("", None),
    ],
)
def test_boxed(text, answer):
    assert extract_boxed(text) == answer


def test_other_extractors():
    assert extract_hash("a #### 1\nb\n#### 1,234.") == "1,234"
    assert extract_phrase("The answer is 12. Because.") == "12"
    assert extract_phrase("The final answer is: 3.5 km.\nBye") == "3.5 km"
    assert last_number("he paid $1,234.50 for 3, so -7") == "-7"
    assert last_number("costs $1,234.50.") == "1,234.50"
    assert last_number("x1 and none") is None
    assert extract("#### 3, or \\boxed{4}") == "4"


def test_batch_keeps_its_length_and_order():
    rows = [grade(t, g) for t, g in ((r"\boxed{4}", "4"), ("I don't know.", "4"), (r"\boxed{5}", "5"))]
    assert [score for score, _ in rows] == [1.0, 0.0, 1.0]
    assert [answer for _, answer in rows] == ["4", None, "5"]
    votes = Counter(grade(rf"\boxed{{{v}}}", "1")[1] for v in (137, 137, 152))
    assert votes.most_common(1) == [("137", 2)]
    assert grade("", "4") == (0.0, None)
    assert grade(r"\boxed{4", "4", order=("boxed",)) == (0.0, None)


class TestComponent:
    def trajectory(self, text, answer):
        return Trajectory(Problem("p", "?", answer), 0, 0, 0, "policy", 0, Stop.EOS, {}, info={"completion": text})

    def test_judges_and_keeps_what_it_extracted(self):
        trajs = [self.trajectory(t, a) for t, a in ((r"\boxed{4}", 4), ("none", "4"), ("#### 0.50", "1/2"))]
        ctx = Ctx({}, SimpleNamespace(name="t"), None, None)
        assert registry.build("reward", "maths").judge(trajs, ctx) == [1.0, 0.0, 1.0]
        assert [t.info["extracted"] for t in trajs] == ["4", None, "0.50"]

    def test_no_verdict_is_counted_and_is_no_zero(self):
        logged = []
        ctx = Ctx({}, SimpleNamespace(name="t"), None, None, log=lambda *item: logged.append(item))
        rewards = registry.build("reward", "maths", {"seconds": 0.5}).judge(
            [self.trajectory(rf"\boxed{{{TOWER}}}", r"\sqrt{2}")], ctx
        )
        assert rewards == [None] and logged == [("failures/verifier", 1.0)]

    @pytest.mark.parametrize("settings", [{"order": ["box"]}, {"order": []}, {"seconds": 0}])
    def test_wrong_settings(self, settings):
        with pytest.raises(registry.RecipeError, match=r"order|seconds"):
            registry.build("reward", "maths", settings)

    def test_missing_gold_is_an_error(self):
        with pytest.raises(ValueError, match="gold"):
            registry.build("reward", "maths").judge([self.trajectory("4", None)], Ctx({}, None, None, None))


def test_a_choice_of_numbers_is_no_single_answer():
    for text in ("18 or 19", "18, 19", "It is 18; 19", r"18 \text{ or } 19", "18 and 19."):
        assert extract(text) is None, text
    for text, answer in (
        ("19 and then 18", "18"),
        ("18, 18", "18"),
        ("1,250", "1,250"),
        ("3 + 15 = 18", "18"),
        ("7\n18", "18"),
    ):
        assert extract(text) == answer, text


def test_nested_boxes_take_linear_time():
    started = time.perf_counter()
    assert extract_boxed("\\boxed{" * 50_000) is None
    assert extract_boxed("\\boxed{" * 50_000 + "7" + "}" * 50_000) == "7"
    assert time.perf_counter() - started < 5


def test_digits_of_other_scripts_and_words_behind_words_are_no_numbers_and_units():
    assert last_number("\u0664\u0662") is None and math_equal("\u0664\u0662", "42") is False
    assert math_equal(r"\text{Evelyn} \text{Bob}", r"\text{Evelyn}") is False
    assert math_equal(r"15\text{ cm}", "15") is True
