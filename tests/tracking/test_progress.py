"""Progress: the time that is left, plain lines outside a terminal, one live block inside."""

from __future__ import annotations

import io
import re

import pytest

from gainstage.tracking import Progress, count, duration
from gainstage.tracking.progress import summary


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (83, "1:23"), (7509, "2:05:09")]
)
def test_duration(seconds: float, text: str):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (950, "950"), (999.7, "1k"), (12345, "12.3k"), (4.561e6, "4.56M"), (2e9, "2G")]
)
def test_count(number: float, text: str):
    assert count(number) == text


def test_no_time_is_told_before_a_twentieth_of_a_run_was_seen():
    clock = Clock()
    progress = Progress(4, stream=io.StringIO(), clock=clock)
    assert progress.remaining() is None
    clock.now = 30
    progress.update("a", 0.0)  # it has started up
    clock.now = 31
    progress.update("a", 0.04)
    assert progress.remaining() is None


def test_start_up_and_evaluation_are_no_progress():
    """20 s of start-up, then 1 % a second, 5 s of last evaluation; two at a time."""
    clock = Clock()
    progress = Progress(4, stream=io.StringIO(), clock=clock)
    for label in "ab":
        progress.start(label)
    clock.now = 20
    for label in "ab":
        progress.update(label, 0.0)
    clock.now = 30
    for label in "ab":
        progress.update(label, 0.1)
    assert progress.remaining() == pytest.approx((2 * 90 + 2 * 120) / 2)  # two runs wait and have to start up
    clock.now = 120
    for label in "ab":
        progress.update(label, 1.0)
    clock.now = 125
    for label in "ab":
        progress.finish(label)
    progress.start("c")
    assert progress.remaining() == pytest.approx(125)  # c and d, side by side: start-up, way, last evaluation
    clock.now = 130
    assert progress.remaining() == pytest.approx((120 + 125) / 2, abs=3)
    progress.update("c", 0.0)
    assert progress.remaining() == pytest.approx(5 + 100 + 5)  # the fastest start-up is the one to expect


def test_one_slow_run_decides_when_nothing_else_is_left():
    clock = Clock()
    progress = Progress(2, stream=io.StringIO(), clock=clock)
    for now, share in ((0, (0.0, 0.0)), (10, (0.9, 0.1))):
        clock.now = now
        for label, fraction in zip("ab", share, strict=True):
            progress.update(label, fraction)
    assert progress.remaining() == pytest.approx(90)


def test_a_resumed_run_does_not_count_what_was_done_before():
    clock = Clock()
    progress = Progress(stream=io.StringIO(), clock=clock)
    for now, share in ((5, 0.5), (15, 0.75)):
        clock.now = now
        progress.update("a", share)
    assert progress.remaining() == pytest.approx(10)


def test_runs_that_were_finished_before_or_failed_are_not_waited_for():
    clock = Clock()
    progress = Progress(3, stream=(stream := io.StringIO()), clock=clock)
    progress.finish("a", "was finished before")
    progress.start("b")
    progress.fail("b", "failed: no memory")
    for now, share in ((0, 0.0), (10, 0.5)):
        clock.now = now
        progress.update("c", share)
    assert progress.remaining() == pytest.approx(10)
    assert "[2/3] b: failed: no memory" in stream.getvalue()


def test_the_last_held_out_rate_stays_on_the_line():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream=stream, every=0, clock=clock)
    progress.update("a", 0.0, note="held-out pass@1 0.250")
    progress.update("a", 0.02, {"reward/mean": 0.5})
    assert stream.getvalue().splitlines()[-1] == "a    2 %  reward 0.500  held-out pass@1 0.250  0 s so far"


def test_plain_lines_come_at_most_every_few_seconds():
    clock, stream = Clock(), io.StringIO()
    progress = Progress(2, stream=stream, every=10, clock=clock)
    for iteration in range(40):
        clock.now = iteration
        metrics = {"reward/mean": 0.5, "length/mean": 12.345, "budget/generated_tokens": 1000 * iteration, "x": 1}
        progress.update("grpo s0", iteration / 40, metrics, note="held-out 0.6" if iteration == 30 else "")
    progress.finish("grpo s0", "pass@1 0.9")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5 and "\x1b" not in stream.getvalue()
    assert (
        lines[3] == "[0/2] grpo s0   75 %  reward 0.500  length 12.3  tokens 30k  held-out 0.6  30 s so far, 50 s left"
    )
    assert lines[4] == "[1/2] grpo s0  done  pass@1 0.9"


def test_a_finished_run_without_a_message_keeps_its_last_figures():
    stream = io.StringIO()
    progress = Progress(stream=stream)
    progress.update("a", 1.0, {"reward/mean": 1})
    progress.finish("a")
    assert stream.getvalue().splitlines()[-1] == "a  done  reward 1.000"


def test_in_a_terminal_the_block_is_drawn_over_and_taken_away():
    stream = io.StringIO()
    with Progress(2, stream=stream, live=True) as progress:
        progress.start("third")
        progress.update("first [run]", 0.5, {"reward/mean": 0.25})
        progress.update("second", 0.1)
        progress.say("a [line] above")
        progress.finish("first [run]", "well")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "third  starting" in text
    assert "first [run]   50 %  reward 0.250" in text and "a [line] above" in text
    assert "[1/2] first [run]  done  well" in text
    assert stream.getvalue().count("\x1b[2K") > 3  # lines were erased


def test_environments_show_the_return_of_episodes_and_not_the_reward_of_a_step():
    assert (
        summary({"reward/mean": 1.0, "episode/return": 187.25, "episode/count": 3.0, "budget/env_steps": 2048.0})
        == "return 187.2  steps 2.05k"
    )
    assert summary({"reward/mean": 1.0}) == "reward 1.000"
