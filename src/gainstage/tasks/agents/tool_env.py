"""Tools as a text environment, and a calculator task that needs them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from gainstage.ops.calls import parse_calls
from gainstage.ops.tools import ToolLimits, ToolRegistry, ToolRunner, answer_calls, tool
from gainstage.registry import component
from gainstage.tasks.text.countdown import Malformed, evaluate
from gainstage.tasks.text.generated import GeneratedTask, final_answer, other
from gainstage.types import Author, EnvStep, Message, Problem, TextEnv

Segment = tuple[Author, str]
"""A piece of a transcript behind the prompt, and who wrote it."""


class ToolEnv:
    """Answers calls until a text without a call is accepted as the final answer.

    Unknown tools, wrong arguments and exceptions become observations; a text that is neither a call nor an answer
    gets an error and counts as malformed. The end by `step_limit` is reported as `truncated`. The final answer
    carries no reward here: the task's `check` judges it.

    Args:
        prompt: what `start` shows.
        runner: tools and limits of this one episode; tools may close over a hidden state.
        step_limit: most turns.
        accepts: which call-free texts are answers; absent = all.
        tagged: whether calls are written as tags (short results) or as JSON.
    """

    def __init__(
        self,
        prompt: str | Sequence[Message],
        runner: ToolRunner,
        *,
        step_limit: int,
        accepts: Callable[[str], bool] | None = None,
        tagged: bool = False,
    ) -> None:
        if step_limit < 1:
            raise ValueError(f"step_limit must be at least 1, got {step_limit}")
        self.prompt, self.runner, self.step_limit, self.tagged = prompt, runner, step_limit, tagged
        self.accepts = accepts or (lambda text: True)
        self.turns = 0
        self.answered = False

    def start(self) -> str | Sequence[Message]:
        return self.prompt

    def step(self, text: str) -> EnvStep:
        self.turns += 1
        names = tuple(self.runner.registry) if self.tagged else ()
        calls = parse_calls(text, names, first=self.runner.calls + self.runner.invalid + 1)
        if not calls and self.accepts(text):
            self.answered = True
            return EnvStep("", done=True)
        step = answer_calls(calls, self.runner, tagged=self.tagged) if calls else self._neither()
        if self.turns >= self.step_limit:
            return EnvStep(step.observation, step.reward, True, {**step.info, "truncated": True})
        return step

    @property
    def parts(self) -> dict[str, float | None]:
        """Whether there was a final answer, and how many calls were made and how many of them were invalid."""
        made = self.runner.calls + self.runner.invalid
        return {"answered": float(self.answered), "calls": float(made), "invalid_calls": float(self.runner.invalid)}

    def _neither(self) -> EnvStep:
        message = f"error: neither an answer nor a call; the tools: {', '.join(self.runner.registry)}"
        return EnvStep(f"{message}\n" if self.tagged else message, info={"malformed": True})


def rehearse(env: TextEnv, actions: Iterable[str]) -> list[Segment]:
    """The transcript of given actions in an environment; actions after its end are left out."""
    segments: list[Segment] = []
    for action in actions:
        step = env.step(action)
        segments.append((Author.POLICY, action))
        if step.done:
            break
        segments.append((Author.ENV, step.observation))
    return segments


@component("task")
@dataclass(frozen=True, kw_only=True)
class Calculator(GeneratedTask):
    """Work out a chain of operations with a calculator tool, one call after the other, then say the result.

    By tags: `calc 37*48+12` is answered by `<calc 37*48>`, the tool says `1776`, then `<calc 1776+12>`, `1788`, and
    at last `=1788`. Only the final answer is judged; calls may cost.

    Args:
        steps: numbers of operations, one level each, in equal shares; more need more turns.
        digits: of every operand; with more, doing it without the tool becomes hopeless.
        operations: which of `+`, `-`, `*` may come first in a chain; the later ones are `+` and `-`.
        per_call: most operations in one call; fewer force more turns.
        step_limit: most turns of an episode; absent = two more than the longest chain needs.
        cost: what a call that runs costs, in reward of its turn.
        style: how calls are spelled: `tag` for small character-level models, `json` for chat models.
    """

    name: ClassVar[str] = "calculator"
    capabilities: ClassVar[frozenset[str]] = frozenset({"env", "answer", "check", "demonstrations"})

    steps: tuple[int, ...] = (1, 2)
    digits: int = 2
    operations: tuple[str, ...] = ("*",)
    per_call: int = 1
    step_limit: int | None = None
    cost: float = 0.0
    style: Literal["tag", "json"] = "tag"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.steps or min(self.steps) < 1 or max(self.steps) > 8:
            raise ValueError(f"steps must lie in 1..8, got {self.steps}")
        if not 1 <= self.digits <= 4:
            raise ValueError(f"digits must lie in 1..4, got {self.digits}")
        if not self.operations or set(self.operations) - set("+-*"):
            raise ValueError(f"operations must be some of +, -, *, got {self.operations}")
        if self.per_call < 1:
            raise ValueError(f"per_call must be at least 1, got {self.per_call}")
        if self.step_limit is not None and self.step_limit < 2:
            raise ValueError(f"step_limit must be at least 2 (a call and an answer), got {self.step_limit}")
        if self.cost < 0:
            raise ValueError(f"cost must be >= 0, got {self.cost}")

    @property
    def max_new(self) -> int:
        longest = 2 * self.digits + 1
        return len(f"<calc {'9' * longest}+{'9' * self.digits}>") + 2 if self.style == "tag" else 96

    @property
    def max_turns(self) -> int:
        """Limit of turns of an episode."""
        return self.step_limit or -(-max(self.steps) // self.per_call) + 3

    @property
    def turn_stop(self) -> tuple[str, ...]:
        """Strings that close a turn."""
        return (">", "\n") if self.style == "tag" else ()

    def draw(self, rng: random.Random, index: int) -> Problem:
        count = self.steps[index % len(self.steps)]
        low, high = (10 ** (self.digits - 1) if self.digits > 1 else 1), 10**self.digits - 1
        text, value = str(first := rng.randint(low, high)), first
        for position in range(count):
            operand = rng.randint(low, high)
            op = rng.choice("+-" if position else self.operations)
            op = "+" if op == "-" and operand > value else op  # results stay natural numbers
            value = {"+": value + operand, "-": value - operand, "*": value * operand}[op]
            text += f"{op}{operand}"
        made = self.problem(_ordered(text), self._question(text), str(value), float(count), expression=text)
        return made if self.style == "tag" else replace(made, prompt=self._conversation(made.prompt))

    def open(self, problem: Problem) -> ToolEnv:
        """A fresh environment for one episode."""
        runner = ToolRunner(self._tools(), ToolLimits(characters=200))
        return ToolEnv(
            problem.prompt, runner, step_limit=self.max_turns, accepts=self._is_answer, tagged=self.style == "tag"
        )

    def segments(self, problem: Problem, rng: random.Random, noise: float = 0.0) -> list[Segment]:
        """A worked episode behind the prompt. With probability `noise` each, a call is mistyped or cut (and then
        repeated), and the answer is miscopied."""
        return rehearse(self.open(problem), self._actions(problem, rng, noise))

    def demonstrate(self, problem: Problem, rng: random.Random, noise: float = 0.0) -> str:
        """The worked episode as one text, what the tool says included."""
        return "".join(text for _, text in self.segments(problem, rng, noise))

    def _question(self, expression: str) -> str:
        if self.style == "tag":
            return f"calc {expression}\n"
        most = "one operation" if self.per_call == 1 else f"at most {self.per_call} operations"
        return f"Work out {expression} with the tool calc, {most} a call. End with = and the number, like =42"

    def _conversation(self, question: str | Sequence[Message]) -> list[Message]:
        return [{"role": "system", "content": self._tools().describe()}, {"role": "user", "content": question}]

    def _tools(self) -> ToolRegistry:
        def calc(expression: str) -> str:
            """Work out an expression of numbers, + - * / and parentheses."""
            value, numbers = evaluate(expression)
            if len(numbers) - 1 > self.per_call:
                raise Malformed(f"at most {self.per_call} operation(s) a call")
            return str(value)

        return ToolRegistry([tool(calc, cost=self.cost)])

    def _is_answer(self, text: str) -> bool:
        return "=" in text and final_answer(text)[0] is not None

    def _actions(self, problem: Problem, rng: random.Random, noise: float) -> Iterable[str]:
        numbers, signs = _split(problem.meta["expression"])
        value = numbers[0]
        for start in range(0, len(signs), self.per_call):
            members = range(start, min(start + self.per_call, len(signs)))
            text = value + "".join(signs[i] + numbers[i + 1] for i in members)
            if rng.random() < noise:
                yield rng.choice((self._call(text)[:-2] + "\n", self._call(_slip(text, rng))))
            yield self._call(text)
            value = str(evaluate(text)[0])
        yield f"={_slip(value, rng) if rng.random() < noise else value}"

    def _call(self, expression: str) -> str:
        if self.style == "tag":
            return f"<calc {expression}>"
        return f'<tool_call>{{"name": "calc", "arguments": {{"expression": "{expression}"}}}}</tool_call>'


def _split(expression: str) -> tuple[list[str], list[str]]:
    signs = [character for character in expression if character in "+-*"]
    return expression.replace("-", "+").replace("*", "+").split("+"), signs


def _ordered(expression: str) -> str:
    """The expression with its first two operands in order where they may be swapped, so that twins share a split."""
    numbers, signs = _split(expression)
    if signs[0] != "-":
        numbers[:2] = sorted(numbers[:2], key=int)
    return numbers[0] + "".join(sign + number for sign, number in zip(signs, numbers[1:], strict=True))


def _slip(text: str, rng: random.Random) -> str:
    """The text with one digit wrong."""
    at = rng.choice([i for i, character in enumerate(text) if character.isdigit()])
    return text[:at] + other(rng, "123456789", text[at]) + text[at + 1 :]
