"""How each known signature of a reward function is recognised and called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from gainstage.types import Author, Ctx, Problem, Trajectory, Verdict

GOLD_NAMES = ("answer", "solution", "ground_truth")


@dataclass(frozen=True)
class Row:
    """One answered prompt, as reward functions of any library want it."""

    problem: Problem
    text: str
    ids: list[int]
    info: Mapping[str, Any]

    @property
    def conversational(self) -> bool:
        return not isinstance(self.problem.prompt, str)

    @property
    def completion(self) -> Any:
        """Plain text, or for a conversation the list of one assistant message."""
        return [{"role": "assistant", "content": self.text}] if self.conversational else self.text

    @property
    def prompt(self) -> Any:
        prompt = self.problem.prompt
        return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]

    @property
    def prompt_text(self) -> str:
        prompt = self.problem.prompt
        return prompt if isinstance(prompt, str) else "\n\n".join(str(m.get("content") or "") for m in prompt)

    def show(self) -> str:
        return f"problem {self.problem.id}\nprompt: {_cut(self.prompt_text)!r}\ncompletion: {_cut(self.text)!r}"


@dataclass
class Outcome:
    """Rewards of all rows, further named numbers, and what is only looked at."""

    rewards: Any
    parts: dict[str, list[float | None]] = field(default_factory=dict)
    info: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Signature:
    shape: str
    matches: Callable[[set[str]], bool]
    call: Callable[[Callable[..., Any], Sequence[Row], Ctx], Any]


def row_of(trajectory: Trajectory, ctx: Ctx) -> Row:
    """What a reward function may see of a trajectory; ids are the tokens that the policy wrote.

    Raises:
        ValueError: the trajectory has no problem or no text.
    """
    if trajectory.problem is None or "completion" not in trajectory.info:
        raise ValueError("reward function: a trajectory has no problem or no text (info['completion'])")
    tokens, author = trajectory.columns.get("tokens"), trajectory.columns.get("author")
    ids = tokens[author == Author.POLICY].tolist() if tokens is not None and author is not None else []
    return Row(trajectory.problem, trajectory.info["completion"], ids, trajectory.info)


def signature_of(function: Callable[..., Any], path: str) -> str:
    """The name of the first signature whose parameters the function has.

    Raises:
        ValueError: none fits; the message lists the accepted ones.
    """
    parameters = inspect.signature(function).parameters
    names = {n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    for name, signature in SIGNATURES.items():
        if signature.matches(names):
            return name
    accepted = "\n".join(f"  {name}: {signature.shape}" for name, signature in SIGNATURES.items())
    raise ValueError(f"reward {path!r}: parameters ({', '.join(parameters)}) fit no known signature:\n{accepted}")


def _call_problem_text(function: Callable[..., Any], rows: Sequence[Row], ctx: Ctx) -> Any:
    return _each(function, [{"problem": row.problem, "text": row.text} for row in rows])


def _call_verl(function: Callable[..., Any], rows: Sequence[Row], ctx: Ctx) -> Any:
    return _each(function, [_chosen(function, _verl(row, ctx)) for row in rows])


def _call_verl_batch(function: Callable[..., Any], rows: Sequence[Row], ctx: Ctx) -> Any:
    columns = [_verl(row, ctx) for row in rows]
    plural = {f"{name}s": [column[name] for column in columns] for name in columns[0]}
    return _then(function(**_chosen(function, plural)), _gather)


def _verl(row: Row, ctx: Ctx) -> dict[str, Any]:
    meta = row.problem.meta
    return {
        "data_source": meta.get("data_source", getattr(ctx.task, "name", "")),
        "solution_str": row.text,
        "ground_truth": row.problem.answer,
        "extra_info": meta.get("extra_info"),
    }


def _call_openrlhf(function: Callable[..., Any], rows: Sequence[Row], ctx: Ctx) -> Any:
    def read(result: Any) -> Outcome:
        if not isinstance(result, Mapping):
            return Outcome(result)
        if "rewards" not in result:
            raise ValueError(f"the dictionary returned has no key 'rewards', only {sorted(result)}")
        outcome = Outcome(result["rewards"])
        if result.get("scores") is not None:
            outcome.parts["score"] = _floats(result["scores"], len(rows))
        for name, values in (result.get("extra_logs") or {}).items():
            outcome.parts[name] = _floats(values, len(rows))
        return outcome

    prompts = [row.prompt_text for row in rows]
    known = {
        "queries": [prompt + row.text for prompt, row in zip(prompts, rows, strict=True)],
        "prompts": prompts,
        "labels": [row.problem.answer for row in rows],
    }
    return _then(function(**_chosen(function, known)), read)


def _call_trl(function: Callable[..., Any], rows: Sequence[Row], ctx: Ctx) -> Any:
    extra: dict[str, list[Any]] = {}

    def log_extra(column: str, values: Sequence[Any]) -> None:
        if len(values) != len(rows):
            raise ValueError(f"log_extra({column!r}): {len(values)} values for {len(rows)} completions")
        extra[column] = list(values)

    known = _columns(rows) | {
        "prompts": [row.prompt for row in rows],
        "completions": [row.completion for row in rows],
        "completion_ids": [row.ids for row in rows],
        "trainer_state": SimpleNamespace(global_step=ctx.iteration, epoch=None, progress=ctx.progress),
        "log_extra": log_extra,
        "log_metric": lambda name, value: ctx.log(name, float(value)),
        "environments": [row.info.get("env") for row in rows],
    }
    return _then(function(**_chosen(function, known)), lambda rewards: Outcome(rewards, info=extra))


def _call_by_name(function: Callable[..., Any], rows: Sequence[Row], ctx: Ctx) -> Any:
    return _each(function, [_chosen(function, _named(row, ctx)) for row in rows])


def _call_by_plural(function: Callable[..., Any], rows: Sequence[Row], ctx: Ctx) -> Any:
    named = [_named(row, ctx) for row in rows]
    plural = {f"{key}s": [item.get(key) for item in named] for key in named[0]}
    return _then(function(**_chosen(function, plural)), Outcome)


def _named(row: Row, ctx: Ctx) -> dict[str, Any]:
    meta = dict(row.problem.meta)
    state = {"prompt": row.prompt, "completion": row.completion, "answer": row.problem.answer, **row.info}
    return meta | {
        "prompt": row.prompt,
        "completion": row.completion,
        "answer": row.problem.answer,
        "info": meta.get("info", meta),
        "task": meta.get("task", getattr(ctx.task, "name", "")),
        "state": state,
    }


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Data set columns by name; the gold answer under every name that is usual for it and not a column itself."""
    names = {name for row in rows for name in row.problem.meta}
    columns = {name: [row.problem.meta.get(name) for row in rows] for name in names}
    for name in GOLD_NAMES:
        columns.setdefault(name, [row.problem.answer for row in rows])
    return columns


def _chosen(function: Callable[..., Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, all of them for a function that takes `**kwargs`.

    Raises:
        ValueError: the function needs an argument that neither the protocol nor the data set has.
    """
    parameters = inspect.signature(function).parameters.values()
    for p in parameters:
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.default is p.empty and p.name not in known:
            raise ValueError(f"it needs the argument {p.name!r}, and the data set has no such column: {sorted(known)}")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(known)
    names = {p.name for p in parameters}
    return {name: value for name, value in known.items() if name in names}


def _each(function: Callable[..., Any], arguments: Sequence[Mapping[str, Any]]) -> Any:
    results = [function(**a) for a in arguments]
    if results and inspect.isawaitable(results[0]):

        async def together() -> Outcome:
            return _gather(await asyncio.gather(*results))

        return together()
    return _gather(results)


def _gather(results: Sequence[Any]) -> Outcome:
    """Numbers, verdicts or dictionaries with a `score` (verl) as one outcome."""
    verdicts = [_verdict(result) for result in results]
    names = sorted({name for verdict in verdicts for name in verdict.parts})
    return Outcome(
        [verdict.reward for verdict in verdicts],
        {name: [verdict.parts.get(name) for verdict in verdicts] for name in names},
        {"feedback": [verdict.feedback for verdict in verdicts]},
    )


def _verdict(result: Any) -> Verdict:
    if isinstance(result, Verdict):
        return result
    if isinstance(result, Mapping):
        if "score" not in result:
            raise ValueError(f"the dictionary returned has no key 'score', only {sorted(result)}")
        parts = {k: float(v) for k, v in result.items() if k != "score" and isinstance(v, bool | int | float)}
        return Verdict(result["score"], parts)
    return Verdict(result)


def _then(result: Any, read: Callable[[Any], Outcome]) -> Any:
    if not inspect.isawaitable(result):
        return read(result)

    async def later() -> Outcome:
        return read(await result)

    return later()


def _floats(values: Any, rows: int) -> list[float | None]:
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, Sequence):
        return [float(values)] * rows
    if len(values) != rows:
        raise ValueError(f"{len(values)} values for {rows} completions")
    return [None if value is None else float(value) for value in values]


def _cut(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"


SIGNATURES: dict[str, Signature] = {
    "gainstage": Signature(
        "f(problem, text) -> float | Verdict | None", lambda n: {"problem", "text"} <= n, _call_problem_text
    ),
    "verl": Signature(
        "compute_score(data_source, solution_str, ground_truth, extra_info=None) -> float | dict",
        lambda n: {"solution_str", "ground_truth"} <= n,
        _call_verl,
    ),
    "verl_batch": Signature(
        "compute_score(data_sources, solution_strs, ground_truths, extra_infos) -> list",
        lambda n: {"solution_strs", "ground_truths"} <= n,
        _call_verl_batch,
    ),
    "openrlhf": Signature(
        "reward_func(queries, prompts, labels, **kwargs) -> list | dict",
        lambda n: {"queries", "labels"} <= n,
        _call_openrlhf,
    ),
    "verifiers_group": Signature(
        "f(completions, states | infos, ...) -> list", lambda n: bool({"states", "infos"} & n), _call_by_plural
    ),
    "trl": Signature(
        "f(prompts, completions, **columns) -> list", lambda n: bool({"completions", "completion_ids"} & n), _call_trl
    ),
    "verifiers": Signature(
        "f(completion, answer, ...) -> float", lambda n: bool({"completion", "state"} & n), _call_by_name
    ),
}
"""Tried in this order: the more telling names first."""
