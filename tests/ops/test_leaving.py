"""Code that tries to end the whole program."""

from __future__ import annotations

import os
import sys

import pytest

from gainstage.ops.leaving import said, staying


def test_leaving_becomes_an_exception_and_is_given_back() -> None:
    real = os._exit
    with pytest.raises(SystemExit) as caught, staying():
        os._exit(4)
    assert os._exit is real
    assert said(caught.value) == (
        "it asked the whole program to end (exit 4); raise an exception where something is wrong"
    )
    assert said(KeyError("x")) == "KeyError: 'x'"


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_child_still_ends_at_once() -> None:
    with staying():
        child = os.fork()
        if child == 0:
            os._exit(5)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 5
