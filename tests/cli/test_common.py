"""What all commands share."""

import os
import signal

import pytest
import typer

from gainstage.cli.common import people_errors, stopping_at_once, visible


def test_control_characters_cannot_reach_the_terminal():
    assert visible("a\tb\nü 东 ✓") == "a\tb\nü 东 ✓"
    assert visible("\x1b[2J\x1b]0;title\x07done\r\x9b1m") == r"\x1b[2J\x1b]0;title\x07done\r\x9b1m"


def test_sigterm_stops_like_ctrl_c_and_the_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts a job in the background
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            with pytest.raises(KeyboardInterrupt), stopping_at_once():
                os.kill(os.getpid(), number)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("message", "shown"), [("2 of 9 runs are finished", "stopped; 2 of 9"), ("", "stopped\n")])
def test_a_stop_says_how_to_go_on(capsys, message, shown):
    @people_errors
    def command():
        raise KeyboardInterrupt(*filter(None, [message]))

    with pytest.raises(typer.Exit) as left:
        command()
    assert left.value.exit_code == 130
    assert f"gainstage: {shown}" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "code"), [(ValueError, 2), (RuntimeError, 1)])
def test_a_fault_says_where_it_happened(capsys, kind, code):
    @people_errors
    def command():
        error = kind("broken")
        error.add_note("in gym:World, copy 3")
        raise error

    with pytest.raises(typer.Exit) as left:
        command()
    assert left.value.exit_code == code
    assert "broken, in gym:World, copy 3" in capsys.readouterr().err
