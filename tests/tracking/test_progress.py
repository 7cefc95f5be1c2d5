"""Progress: the time that is left, plain lines outside a terminal, one live block inside."""

from __future__ import annotations

import io
import re

import pytest

from gainstage.tracking import Progress, count, duration


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


def test_the_time_left_follows_the_pace_over_all_parts():
    clock = Clock()
    progress = Progress(4, stream=io.StringIO(), clock=clock)
    assert progress.remaining() is None
    clock.now = 1
    progress.update("a", 0.01)
    assert progress.remaining() is None  # too early to tell
    clock.now = 10
    progress.update("a", 0.5)
    progress.update("b", 0.5)
    assert progress.remaining() == pytest.approx(30)  # a quarter took 10 s
    progress.finish("a")
    assert progress.remaining() == pytest.approx(10 / 0.375 * 0.625)


def test_a_resumed_run_does_not_count_what_was_done_before():
    clock = Clock()
    progress = Progress(done=0.5, stream=io.StringIO(), clock=clock)
    clock.now = 10
    progress.update("a", 0.75)
    assert progress.remaining() == pytest.approx(10)


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
        progress.update("first [run]", 0.5, {"reward/mean": 0.25})
        progress.update("second", 0.1)
        progress.say("a [line] above")
        progress.finish("first [run]", "well")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "first [run]   50 %  reward 0.250" in text and "a [line] above" in text
    assert "[1/2] first [run]  done  well" in text
    assert stream.getvalue().count("\x1b[2K") > 3  # lines were erased
