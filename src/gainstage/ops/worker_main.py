"""The inside of a worker process: read a call, answer it, until the parent is gone."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
from typing import Any

GRACE = 2.0
"""Seconds after its limit at which the kernel ends a call whose parent did not."""


def main(target: str, memory_mb: int) -> None:
    """Serve calls of `target` from standard input; ends with it."""
    reply = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the function prints must not reach the protocol
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        module, _, name = target.partition(":")
        loaded = importlib.import_module(module)
        function = getattr(loaded, name)
        getattr(loaded, "warm_up", lambda: None)()
    except Exception as error:
        _send(reply, {"ready": False, "error": f"{type(error).__name__}: {error}"})
        return
    if memory_mb:
        limit = memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _send(reply, {"ready": True})
    for line in sys.stdin:
        call = json.loads(line)
        # default action: the kernel ends the process even inside a long C call, with or without a parent
        signal.setitimer(signal.ITIMER_REAL, call["seconds"] + GRACE)
        answer = _answer(function, call["args"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(reply, answer)


def _answer(function: Any, args: list[Any]) -> dict[str, Any]:
    try:
        return {"value": function(*args)}
    except MemoryError:
        return {"failure": "memory", "message": "out of memory"}
    except RecursionError as error:
        return {"failure": "error", "message": f"RecursionError: {error}"}
    except Exception as error:
        return {"failure": "error", "message": f"{type(error).__name__}: {error}"[:1000]}


def _send(reply: Any, message: dict[str, Any]) -> None:
    reply.write(json.dumps(message) + "\n")
    reply.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
