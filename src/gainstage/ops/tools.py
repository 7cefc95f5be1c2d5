"""Python functions as tools: checked arguments, bounded results, errors as text that a model can read."""

from __future__ import annotations

import inspect
import json
import threading
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gainstage.ops.calls import Call, CallError, CallFault
from gainstage.types import EnvStep


@dataclass(frozen=True)
class Tool:
    """One function that may be called.

    `cost` is what a call costs the caller, in units of reward. Make one with `tool`.
    """

    name: str
    description: str
    function: Callable[..., Any]
    parameters: Mapping[str, TypeAdapter[Any]]
    required: frozenset[str]
    cost: float = 0.0

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the OpenAI format: a function with the JSON schema of its parameters."""
        properties = {}
        for name, adapter in self.parameters.items():
            properties[name] = {key: value for key, value in adapter.json_schema().items() if key != "title"}
        parameters = {
            "type": "object",
            "properties": properties,
            "required": [name for name in self.parameters if name in self.required],
            "additionalProperties": False,
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def bind(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """Arguments by name with their types checked, never converted; the text of a tag call by position.

        Raises:
            CallFault: a missing, unknown or wrong argument.
        """
        if isinstance(arguments, str):
            return self._bind_text(arguments)
        known = ", ".join(self.parameters) or "none"
        for name in arguments:
            if name not in self.parameters:
                raise CallFault(f"{self.name} has no argument {name[:40]!r}; its arguments: {known}")
        for name in self.parameters:
            if name in self.required and name not in arguments:
                raise CallFault(f"{self.name} needs the argument {name!r}")
        return {name: self._checked(name, value) for name, value in arguments.items()}

    def _checked(self, name: str, value: Any) -> Any:
        try:
            return self.parameters[name].validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            raise CallFault(f"argument {name!r} of {self.name}: {_reason(error)}") from None
        except (ValueError, RecursionError):
            raise CallFault(f"argument {name!r} of {self.name} cannot be read") from None

    def _bind_text(self, text: str) -> dict[str, Any]:
        names = list(self.parameters)
        pieces = [] if not text else [text] if len(names) == 1 else [piece.strip() for piece in text.split(",")]
        if not len(self.required) <= len(pieces) <= len(names):
            raise CallFault(f"{self.name} takes {', '.join(names) or 'no arguments'}; got {len(pieces)}")
        bound = {}
        for name, piece in zip(names, pieces, strict=False):
            try:
                bound[name] = self.parameters[name].validate_strings(piece)
            except ValidationError as error:
                raise CallFault(f"argument {name!r} of {self.name}: {_reason(error)}") from None
        return bound


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def tool(function: Callable[..., Any], *, name: str | None = None, cost: float = 0.0) -> Tool:
    """A tool from a function: its name, the first paragraph of its docstring, its annotated parameters.

    Raises:
        ValueError: a parameter without annotation, `*args`, `**kwargs`, or a name that no call could spell.
    """
    called = name or function.__name__
    if not called.isidentifier():
        raise ValueError(f"tool name {called!r} must be an identifier: letters, digits and underscores")
    hints = typing.get_type_hints(function)
    parameters, required = {}, set()
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ValueError(f"tool {called!r}: parameter {key!r} must be one that can be given by name")
        if key not in hints:
            raise ValueError(
                f"tool {called!r}: annotate the parameter {key!r}, so that a call's argument can be checked"
            )
        parameters[key] = TypeAdapter(hints[key])
        if parameter.default is inspect.Parameter.empty:
            required.add(key)
    description = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    return Tool(called, description, function, parameters, frozenset(required), cost)


class ToolRegistry(Mapping[str, Tool]):
    """The tools that may be called, by name: an allow-list."""

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]]) -> None:
        self._tools: dict[str, Tool] = {}
        for item in tools:
            made = item if isinstance(item, Tool) else tool(item)
            if made.name in self._tools:
                raise ValueError(f"two tools are called {made.name!r}")
            self._tools[made.name] = made

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> typing.Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """JSON schemas of all tools, as a chat template or a server takes them."""
        return [made.schema for made in self.values()]

    def describe(self) -> str:
        """The tools as text for a system message, with the JSON spelling of a call."""
        lines = [json.dumps(schema, ensure_ascii=False) for schema in self.schemas]
        call = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
        return "\n".join(["You can call these tools:", *lines, f"Write a call as {call} and wait for its result."])


@dataclass(frozen=True)
class ToolLimits:
    """What one episode may do.

    Args:
        calls: most calls that run; further ones are answered by an error. None = no limit.
        characters: longest result; the rest is cut, and the cut is said.
        seconds: time for one call. Python cannot kill a thread, so a call that overruns is left behind while the
            episode goes on: for functions that may be slow, not for code that a model wrote.
    """

    calls: int | None = None
    characters: int = 2000
    seconds: float | None = None


@dataclass(frozen=True)
class ToolResult:
    """What a call gave. `valid`: it could be run; `ok`: it ran without an error."""

    id: str
    name: str | None
    text: str
    valid: bool
    ok: bool
    cost: float = 0.0


@dataclass
class ToolRunner:
    """Runs the calls of one episode and counts them. `run` never raises: every fault becomes a result."""

    registry: ToolRegistry
    limits: ToolLimits = field(default_factory=ToolLimits)
    calls: int = 0
    invalid: int = 0
    failed: int = 0

    def run(self, call: Call | CallError) -> ToolResult:
        """The result of one call; malformed, unknown and wrongly typed ones count as `invalid`."""
        try:
            chosen, arguments = self._check(call)
        except CallFault as fault:
            self.invalid += 1
            return ToolResult(call.id, call.name, self._bounded(str(fault)), valid=False, ok=False)
        self.calls += 1
        try:
            text = _as_text(_timed(chosen.function, arguments, self.limits.seconds))
        except (Exception, SystemExit) as error:  # whatever a tool does is an observation
            self.failed += 1
            message = self._bounded(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            return ToolResult(call.id, chosen.name, message, valid=True, ok=False, cost=chosen.cost)
        return ToolResult(call.id, chosen.name, self._bounded(text), valid=True, ok=True, cost=chosen.cost)

    def _check(self, call: Call | CallError) -> tuple[Tool, dict[str, Any]]:
        if isinstance(call, CallError):
            raise CallFault(call.message)
        if call.name not in self.registry:
            raise CallFault(f"there is no tool {call.name[:40]!r}; the tools: {', '.join(self.registry) or 'none'}")
        if self.limits.calls is not None and self.calls >= self.limits.calls:
            raise CallFault(f"no more calls: the limit is {self.limits.calls}")
        chosen = self.registry[call.name]
        return chosen, chosen.bind(call.arguments)

    def _bounded(self, text: str) -> str:
        text = text.encode("utf-8", "replace").decode()
        over = len(text) - self.limits.characters
        return text if over <= 0 else f"{text[: self.limits.characters]} [{over} characters cut]"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _timed(function: Callable[..., Any], arguments: dict[str, Any], seconds: float | None) -> Any:
    if seconds is None:
        return function(**arguments)
    box: dict[str, Any] = {}

    def work() -> None:
        try:
            box["value"] = function(**arguments)
        except (Exception, SystemExit) as error:
            box["error"] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no result within {seconds:g} s")
    if "error" in box:
        raise box["error"]
    return box["value"]


def render_result(result: ToolResult, *, tagged: bool) -> str:
    """A result as an observation. Errors carry the call's id in both spellings.

    Args:
        tagged: for calls written as tags: the bare result on a line; else a JSON object inside `<tool_response>`.
    """
    if tagged:
        return f"{result.text}\n" if result.ok else f"error {result.id}: {result.text}\n"
    record = {"id": result.id, "content" if result.ok else "error": result.text}
    return f"<tool_response>{json.dumps(record, ensure_ascii=False)}</tool_response>"


def answer_calls(calls: Sequence[Call | CallError], runner: ToolRunner, *, tagged: bool) -> EnvStep:
    """Run the calls of one turn. Their costs are the turn's reward; invalid calls make the turn malformed."""
    results = [runner.run(call) for call in calls]
    cost = sum(result.cost for result in results)
    invalid = sum(not result.valid for result in results)
    separator = "" if tagged else "\n"
    return EnvStep(
        separator.join(render_result(result, tagged=tagged) for result in results),
        reward=-cost if cost else None,
        info={"malformed": invalid > 0, "invalid_calls": invalid, "calls": len(calls)},
    )
