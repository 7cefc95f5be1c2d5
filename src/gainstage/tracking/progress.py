"""Progress of one run or of several: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

SHOWN: dict[str, tuple[str, str]] = {
    "reward/mean": ("reward", "{:.3f}"),
    "length/mean": ("length", "{:.1f}"),
    "entropy/mean": ("entropy", "{:.2f}"),
    "budget/generated_tokens": ("tokens", "count"),
    "budget/env_steps": ("steps", "count"),
}
"""Metrics on the line, in order: label and format."""


def duration(seconds: float) -> str:
    """Seconds as a person says them: 4 s, 1:23, 2:05:09."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def count(number: float) -> str:
    """A number with three digits at most: 950, 12.3k, 4.56M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def summary(metrics: Mapping[str, Any]) -> str:
    """The few metrics that a line has room for."""
    words = []
    for name, (label, form) in SHOWN.items():
        value = metrics.get(name)
        if isinstance(value, int | float):
            words.append(f"{label} {count(value) if form == 'count' else form.format(value)}")
    return "  ".join(words)


class Progress:
    """Shows how far `parts` runs are, and how long they will take.

    The estimate takes the pace since this object was made, over all parts; it needs a twentieth of a part, since
    the first iterations are not typical.

    Args:
        parts: number of runs that will be shown, one after the other or at the same time.
        done: share of all of it that was done before (a resumed run), in [0, 1).
        stream: where to; standard error where absent.
        live: draw over the line; by default where the stream is a terminal.
        every: seconds between plain lines of one run.
        clock: for tests.
    """

    def __init__(
        self,
        parts: int = 1,
        *,
        done: float = 0.0,
        stream: TextIO | None = None,
        live: bool | None = None,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() if live is None else live
        self._parts, self._done, self._every, self._clock = max(parts, 1), done, every, clock
        self._began = clock()
        self._fractions: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._finished = 0
        self._display: Any = None
        self._lines: dict[str, str] = {}

    def update(self, label: str, fraction: float, metrics: Mapping[str, Any] | None = None, *, note: str = "") -> None:
        """A run has come to `fraction` of its way, in [0, 1]."""
        first = label not in self._fractions
        self._fractions[label] = min(max(fraction, 0.0), 1.0)
        words = [f"{100 * self._fractions[label]:3.0f} %", summary(metrics or {}), note]
        self._lines[label] = "  ".join(word for word in words if word)
        if self._live:
            self._draw()
        elif first or self._clock() - self._last[label] >= self._every:
            self._last[label] = self._clock()
            self._print(f"{self._prefix()}{label}  {self._lines[label]}  {self._eta()}")

    def finish(self, label: str, message: str = "") -> None:
        """A run is done; its last line stays."""
        self._fractions[label] = 1.0
        self._finished += 1
        last = self._lines.pop(label, "").removeprefix("100 %").strip()
        self._print(f"{self._prefix()}{label}  done  {message or last}".rstrip())
        if self._live:
            self._draw()

    def say(self, message: str) -> None:
        """A line of its own, above what is live."""
        self._print(message)

    def close(self) -> None:
        """Take the live line away."""
        if self._display is not None:
            self._display.stop()
            self._display = None

    def remaining(self) -> float | None:
        """Seconds that are left at the pace so far; None while that is not known."""
        share = self._share()
        gained = share - self._done
        if gained * self._parts < 0.05:
            return None
        return (self._clock() - self._began) * (1.0 - share) / gained

    def _share(self) -> float:
        return min(max(self._done, sum(self._fractions.values()) / self._parts), 1.0)

    def _eta(self) -> str:
        left = self.remaining()
        spent = duration(self._clock() - self._began)
        return f"{spent} so far" if left is None else f"{spent} so far, {duration(left)} left"

    def _prefix(self) -> str:
        return f"[{self._finished}/{self._parts}] " if self._parts > 1 else ""

    def _print(self, line: str) -> None:
        if self._display is not None:
            self._display.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=self._stream, flush=True)

    def _draw(self) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        lines: list[Any] = [Text(f"{label}  {line}") for label, line in self._lines.items()]
        overall = Text(f"{self._prefix()}{self._eta()}", style="dim")
        body = Group(*lines, ProgressBar(total=1.0, completed=self._share(), width=40), overall)
        if self._display is None:
            console = Console(file=self._stream, force_terminal=True)
            self._display = Live(body, console=console, transient=True, auto_refresh=False)
            self._display.start()
        self._display.update(body, refresh=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
