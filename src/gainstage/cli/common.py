"""What every command shares: errors for people, threads, stopping, plugins."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

Function = TypeVar("Function", bound=Callable[..., Any])

Overrides = Annotated[
    list[str] | None, typer.Argument(help="Changes to the recipe, key=value: update.policy.lr=3e-4", show_default=False)
]
PolicyName = Annotated[
    str | None,
    typer.Option("--policy", help="Model: micro, smollm2, a folder, a run, or a hub name.", show_default=False),
]
TaskName = Annotated[
    str | None,
    typer.Option("--task", help="Task: a name, jsonl:PATH, hf:ID, rg:NAME, gym:ID, minari:PATH.", show_default=False),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", help="Your own file with components; may be given several times.", show_default=False),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything that is random.", show_default=False)]
BudgetText = Annotated[
    list[str] | None,
    typer.Option("--budget", help="Limit, axis=number: generated_tokens=2e6, seconds=300.", show_default=False),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1.")]
Threads = Annotated[int | None, typer.Option("--threads", help="CPU threads of torch.", show_default=False)]
ThreadsEach = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="CPU threads of each run; absent = cores / jobs.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def people_errors(function: Function) -> Function:
    """A mistake the user can mend is one message and exit code 2; `GAINSTAGE_DEBUG=1` shows the traceback."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (typer.Exit, typer.Abort):
            raise
        except SystemExit as error:  # nothing here leaves like that: a task, a plugin or a library did
            last = traceback.extract_tb(error.__traceback__)[-1]
            fail(f"{last.filename}:{last.lineno} asked the whole program to end (exit {error.code!r})", 3)
        except KeyboardInterrupt as error:
            fail(f"stopped; {error}" if str(error) else "stopped", 130)
        except BrokenPipeError:  # the reader, `head` or `less`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise SystemExit(141) from None
        except Exception as error:
            if os.environ.get("GAINSTAGE_DEBUG") == "1":
                raise
            code = _code(error)
            if code is None:
                last = traceback.extract_tb(error.__traceback__)[-1]
                fail(
                    f"unexpected {type(error).__name__}: {error}{_notes(error)} ({last.filename}:{last.lineno}). "
                    "GAINSTAGE_DEBUG=1 shows the whole trace",
                    1,
                )
            fail(f"{error}{_notes(error)}", code or 2)

    return wrapped  # type: ignore[return-value]


def _notes(error: Exception) -> str:
    """Where it happened, as those say who let it pass."""
    return "".join(f", {note}" for note in getattr(error, "__notes__", ()))


def _code(error: Exception) -> int | None:
    from gainstage.checkpoint import CheckpointError
    from gainstage.ops.extras import MissingExtra
    from gainstage.trainer import RunError

    if isinstance(error, RunError | FloatingPointError):
        return 3
    if isinstance(error, ValueError | MissingExtra | CheckpointError | OSError):
        return 2
    return None


def fail(message: str, code: int) -> None:
    """Say it on standard error and leave."""
    print(f"gainstage: {visible(message)}", file=sys.stderr)
    raise typer.Exit(code)


def visible(text: str) -> str:
    """Text for a terminal: control characters, which could move its cursor or colour its screen, become escapes."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def prepare(threads: int | None = None, plugins: list[Path] | None = None) -> None:
    """Threads, quiet libraries, the user's own components."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import torch
    from transformers.utils import logging as quiet

    from gainstage.registry import load_entry_points, load_plugin

    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)
    for plugin in plugins or []:
        load_plugin(plugin)
    load_entry_points()


def pick_device(device: str) -> str:
    """`auto` is the first GPU where there is one."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.device(device)
    except RuntimeError:
        raise ValueError(f"--device: {device!r} is no device; use auto, cpu, cuda or cuda:N") from None
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: torch sees no GPU here; use --device cpu")
    return device


def changes(
    overrides: list[str] | None,
    task: str | None = None,
    policy: str | None = None,
    seed: int | None = None,
    budget: list[str] | None = None,
) -> list[str]:
    """The short options as overrides, behind which the written ones stand."""
    import json

    from gainstage.measure.budget import Budget

    out = []
    if task is not None:
        out.append(f"task={json.dumps(task)}")
    if policy is not None:
        out.append(f"models.policy.load={json.dumps(policy)}")
    if seed is not None:
        out.append(f"seed={seed}")
    if budget:
        out += [f"budget.{axis}={limit!r}" for axis, limit in Budget.parse(budget).limits.items()]
    return [*out, *(overrides or [])]


@contextlib.contextmanager
def _handling(handle: Callable[[int, Any], None]) -> Iterator[None]:
    """`handle` gets Ctrl-C and SIGTERM inside; who got them before gets them again afterwards."""
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stopping_at_once() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does, also in a job that a shell started in the background, where Ctrl-C is ignored."""

    def handle(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    with _handling(handle):
        yield


@contextlib.contextmanager
def stopping(ask: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks for a stop at the end of the iteration, the second one stops at once."""
    asked = False

    def handle(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt("what the last checkpoint holds is kept. Go on with: gainstage train --resume RUN")
        asked = True
        print("\ngainstage: stopping after this iteration (again: at once)", file=sys.stderr)
        ask()

    with _handling(handle):
        yield
