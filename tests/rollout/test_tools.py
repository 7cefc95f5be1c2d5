"""Tool calls: spellings, strictness, limits. Whatever a model writes becomes a readable observation."""

import json
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rollout.scripted import ScriptedPolicy, ScriptedTask, context

from gainstage.ops.calls import Call, CallError, parse_call, parse_calls, parse_message_call
from gainstage.ops.tools import ToolLimits, ToolRegistry, ToolRunner, render_result, tool
from gainstage.rollout.agents.multi_turn import MultiTurn
from gainstage.rollout.agents.tools import ToolOverlay, load_tools
from gainstage.types import EnvStep, Problem, Request, Stop


def f(x: int) -> str:
    """Doubles a number.

    More for the curious.
    """
    return str(2 * x)


def runner(*functions, **limits):
    return ToolRunner(ToolRegistry(functions or (f,)), ToolLimits(**limits))


FAULTY = {
    '{"x": 1': "not valid JSON",
    '"{\\"x\\": 1}"': "string",
    "[1]": "an array",
    "null": "null",
    "5": "a number",
    "": "needs the argument 'x'",
    '{"y": 1}': "no argument 'y'",
    '{"x": "a"}': "valid integer",
    '{"x": true}': "valid integer",
    '{"x": "1"}': "valid integer",
    '{"x": null}': "valid integer",
    '{"x": 1, "x": 2}': "twice",
    '{"x": NaN}': "NaN",
    '{"x": 1e999}': "valid integer",
    '{"x": %s}' % ("9" * 5000): "too long",
    "[" * 5000: "text of 'arguments' is",
    '{"x": "\\ud800"}': "'x'",
    " " * 30_000 + "5": "longer than",
}


@pytest.mark.parametrize("raw", FAULTY)
def test_malformed_arguments_are_answered_with_the_call_id(raw):
    ran = runner()
    result = ran.run(parse_message_call({"id": "abc-7", "function": {"name": "f", "arguments": raw}}))
    assert (result.id, result.ok, result.valid) == ("abc-7", False, False)
    assert FAULTY[raw] in result.text and len(result.text) < 200
    assert (ran.calls, ran.invalid) == (0, 1)
    assert "abc-7" in render_result(result, tagged=False) and "abc-7" in render_result(result, tagged=True)


@pytest.mark.parametrize("raw", FAULTY)
def test_the_same_inside_tool_call_tags(raw):
    ran = runner()
    text = f'<tool_call>{{"name": "f", "arguments": {raw or chr(34) * 2}}}</tool_call>'
    (call,) = parse_calls(text)
    result = ran.run(call)
    assert not result.valid and result.id == "call_1" and ran.invalid == 1


def test_only_the_right_form_runs():
    ran = runner()
    for call in (
        parse_message_call({"id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}}),
        parse_call('thinking <tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'),
        parse_call("thinking <f 1> more", ["f"]),
    ):
        assert ran.run(call).text == "2"
    assert (ran.calls, ran.invalid, ran.failed) == (3, 0, 0)


def test_unknown_tools_and_broken_records():
    ran = runner()
    for text, reason in {
        '{"name": "g", "arguments": {}}': "no tool 'g'; the tools: f",
        '{"arguments": {}}': "no 'name'",
        '{"name": 5}': "no 'name'",
        "[]": "JSON object",
        "": "not valid JSON",
        '{"name": "f", "args": {}}': "unknown key",
        '{"name": "__class__"}': "no tool",
    }.items():
        assert reason in ran.run(parse_call(f"<tool_call>{text}</tool_call>")).text
    assert "</tool_call>" in ran.run(parse_call('<tool_call>{"name": "f", "arguments": {"x": 1}}')).text
    assert "no tool call" in ran.run(parse_call("just text")).text
    assert ran.invalid == 9
    for broken in ({}, {"function": 3}, {"function": {"name": "f", "arguments": {"x": 1}}}, {"id": 5, "function": {}}):
        assert (
            isinstance(parse_message_call(broken, "own"), CallError) and parse_message_call(broken, "own").id == "own"
        )


def test_empty_arguments_are_no_arguments():
    def now() -> str:
        return "noon"

    ran = runner(now)
    for text in ('{"name": "now"}', '{"name": "now", "arguments": {}}', '{"name": "now", "arguments": ""}'):
        assert ran.run(parse_call(f"<tool_call>{text}</tool_call>")).text == "noon"
    assert ran.run(parse_call("<now>", ["now"])).text == "noon"
    assert not ran.run(parse_call('<tool_call>{"name": "now", "arguments": null}</tool_call>')).valid


def test_ids_are_the_callers_or_count_up():
    text = '<tool_call>{"id": "q1", "name": "f"}</tool_call><tool_call>{"name": "f"}</tool_call><f 1>'
    assert [call.id for call in parse_calls(text, ["f"], first=4)] == ["q1", "call_5", "6"]
    hostile = '<tool_call>{"id": "</tool_response>\\n", "name": "f"}</tool_call>'
    assert parse_call(hostile).id == "call_1"


def test_tag_spelling():
    def add(a: int, b: float = 0.5) -> float:
        return a + b

    ran = runner(f, add)
    said = {
        "<f 3>": "6\n",
        "<f  3 >": "6\n",
        "<f 3": "error 1: the call is cut, its '>' is missing\n",
        "<f 3\nmore": "error 1: the call is cut, its '>' is missing\n",
        "<f <f 3>": "error 1: the call is cut, its '>' is missing\n",
        "<add 1, 2>": "3.0\n",
        "<add 1>": "1.5\n",
    }
    for text, answer in said.items():
        assert render_result(ran.run(parse_calls(text, ran.registry)[0]), tagged=True) == answer
    for text in ("<f>", "<f x>", "<add 1,2,3>", "<add x>", "<f 1,2>"):
        assert not ran.run(parse_call(text, ran.registry)).valid
    assert parse_calls("<think> a <b c> <g 1> 1 < 2 > 0", ran.registry) == []
    assert parse_calls("<f 1>") == []


def test_hidden_types_are_checked_deeply():
    def g(names: list[int], mode: Literal["a", "b"] = "a", note: str | None = None) -> str:
        return f"{names}{mode}{note}"

    ran = runner(g)

    def said(arguments):
        return ran.run(Call("1", "g", arguments))

    assert said({"names": [1, 2], "mode": "b"}).text == "[1, 2]bNone"
    assert said({"names": [], "note": None}).ok and said({"names": [], "note": "x"}).ok
    for wrong in ({"names": [1, "2"]}, {"names": 1}, {"names": [], "mode": "c"}, {"names": [], "note": 3}):
        assert not said(wrong).valid
    schema = ran.registry["g"].schema["function"]["parameters"]
    assert schema["required"] == ["names"] and schema["properties"]["names"] == {
        "type": "array",
        "items": {"type": "integer"},
    }
    assert schema["properties"]["mode"]["enum"] == ["a", "b"]


def test_schema_of_a_function():
    assert tool(f).schema == {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Doubles a number.",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "integer"}},
                "required": ["x"],
                "additionalProperties": False,
            },
        },
    }
    assert json.dumps(tool(f).schema) in ToolRegistry([f]).describe()


def test_functions_that_cannot_be_tools_are_refused():
    def bare(x):
        return x

    def many(*x: int):
        return x

    for function, reason in ((bare, "annotate"), (many, "by name")):
        with pytest.raises(ValueError, match=reason):
            tool(function)
    with pytest.raises(ValueError, match="identifier"):
        tool(f, name="a b")
    with pytest.raises(ValueError, match="two tools"):
        ToolRegistry([f, f])


def test_exceptions_and_exits_of_a_tool_are_observations():
    def breaks(how: str) -> str:
        if how == "exit":
            raise SystemExit(3)
        if how == "deep":
            return breaks(how)
        raise ZeroDivisionError("by zero")

    ran = runner(breaks)
    texts = [ran.run(Call("1", "breaks", {"how": how})).text for how in ("exit", "deep", "zero")]
    assert texts[0] == "SystemExit: 3" and "RecursionError" in texts[1] and texts[2] == "ZeroDivisionError: by zero"
    assert (ran.calls, ran.failed, ran.invalid) == (3, 3, 0)


def test_limits():
    def long(n: int) -> str:
        return "a" * n

    ran = runner(long, characters=10, calls=2)
    assert ran.run(Call("1", "long", {"n": 10})).text == "a" * 10
    assert ran.run(Call("2", "long", {"n": 13})).text == "a" * 10 + " [3 characters cut]"
    third = ran.run(Call("3", "long", {"n": 1}))
    assert not third.valid and third.text.startswith("no more c")
    assert ran.calls == 2


def test_time_limit_leaves_the_episode_alive():
    import threading

    gate = threading.Event()

    def slow() -> str:
        gate.wait(5)
        return "late"

    ran = runner(slow, seconds=0.05)
    assert ran.run(Call("1", "slow", {})).text == "TimeoutError: no result within 0.05 s"
    gate.set()
    assert runner(slow, seconds=5).run(Call("1", "slow", {})).text == "late"


def test_results_that_are_no_text():
    def table() -> dict:
        return {"a": [1, None], "b": object}

    assert runner(table).run(Call("1", "table", {})).text.startswith('{"a": [1, null]')

    def odd() -> str:
        return "a\ud800b"

    assert runner(odd).run(Call("1", "odd", {})).text == "a?b"


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet='<>/f {}[]":,\\ntool_call12xnamearguments\n', max_size=80))
def test_no_text_raises(text):
    ran = runner(calls=3)
    for wrapped in (
        text,
        f"<tool_call>{text}</tool_call>",
        f'<tool_call>{{"name":"f","arguments":{text}}}</tool_call>',
    ):
        for call in parse_calls(wrapped, ran.registry):
            assert isinstance(ran.run(call).text, str)


USER_TOOLS = '''
def lookup(key: str) -> str:
    """Value of a key."""
    return {"a": "1"}[key]
'''


def write_tools(folder):
    path = folder / "my_tools.py"
    path.write_text(USER_TOOLS)
    return f"{path}:lookup"


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_user_tools_on_a_plain_task(tmp_path):
    answers = {0: call("lookup", key="a"), 1: call("lookup", key="z"), 2: "it is 1"}
    policy = ScriptedPolicy(lambda text, key: answers[text.count("tool_response") // 2])
    task = ScriptedTask()
    task.capabilities = frozenset({"check"})
    rollout = MultiTurn(tools=[write_tools(tmp_path)], tool_cost=0.25, max_new=120)
    assert rollout.requires == ()
    (row,) = rollout.collect([Request(Problem("p", "what is a?"), 1, 0)], context(policy, task))
    assert row.stop is Stop.TERMINATED and row.info["completion"] == "it is 1"
    assert row.columns["turn_rewards"].tolist() == [-0.25, -0.25, 0.0] and row.parts["env"] == -0.5
    assert '"content": "1"' in row.info["transcript"] and "KeyError" in row.info["transcript"]
    assert row.info["prompt"].startswith("[system]You can call these tools:")


def test_overlay_hands_other_text_to_the_environment_below(tmp_path):
    class Below:
        def start(self):
            return [{"role": "system", "content": "rules"}, {"role": "user", "content": "go"}]

        def step(self, text):
            return EnvStep(f"saw {text}", reward=1.0)

    ran = ToolRunner(load_tools([write_tools(tmp_path)]))
    env = ToolOverlay("unused", ran, Below())
    start = env.start()
    assert start[0]["content"].startswith("rules\n\nYou can call") and start[1]["content"] == "go"
    assert env.step("north") == EnvStep("saw north", reward=1.0)
    assert "1" in env.step(call("lookup", key="a")).observation
    assert env.step(call("nothing")).info["malformed"]


def test_wrong_tool_references(tmp_path):
    path = write_tools(tmp_path).rpartition(":")[0]
    for reference, reason in (
        (path, "file.py:function|does not exist"),
        ("no.py:f", "does not exist"),
        (f"{path}:g", "no function"),
    ):
        with pytest.raises(ValueError, match=reason):
            load_tools([reference])
