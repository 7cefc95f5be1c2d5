"""The one turn loop: every live episode acts in one call of the engine, then every environment answers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gainstage.ops.noise import mix
from gainstage.registry import component
from gainstage.rollout.agents.tools import ToolLimits, load_tools, overlay
from gainstage.rollout.text.prompts import find_template
from gainstage.rollout.text.rows import (
    COLUMNS,
    Context,
    Draw,
    closed_text,
    draw,
    opening,
    sampling_for,
    training_sampling,
    trajectory,
)
from gainstage.types import Author, Completion, Ctx, Ids, Problem, Request, Sampling, Stop, TextEnv, Trajectory

log = logging.getLogger(__name__)

MAX_TURNS = 8
"""Turns of an episode where neither the recipe nor the task says."""


@dataclass
class Episode:
    """One environment and the one context that grows beside it."""

    request: Request
    sample: int
    policy: Any
    sampling: Sampling
    key: int
    context: Context
    chat: bool = False
    env: TextEnv | None = None
    stop: Stop | None = None
    rewards: list[float | None] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    transcript: list[str] = field(default_factory=list)
    malformed: int = 0
    info: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    def fail(self, error: Exception) -> None:
        """The environment broke: the row is kept to look at and never trained on."""
        self.stop, self.error = Stop.FAILED, f"{type(error).__name__}: {error}"


@component("rollout")
@dataclass
class MultiTurn:
    """Episodes of several turns in the task's text environment.

    The context grows by appending: sampled ids stay as they were sampled, observations are encoded once and appended
    with mask 0. Column `turn`: the prompt is -1, an observation belongs to the turn after whose action it arrived.
    Column `turn_rewards`: what the environment paid for each turn. The observation that ends an episode is not
    appended, since nobody acts on it.

    How episodes end: the environment says done (`terminated`, or `time_limit` where it reports `truncated`), the
    limit of turns (`turns`), a turn that reached `max_new` (`length`: an unfinished action is not given to the
    environment), no room left (`context`), an environment that raised (`failed`: counted and never trained on).

    Args:
        max_turns: limit of turns; absent = the task's own, or 8.
        max_new: most tokens of one turn; absent = what the task says.
        stop: strings that close a turn; absent = the task's own. They stay in the ids and in what the environment
            reads.
        context: most tokens of a context, where it shall be less than the model's.
        max_malformed: end an episode after so many turns that the environment could not read; absent = never.
        tools: functions of the user's own (`file.py:function`) that are offered on top of the task, which then needs
            no environment.
        tool_calls: most tool calls of an episode.
        tool_cost: what one of these calls costs, in reward of its turn.
        temperature, top_k, top_p, min_p, actor, template, allow_support_cuts: as in `generate`.

    Raises:
        ValueError: a setting out of range, temperature 0, or a cut tail.
    """

    max_turns: int | None = None
    max_new: int | None = None
    stop: list[str] | None = None
    context: int | None = None
    max_malformed: int | None = None
    tools: list[str] = field(default_factory=list)
    tool_calls: int | None = None
    tool_cost: float = 0.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    actor: str | None = None
    template: str | None = None
    allow_support_cuts: bool = False

    writes = (*COLUMNS, "turn_rewards", "turn_mask")

    def __post_init__(self) -> None:
        self.sampling = training_sampling(
            self.temperature, self.top_k, self.top_p, self.min_p, allow_support_cuts=self.allow_support_cuts
        )
        for name in ("max_turns", "max_new", "context", "max_malformed", "tool_calls"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.registry = load_tools(self.tools, self.tool_cost) if self.tools else None
        self.requires = () if self.tools else ("env",)
        self.uses = (self.actor,) if self.actor else ()
        self.wording = find_template(self.template)

    def collect(
        self, requests: Sequence[Request], ctx: Ctx, inner: Callable[..., Any] | None = None, model: Any = None
    ) -> list[Trajectory]:
        """One trajectory per sample, in the order of the requests.

        Args:
            inner: unused; this is the innermost rollout.
            model: a policy to ask instead of the role (a scratch copy).
        """
        episodes = [
            self._open(
                request, request.first + k, ctx, ctx.models[self.actor or request.actor] if model is None else model
            )
            for request in requests
            for k in range(request.samples)
        ]
        for turn in range(self._turns(ctx.task)):
            live = [episode for episode in episodes if episode.stop is None]
            for episode, completion in self._act(live, turn, ctx):
                self._advance(episode, completion, turn, ctx)
        for episode in episodes:
            episode.stop = episode.stop or Stop.TURNS
        parts = [_parts(episode) for episode in episodes]
        _report(episodes, ctx)
        tag = self.wording.tag if self.wording else None
        names = sorted({name for found in parts for name in found})  # a batch takes its columns from the first row
        return [
            _row(episode, {name: found.get(name) for name in names}, tag)
            for episode, found in zip(episodes, parts, strict=True)
        ]

    def limit(self, task: Any) -> int:
        """Most tokens that the policy writes in one episode of this task."""
        return (self.max_new or task.max_new) * self._turns(task)

    def _turns(self, task: Any) -> int:
        return self.max_turns or getattr(task, "max_turns", None) or MAX_TURNS

    def _open(self, request: Request, sample: int, ctx: Ctx, policy: Any) -> Episode:
        problem = request.problem
        if problem is None:
            raise ValueError(f"multi_turn: the request of group {request.group} has no problem to open")
        sampling = sampling_for(request, self.sampling, allow_support_cuts=self.allow_support_cuts)
        episode = Episode(request, sample, policy, sampling, ctx.key(request.group, sample), Context())
        try:
            episode.env = self._environment(ctx, problem)
            prompt = episode.env.start()
        except Exception as error:  # an environment's fault costs its own episode, not the batch
            episode.fail(error)
            prompt = problem.prompt
        prompt = self.wording.render(prompt) if self.wording else prompt
        episode.chat = not isinstance(prompt, str)
        episode.context = opening(policy, prompt, request.hint)
        episode.transcript.append(policy.decode(episode.context.ids))
        return episode

    def _environment(self, ctx: Ctx, problem: Problem) -> TextEnv:
        if self.registry is None:
            return ctx.task.open(problem)  # type: ignore[attr-defined]
        return overlay(ctx.task, problem, self.registry, ToolLimits(calls=self.tool_calls))

    def _act(self, live: Sequence[Episode], turn: int, ctx: Ctx) -> list[tuple[Episode, Completion]]:
        """One completion per live episode: one call of the engine per role. Each turn draws fresh noise."""
        acted: list[tuple[Episode, Completion]] = []
        for policy in {id(episode.policy): episode.policy for episode in live}.values():
            members = [episode for episode in live if episode.policy is policy]
            wanted = [
                Draw(episode.context.ids, mix(episode.key, turn) if turn else episode.key, episode.sampling)
                for episode in members
            ]
            completions = draw(
                policy,
                wanted,
                max_new=self.max_new or ctx.task.max_new,
                stop=self._stops(ctx),
                limit=self._room(policy),
            )
            acted.extend(zip(members, completions, strict=True))
        return acted

    def _advance(self, episode: Episode, completion: Completion, turn: int, ctx: Ctx) -> None:
        """Append the action, let the environment answer it, append the answer."""
        if not completion.ids:
            episode.stop = completion.stop
            return
        episode.context.append(completion.ids, Author.POLICY, turn, completion.logprobs)
        text = closed_text(episode.policy, completion, self._stops(ctx))
        episode.actions.append(completion.text)
        episode.transcript.append(text)
        episode.rewards.append(None)
        if completion.stop in (Stop.LENGTH, Stop.CONTEXT):
            episode.stop = completion.stop
            return
        ctx.meter.charge("env_steps", 1)
        try:
            observation = self._step(episode, text)
        except Exception as error:
            episode.fail(error)
            return
        episode.transcript.append(observation)
        if episode.stop is None:
            self._append_observation(episode, observation, turn)

    def _step(self, episode: Episode, text: str) -> str:
        assert episode.env is not None
        step = episode.env.step(text)
        if step.reward is not None:
            reward = float(step.reward)
            if not math.isfinite(reward):
                raise ValueError(f"the environment gave the reward {reward}")
            episode.rewards[-1] = reward
        episode.info = dict(step.info)
        episode.malformed += bool(step.info.get("malformed"))
        if step.done:
            episode.stop = Stop.TIME_LIMIT if step.info.get("truncated") else Stop.TERMINATED
        elif self.max_malformed is not None and episode.malformed >= self.max_malformed:
            episode.stop = Stop.TERMINATED
        return str(step.observation)

    def _append_observation(self, episode: Episode, observation: str, turn: int) -> None:
        ids: Ids = []
        if observation or episode.chat:
            ids = episode.policy.encode_observation(observation, chat=episode.chat, after=episode.context.ids)
        room = self._room(episode.policy)
        if room is not None and len(episode.context) + len(ids) >= room:
            episode.stop = Stop.CONTEXT
        else:
            episode.context.append(ids, Author.ENV, turn)

    def _stops(self, ctx: Ctx) -> tuple[str, ...]:
        return tuple(getattr(ctx.task, "turn_stop", ()) if self.stop is None else self.stop)

    def _room(self, policy: Any) -> int | None:
        limits = [limit for limit in (policy.context_limit, self.context) if limit is not None]
        return min(limits) if limits else None


def _report(episodes: Sequence[Episode], ctx: Ctx) -> None:
    failed = [episode.error for episode in episodes if episode.error]
    if failed:
        log.warning("%d of %d episodes failed in their environment: %s", len(failed), len(episodes), failed[0])
    ctx.log("failures/env", len(failed))
    ctx.log("failures/context", sum(episode.stop is Stop.CONTEXT for episode in episodes))
    ctx.log("failures/malformed_turn", sum(episode.malformed for episode in episodes))
    ctx.log("turns/mean", sum(len(episode.actions) for episode in episodes) / max(len(episodes), 1))


def _parts(episode: Episode) -> dict[str, float | None]:
    """The environment's own parts at the end of the episode, and under `env` the sum of its rewards."""
    given = [reward for reward in episode.rewards if reward is not None]
    own: Mapping[str, float | None] = {}
    try:
        own = dict(getattr(episode.env, "parts", {}))
    except Exception as error:
        episode.fail(error)
    return {**own, "env": sum(given) if given else None}


def _row(episode: Episode, parts: Mapping[str, float | None], template: str | None) -> Trajectory:
    turns = max(len(episode.rewards), 1)
    columns = {
        "turn_rewards": torch.tensor([reward or 0.0 for reward in episode.rewards] or [0.0], dtype=torch.float32),
        "turn_mask": torch.full((turns,), bool(episode.rewards)),
    }
    info = {
        "prompt": episode.transcript[0],
        "completion": episode.actions[-1] if episode.actions else "",
        "actions": list(episode.actions),
        "transcript": "".join(episode.transcript),
        "turns": len(episode.actions),
        "malformed": episode.malformed,
        "env": episode.info,
        **({"template": template} if template else {}),
        **({"error": episode.error} if episode.error else {}),
    }
    assert episode.stop is not None
    return trajectory(
        episode.request, episode.sample, episode.policy, episode.context, episode.stop, episode.sampling,
        turns=columns, parts=parts, info=info,
    )  # fmt: skip
