"""Looking on: a policy answers held-out problems through the recipe's own engine; nothing feeds back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gainstage.chain import Chain
from gainstage.measure.budget import Meter
from gainstage.measure.evaluate import Answer, EvalRecord, evaluate, rate_interval
from gainstage.ops.noise import mix
from gainstage.ops.seeding import stream
from gainstage.registry import RecipeError, build
from gainstage.types import Ctx, Problem, Request, Sampling, Stop, Trajectory, collate

SUCCESS = 1 - 1e-6
"""A verdict of at least this much is a right answer."""
LONGEST_KEPT = 64
"""Characters up to which an answer is kept as it is; of a longer one a digest tells equal from different."""


def held_out(task: Any, split: str, count: int) -> list[Problem]:
    """The first `count` problems of a split.

    Raises:
        RecipeError: the split is empty.
    """
    problems = task.problems(split)
    if not len(problems):
        raise RecipeError(f"task {task.name!r} has no {split} split to evaluate on; set evaluate.split")
    return [problems[index] for index in range(min(count, len(problems)))]


def engine_of(chain: Chain) -> Any:
    """The innermost rollout of a recipe; a recipe without rollouts is asked in one turn."""
    if chain.rollout:
        return chain.rollout[-1].it
    kind = "generate" if "check" in chain.task.it.capabilities else "multi_turn"
    return build("rollout", kind)


def look(
    chain: Chain, models: Any, problems: Sequence[Problem], samples: int, *, seed: int, temperature: float = 1.0,
    role: str = "policy", start: Any = None, meter: Meter | None = None, batch: int = 256,
    rows: Callable[[list[Trajectory]], None] = lambda found: None,
) -> list[EvalRecord]:  # fmt: skip
    """Held-out records. The same seed asks every arm of a comparison the same problems with the same noise.

    Args:
        start: handle with the weights that the run began with; answers then carry their KL from it.
        meter: spending goes to its account `evaluation`.
        batch: answers that are sampled at once.
        rows: receives the trajectories, for those who want to read them.
    """
    meter = meter or Meter()
    ask = _sampler(chain, models, seed, temperature, role, start, meter, rows)
    started = time.perf_counter()
    with meter.account("evaluation"), stream(seed, "evaluate"), torch.no_grad():
        records = evaluate(ask, problems, samples, batch=max(1, batch // samples))
        meter.charge("seconds", time.perf_counter() - started)
    return records


def greedy(
    chain: Chain, models: Any, problems: Sequence[Problem], *, seed: int, meter: Meter | None = None
) -> dict[str, float]:
    """Share of problems that the likeliest answer solves, `eval/{task}/greedy` with its interval's ends.

    Beside pass@1 it tells a policy that knows more from one that merely became surer of what it knew. One answer a
    problem, neither entropy nor KL: cheap. Empty where the task has no verdicts.
    """
    rate = rate_interval(look(chain, models, problems, 1, seed=seed, temperature=0.0, meter=meter))
    if rate is None or rate.low is None or rate.high is None:
        return {}
    name = f"eval/{chain.task.it.name}/greedy"
    return {name: rate.value, f"{name}/low": rate.low, f"{name}/high": rate.high}


def _sampler(
    chain: Chain, models: Any, seed: int, temperature: float, role: str, start: Any, meter: Meter, rows: Any
) -> Any:
    engine, task = engine_of(chain), chain.task.it
    asked = 0

    def ask(problems: list[Problem], samples: int) -> list[list[Answer]]:
        nonlocal asked
        ctx = Ctx(
            models=models, task=task, store=None, meter=meter, seed=seed, device=models.device,
            key=lambda group, sample: mix("evaluate", seed, group, sample),
        )  # fmt: skip
        requests = [
            Request(problem, samples, asked + index, sampling=Sampling(temperature=temperature))
            for index, problem in enumerate(problems)
        ]
        asked += len(problems)
        found = engine.collect(requests, ctx, None, models[role])
        answers = [_answer(trajectory, task, meter) for trajectory in found]
        rows(found)  # with the verdicts
        if temperature > 0:
            answers = _with_policy_numbers(answers, found, models[role], start)
        return [answers[first : first + samples] for first in range(0, len(answers), samples)]

    return ask


def _answer(trajectory: Trajectory, task: Any, meter: Meter) -> Answer:
    length = int((trajectory.columns["author"] == 1).sum())
    paid = float((trajectory.columns["turn_rewards"]).sum()) if "turn_rewards" in trajectory.columns else 0.0
    if trajectory.stop is Stop.FAILED or trajectory.problem is None:
        return Answer(0.0, None, length, Stop.FAILED)
    success = trajectory.parts.get("success")
    if success is not None:
        return Answer(paid, success >= SUCCESS, length, trajectory.stop)
    if "check" in task.capabilities:
        meter.charge("verifier_calls", 1)
        verdict = task.check(trajectory.problem, trajectory.info["completion"])
        if verdict.reward is None:
            return Answer(0.0, None, length, Stop.FAILED)
        trajectory.parts["verdict"] = verdict.reward
        text = trajectory.info["completion"]
        return Answer(
            verdict.reward, verdict.reward >= SUCCESS, length, trajectory.stop,
            abstained=task.abstains(text) if hasattr(task, "abstains") else None, answer=_kept(task, text),
        )  # fmt: skip
    return Answer(paid, None, length, trajectory.stop)


def _kept(task: Any, text: str) -> str | None:
    """The final answer in a text, as the task reads it; None where it finds none."""
    answer = task.extract(text) if hasattr(task, "extract") else text.strip() or None
    if answer is None or len(answer) <= LONGEST_KEPT:
        return answer
    return "digest " + hashlib.sha256(answer.encode()).hexdigest()[:16]


def _with_policy_numbers(answers: list[Answer], found: list[Trajectory], policy: Any, start: Any) -> list[Answer]:
    """Entropy of each answer's decisions, and its KL (k1) from the start of the run."""
    if not hasattr(policy, "hidden") or not any(bool(t.columns["mask"].any()) for t in found):
        return answers
    plain = collate([Trajectory(**{**vars(t), "parts": {}}) for t in found], policy.device)
    out: list[Answer] = [*answers]
    rows = list(range(plain.rows))
    for first in range(0, len(rows), 64):
        part = plain.take(rows[first : first + 64])
        mask, count = part["mask"], part["mask"].sum(1).clamp(min=1)
        now = policy.evaluate(part, want=("entropy",))
        assert now.entropy is not None
        entropy = (now.entropy * mask).sum(1) / count
        kl = None if start is None else ((now.logprobs - start.evaluate(part).logprobs) * mask).sum(1) / count
        for place, row in enumerate(rows[first : first + 64]):
            known = vars(out[row]) | {"entropy": float(entropy[place])}
            out[row] = Answer(**(known if kl is None else {**known, "kl": float(kl[place])}))
    return out
