"""Single-turn generation: every request's samples in one call of the engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gainstage.registry import component
from gainstage.rollout.text.prompts import find_template
from gainstage.rollout.text.rows import (
    COLUMNS,
    Context,
    Draw,
    draw,
    opening,
    sampling_for,
    training_sampling,
    trajectory,
)
from gainstage.types import Author, Completion, Ctx, Request, Sampling, Stop, Trajectory


@component("rollout")
@dataclass
class Generate:
    """One answer per sample, by the role that the request names.

    Args:
        max_new: most tokens of an answer; absent = what the task says an answer needs. Answers that reach it stop
            with `length`.
        extra: tokens beyond that, for a reward that punishes long answers before they are cut.
        temperature: of the softmax; it enters every log-prob that is compared with these. A single request may ask
            for 0 (greedy): such rows are answered but never trained.
        top_k, top_p, min_p: cut the tail off; refused in training (see `allow_support_cuts`).
        stop: an answer ends where one of these strings is complete; the string stays in the ids, not in the text.
        actor: role that answers, instead of the request's.
        template: name of a prompt template, or a text that holds `{prompt}`.
        allow_support_cuts: the rows are only looked at, so tails may be cut off.

    Raises:
        ValueError: a setting out of range, temperature 0, or a cut tail.
    """

    max_new: int | None = None
    extra: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop: list[str] = field(default_factory=list)
    actor: str | None = None
    template: str | None = None
    allow_support_cuts: bool = False

    writes = COLUMNS

    def __post_init__(self) -> None:
        self.sampling = training_sampling(
            self.temperature, self.top_k, self.top_p, self.min_p, allow_support_cuts=self.allow_support_cuts
        )
        if self.max_new is not None and self.max_new < 1:
            raise ValueError(f"max_new must be at least 1, got {self.max_new}")
        if self.extra < 0:
            raise ValueError(f"extra must not be negative, got {self.extra}")
        self.uses = (self.actor,) if self.actor else ()
        self.wording = find_template(self.template)

    def collect(
        self, requests: Sequence[Request], ctx: Ctx, inner: Callable[..., Any] | None = None, model: Any = None
    ) -> list[Trajectory]:
        """Answers in the order of the requests, `samples` each.

        Args:
            inner: unused; this is the innermost rollout.
            model: a policy to ask instead of the role (a scratch copy).
        """
        by_actor: dict[str, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            by_actor[self.actor or request.actor].append(index)
        rows: dict[int, list[Trajectory]] = {}
        for actor, members in by_actor.items():
            policy = ctx.models[actor] if model is None else model
            rows.update(zip(members, self._answer([requests[i] for i in members], ctx, policy), strict=True))
        return [row for index in range(len(requests)) for row in rows[index]]

    def limit(self, task: Any) -> int:
        """Most tokens of an answer to this task."""
        return (self.max_new or task.max_new) + self.extra

    def _answer(self, requests: Sequence[Request], ctx: Ctx, policy: Any) -> list[list[Trajectory]]:
        starts = [self._start(request, policy) for request in requests]
        samplings = [
            sampling_for(request, self.sampling, allow_support_cuts=self.allow_support_cuts) for request in requests
        ]
        wanted = [
            Draw(start.ids, ctx.key(request.group, request.first + k), sampling)
            for request, start, sampling in zip(requests, starts, samplings, strict=True)
            for k in range(request.samples)
        ]
        max_new = self.limit(ctx.task)
        answers = draw(policy, wanted, max_new=max_new, stop=self.stop, limit=policy.context_limit)
        ctx.log("failures/context", sum(answer.stop is Stop.CONTEXT for answer in answers))
        left = iter(answers)
        rows = []
        for request, start, sampling in zip(requests, starts, samplings, strict=True):
            info = {"prompt": policy.decode(start.ids), **({"template": self.wording.tag} if self.wording else {})}
            members = range(request.first, request.first + request.samples)
            rows.append([_row(request, sample, policy, start, sampling, next(left), info) for sample in members])
        return rows

    def _start(self, request: Request, policy: Any) -> Context:
        if request.problem is None:
            raise ValueError(f"generate: the request of group {request.group} has no problem to answer")
        prompt = request.problem.prompt
        return opening(policy, self.wording.render(prompt) if self.wording else prompt, request.hint)


def _row(
    request: Request,
    sample: int,
    policy: Any,
    start: Context,
    sampling: Sampling,
    answer: Completion,
    info: dict[str, Any],
) -> Trajectory:
    context = start.copy()
    context.append(answer.ids, Author.POLICY, 0, answer.logprobs)
    return trajectory(request, sample, policy, context, answer.stop, sampling, info={**info, "completion": answer.text})
