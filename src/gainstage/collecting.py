"""The first half of the loop: experience of one iteration, judged, filtered and put into the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gainstage import judging
from gainstage.chain import Part
from gainstage.registry import RecipeError
from gainstage.tracking.numbers import describe, no_room
from gainstage.types import Batch, Index, Request, Trajectory


class Barren(RuntimeError):
    """Iterations in a row left nothing to train on; the message says why and what to change."""


def collect(trainer: Any) -> Sequence[Trajectory] | Batch:
    """Answers to picked problems, or steps in environments.

    Raises:
        Barren: `plan.max_empty` iterations in a row left nothing.
    """
    fresh = simulated(trainer) if trainer.chain.simulates else answered(trainer)
    trainer._call(trainer.chain.store, "add", fresh, trainer.ctx)
    return fresh


def simulated(trainer: Any) -> Batch:
    """Columns of a simulator. Rewards that the environment pays are in it; others are shaped when it is read."""
    chain, ctx = trainer.chain, trainer.ctx
    picks = any(part.has("next") for part in chain.select)
    got = onion(trainer, 0, pick(trainer, 0, chain.recipe.plan.groups) if picks else ())
    for part in chain:
        if part.has("observe"):
            trainer._call(part, "observe", got, ctx)
    for part in chain.select:
        if part.has("keep"):
            got = trainer._call(part, "keep", got, ctx)
    return got


def answered(trainer: Any) -> list[Trajectory]:
    """Answers to picked problems; groups that were dropped are asked again, up to `plan.refill` times."""
    chain, ctx, plan = trainer.chain, trainer.ctx, trainer.chain.recipe.plan
    fresh: list[Trajectory] = []
    judged = roomless = 0
    for _ in range(plan.refill):
        left = plan.groups - len({t.group for t in fresh})
        if left <= 0:
            break
        got = onion(trainer, 0, pick(trainer, 0, left))
        trainer.meter.charge("answers", len(got))
        trainer.meter.charge("problems", len({t.group for t in got}))
        got = judging.judge(chain, got, ctx, trainer._call)
        judged += len(got)
        for part in chain:
            if part.has("observe"):
                trainer._call(part, "observe", got, ctx)
        roomless += sum(no_room(t) for t in got)
        got = [t for t in got if not no_room(t)]
        for part in chain.select:
            if part.has("keep"):
                got = trainer._call(part, "keep", got, ctx)
        fresh += got
    trainer.log("dropped/no_room", roomless)
    describe(fresh, trainer.log)
    trainer.empty = 0 if fresh else trainer.empty + 1
    if trainer.empty >= plan.max_empty:
        raise Barren(f"{trainer.empty} iterations in a row left nothing to train on{_why_empty(judged, roomless)}")
    return fresh


def pick(trainer: Any, index: int, n: int) -> list[Request]:
    """The select onion: the first entry is outermost."""
    parts = [part for part in trainer.chain.select if part.has("next")]
    if index >= len(parts):
        raise RecipeError("select: no entry picks problems; add for instance `shuffle: {samples: 8}`")
    inner = (lambda m: pick(trainer, index + 1, m)) if index + 1 < len(parts) else None
    return trainer._call(parts[index], "next", n, trainer.ctx, inner)


def chooser(trainer: Any) -> Any:
    """The choose onion over the store's view, the first entry outermost; None where select has none that chooses."""
    parts = [part for part in trainer.chain.select if part.has("choose")]
    if not parts:
        return None

    def choose(index: int, n: int) -> Index:
        inner = (lambda m: choose(index + 1, m)) if index + 1 < len(parts) else None
        return trainer._call(parts[index], "choose", trainer.chain.store.it, n, trainer.ctx, inner)

    return lambda n: choose(0, n)


def onion(trainer: Any, index: int, requests: Sequence[Request], model: Any = None) -> Any:
    """The rollout onion: the last entry is the engine."""
    parts: list[Part] = trainer.chain.rollout

    def inner(asked: Sequence[Request], model: Any = None) -> Any:
        return onion(trainer, index + 1, asked, model)

    return trainer._call(
        parts[index], "collect", requests, trainer.ctx, inner if index + 1 < len(parts) else None, model
    )


def _why_empty(judged: int, roomless: int) -> str:
    if not judged:
        return (
            ": no answer got a reward (the reward was None or not finite, or the rollout failed); "
            "see failures/ and dropped/ in metrics.jsonl"
        )
    if roomless == judged:
        return (
            f": all {roomless} prompts of the last one fill the model's context and leave no room for an answer; load "
            "a model with a larger context, or shorten the prompts (the task, or the rollout's template)"
        )
    return "; loosen the filters under select, raise plan.refill, or use an easier task"
