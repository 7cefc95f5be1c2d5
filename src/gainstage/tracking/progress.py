"""Progress of one run or of several: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

SHOWN: dict[str, tuple[str, str]] = {
    "episode/return": ("return", "{:.4g}"),
    "reward/mean": ("reward", "{:.3f}"),
    "length/mean": ("length", "{:.1f}"),
    "entropy/mean": ("entropy", "{:.2f}"),
    "budget/generated_tokens": ("tokens", "count"),
    "budget/env_steps": ("steps", "count"),
}
"""Metrics on the line, in order: label and format."""
SEEN = 0.05
"""Share of a run that its pace is taken from, at least: the first iterations are not typical."""


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
        value = None if name == "reward/mean" and "episode/count" in metrics else metrics.get(name)
        if isinstance(value, int | float):
            words.append(f"{label} {count(value) if form == 'count' else form.format(value)}")
    return "  ".join(words)


@dataclass
class _Part:
    """One run: when it was started, its first and last news (time, share of its way), when it ended."""

    started: float | None = None
    first: tuple[float, float] | None = None
    last: tuple[float, float] = (0.0, 0.0)
    ended: float | None = None
    note: str = ""
    line: str = "starting"

    @property
    def unit(self) -> float | None:
        """Seconds for the whole way at its own pace; None before a twentieth of it was seen."""
        if self.first is None or self.last[1] - self.first[1] < SEEN or self.last[0] <= self.first[0]:
            return None
        return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])


class Progress:
    """Shows how far `parts` runs are, and how long they will take.

    A run's pace is taken between its first news, which comes once it has started up and been looked at, and its last.
    What lies before and after (start-up, first and last evaluation) is no progress: it is timed by itself and added
    for the runs that still have it ahead. There is no estimate before a twentieth of a run was seen.

    Args:
        parts: number of runs that will be shown, one after the other or at the same time.
        stream: where to; standard error where absent.
        live: draw over the line; by default where the stream is a terminal.
        every: seconds between plain lines of one run.
        clock: for tests.
    """

    def __init__(
        self,
        parts: int = 1,
        *,
        stream: TextIO | None = None,
        live: bool | None = None,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() if live is None else live
        self._count, self._every, self._clock = max(parts, 1), every, clock
        self._began = clock()
        self._parts: dict[str, _Part] = {}
        self._printed: dict[str, float] = {}
        self._finished = self._slots = 0
        self._display: Any = None

    def start(self, label: str) -> None:
        """A run begins; its first news comes when it has started up."""
        self._parts[label] = _Part(started=self._clock())
        self.tick()

    def update(self, label: str, fraction: float, metrics: Mapping[str, Any] | None = None, *, note: str = "") -> None:
        """A run has come to `fraction` of its way, in [0, 1]. A note stays until the next one."""
        part, now = self._parts.setdefault(label, _Part()), self._clock()
        part.last = (now, min(max(fraction, 0.0), 1.0))
        part.first, part.note = part.first or part.last, note or part.note
        words = [f"{100 * part.last[1]:3.0f} %", summary(metrics or {}), part.note]
        part.line = "  ".join(word for word in words if word)
        self._slots = max(self._slots, sum(p.ended is None for p in self._parts.values()))
        if self._live:
            self._draw()
        elif label not in self._printed or now - self._printed[label] >= self._every:
            self._printed[label] = now
            self._print(f"{self._prefix()}{label}  {part.line}  {self._eta()}")

    def finish(self, label: str, message: str = "") -> None:
        """A run is done; its last line stays."""
        part = self._end(label)
        last = part.line.removeprefix("100 %").strip() if part.first else ""
        self._print(f"{self._prefix()}{label}  done  {message or last}".rstrip())
        self.tick()

    def fail(self, label: str, message: str) -> None:
        """A run ended without a result."""
        self._end(label)
        self._print(f"{self._prefix()}{label}: {message}")
        self.tick()

    def _end(self, label: str) -> _Part:
        part = self._parts.setdefault(label, _Part())
        part.ended = self._clock()
        self._finished += 1
        return part

    def say(self, message: str) -> None:
        """A line of its own, above what is live."""
        self._print(message)

    def tick(self) -> None:
        """Time has passed: draw the live block again."""
        if self._live and self._parts:
            self._draw()

    def close(self) -> None:
        """Take the live line away."""
        if self._display is not None:
            self._display.stop()
            self._display = None

    def remaining(self) -> float | None:
        """Seconds that are left at the pace so far; None while that is not known."""
        parts, now = list(self._parts.values()), self._clock()
        units = [unit for part in parts if (unit := part.unit) is not None]
        if not units:
            return None
        usual = sum(units) / len(units)
        heads = [p.first[0] - p.started for p in parts if p.first is not None and p.started is not None]
        tails = [p.ended - p.last[0] for p in parts if p.ended is not None and p.first is not None]
        head, tail = min(heads, default=0.0), sum(tails) / len(tails) if tails else 0.0
        left = [_left(p, now, usual, head, tail) for p in parts if p.ended is None]
        left += [head + usual + tail] * (self._count - len(parts))
        return max(max(left, default=0.0), sum(left) / max(self._slots, 1))

    def _share(self) -> float:
        """How far all runs are together, in [0, 1]."""
        done = sum(1.0 if part.ended is not None else part.last[1] for part in self._parts.values())
        return min(done / self._count, 1.0)

    def _eta(self) -> str:
        left = self.remaining()
        spent = duration(self._clock() - self._began)
        if left is None:
            return f"{spent} so far"
        return f"{spent} so far, {duration(left)} left" if left >= 0.5 else f"{spent} so far, last evaluation"

    def _prefix(self) -> str:
        return f"[{self._finished}/{self._count}] " if self._count > 1 else ""

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

        lines: list[Any] = [Text(f"{label}  {p.line}") for label, p in self._parts.items() if p.ended is None]
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


def _left(part: _Part, now: float, usual: float, head: float, tail: float) -> float:
    """Seconds that a run still needs, at its own pace where that is known."""
    if part.first is None:
        return max(head - (now - (part.started or now)), 0.0) + usual + tail
    rest = (1.0 - part.last[1]) * (part.unit or usual) + tail
    return max(rest - (now - part.last[0]), 0.0)
