"""Tools that the rollout brings along: a user's own functions on top of any task, with or without an environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gainstage.ops.calls import Call, CallError, parse_call, parse_calls
from gainstage.ops.tools import Tool, ToolLimits, ToolRegistry, ToolResult, ToolRunner, answer_calls, tool
from gainstage.registry import load_file
from gainstage.types import EnvStep, Message, Problem, Task, TextEnv

__all__ = [
    "Call", "CallError", "Tool", "ToolLimits", "ToolOverlay", "ToolRegistry", "ToolResult", "ToolRunner", "load_tools",
    "overlay", "parse_call", "parse_calls", "tool",
]  # fmt: skip


class ToolOverlay:
    """An environment that answers calls to its own tools and hands every other text to the one below.

    Without one below, a text without a call is the final answer and ends the episode.
    """

    def __init__(self, prompt: str | Sequence[Message], runner: ToolRunner, below: TextEnv | None = None) -> None:
        self.prompt, self.runner, self.below = prompt, runner, below

    def start(self) -> list[Message]:
        """The prompt as messages, the tools described in the system message."""
        described = self.runner.registry.describe()
        prompt = self.prompt if self.below is None else self.below.start()
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if messages and messages[0].get("role") == "system":
            return [{**messages[0], "content": f"{messages[0]['content']}\n\n{described}"}, *messages[1:]]
        return [{"role": "system", "content": described}, *messages]

    def step(self, text: str) -> EnvStep:
        calls = parse_calls(text, first=self.runner.calls + self.runner.invalid + 1)
        if not calls:
            return EnvStep("", done=True) if self.below is None else self.below.step(text)
        return answer_calls(calls, self.runner, tagged=False)


def load_tools(references: Sequence[str], cost: float = 0.0) -> ToolRegistry:
    """Tools from `file.py:function` references.

    Raises:
        ValueError: a reference without a colon, a missing file, or no such function in it.
    """
    return ToolRegistry([tool(_function(reference), cost=cost) for reference in references])


def _function(reference: str) -> Callable[..., Any]:
    path, _, name = reference.rpartition(":")
    if not path or not name:
        raise ValueError(f"tools: {reference!r} must read file.py:function")
    if not Path(path).is_file():
        raise ValueError(f"tools: {path} does not exist")
    found = getattr(load_file(Path(path)), name, None)
    if not callable(found):
        raise ValueError(f"tools: {path} has no function {name!r}")
    return found


def overlay(task: Task, problem: Problem, registry: ToolRegistry, limits: ToolLimits) -> ToolOverlay:
    """The task's environment, or its plain prompt where it has none, with the tools on top."""
    below = task.open(problem) if "env" in task.capabilities else None  # type: ignore[attr-defined]
    return ToolOverlay(problem.prompt, ToolRunner(registry, limits), below)
