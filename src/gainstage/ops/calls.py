"""Grammars of tool calls: from what a model wrote to a call or a readable error. Nothing here raises on text.

Two spellings, told apart by themselves:

- tag: `<calc 12*7>`, one pair of brackets around a known name and its positional arguments; made for models that
  write character by character;
- JSON: `<tool_call>{"name": "calc", "arguments": {"expression": "12*7"}}</tool_call>`, as many chat templates write
  the calls of the OpenAI message format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

MAX_BODY = 20_000
"""Longest call that is read, in characters."""

_JSON = r"<tool_call>(?P<body>.*?)(?P<closed></tool_call>|\Z)"


@dataclass(frozen=True)
class Call:
    """A call as written. `arguments` of the tag spelling are its text, bound by the tool's signature."""

    id: str
    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True)
class CallError:
    """A call that cannot be run; `message` is written for the model that made it."""

    id: str
    message: str
    name: str | None = None


class CallFault(ValueError):
    """Why a call cannot be run, in words for the model."""


def parse_calls(text: str, names: Collection[str] = (), first: int = 1) -> list[Call | CallError]:
    """All calls in a text, in order; an empty list where there is none.

    Args:
        names: tools that may be called by tag; any other tag is text.
        first: number of the first call, for calls that bring no id of their own.
    """
    found: list[Call | CallError] = []
    for match in re.finditer(_pattern(names), text, re.DOTALL):
        number = first + len(found)
        if match["body"] is not None:
            found.append(_json_call(match["body"], match["closed"] != "", f"call_{number}"))
        elif match["end"]:
            found.append(Call(str(number), match["name"], (match["text"] or "").strip()))
        else:
            found.append(CallError(str(number), "the call is cut, its '>' is missing", match["name"]))
    return found


def parse_call(text: str, names: Collection[str] = (), first: int = 1) -> Call | CallError:
    """The first call of a text, or an error that says that there is none."""
    calls = parse_calls(text, names, first)
    return calls[0] if calls else CallError(f"call_{first}", "no tool call found")


def parse_message_call(call: Mapping[str, Any], own: str = "call_1") -> Call | CallError:
    """A call of the OpenAI message format: `{"id", "function": {"name", "arguments": JSON text}}`.

    Args:
        own: id for a call that brings none.
    """
    number, name = _call_id(call, own), None
    try:
        function = call.get("function")
        if not isinstance(function, Mapping):
            raise CallFault("the call has no 'function' object")
        name = _name(function)
        raw = function.get("arguments")
        if raw is not None and not isinstance(raw, str):
            raise CallFault(f"'arguments' must be JSON text, got {_kind(raw)}")
        return Call(number, name, read_arguments("" if raw is None else raw))
    except CallFault as fault:
        return CallError(number, str(fault), name)


def read_arguments(text: str) -> dict[str, Any]:
    """Arguments from their JSON text; an empty text means no arguments.

    Raises:
        CallFault: anything but one JSON object.
    """
    return _object(_read_json(text, "text of 'arguments'")) if text.strip() else {}


def _pattern(names: Collection[str]) -> str:
    if not names:
        return _JSON + r"|(?P<name>(?!))(?P<text>)(?P<end>)"
    known = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    return _JSON + rf"|<(?P<name>{known})(?:\s+(?P<text>[^<>\n]*))?(?P<end>>|(?=[<\n])|\Z)"


def _json_call(body: str, closed: bool, own: str) -> Call | CallError:
    number, name = own, None
    try:
        if not closed:
            raise CallFault("the call is cut: </tool_call> is missing")
        record = _read_json(body, "call")
        if not isinstance(record, dict):
            raise CallFault(f"the call must be a JSON object with 'name' and 'arguments', got {_kind(record)}")
        number, name = _call_id(record, own), _name(record)
        if unknown := sorted(set(record) - {"id", "name", "arguments"}):
            raise CallFault(f"unknown key {_short(unknown[0])}; a call has 'name' and 'arguments'")
        arguments = record.get("arguments", {})
        return Call(number, name, {} if arguments == "" else _object(arguments))
    except CallFault as fault:
        return CallError(number, str(fault), name)


def _call_id(record: Mapping[str, Any], own: str) -> str:
    given = record.get("id")
    return given if isinstance(given, str) and re.fullmatch(r"[\w.:-]{1,64}", given) else own


def _name(record: Mapping[str, Any]) -> str:
    name = record.get("name")
    if not isinstance(name, str) or not name:
        raise CallFault("the call has no 'name'")
    return name


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        raise CallFault("'arguments' is a string; write the JSON object itself, without quotes around it")
    if not isinstance(value, dict):
        raise CallFault(f"'arguments' must be a JSON object, got {_kind(value)}")
    return value


def _read_json(text: str, what: str) -> Any:
    if len(text) > MAX_BODY:
        raise CallFault(f"the {what} is longer than {MAX_BODY} characters")
    try:
        return json.loads(text, object_pairs_hook=_no_twins, parse_constant=_no_constant)
    except CallFault:
        raise
    except RecursionError:
        raise CallFault(f"the {what} is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise CallFault(f"the {what} is not valid JSON: {error.msg} at character {error.pos}") from None
    except ValueError:  # a number with thousands of digits
        raise CallFault(f"the {what} holds a number that is too long") from None


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise CallFault("a key stands twice in one object")
    return record


def _no_constant(name: str) -> Any:
    raise CallFault(f"{name} is not a JSON number")


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "true or false", int: "a number"}
    return "null" if value is None else kinds.get(type(value), "a number")


def _short(value: Any, limit: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= limit else text[: limit - 3] + "..."
