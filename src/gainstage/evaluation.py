"""Looking on: a policy answers held-out problems through the recipe's own engine; nothing feeds back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from gainstage.chain import Chain, Part
from gainstage.episodes import play
from gainstage.measure.audits.contamination import Overlap, hash_problems, ngram_overlap, overlap, prompt_text
from gainstage.measure.budget import Meter
from gainstage.measure.evaluate import Answer, EvalRecord, evaluate, rate_interval
from gainstage.measure.metrics import RETAINED
from gainstage.measure.runs import ParityManifest
from gainstage.ops.noise import mix
from gainstage.ops.seeding import stream
from gainstage.registry import RecipeError, build
from gainstage.types import Ctx, Problem, Request, Sampling, Stop, Trajectory, collate

SUCCESS = 1 - 1e-6
"""A verdict of at least this much is a right answer."""
SEEN = 200_000
"""Training problems that are compared with the evaluation's; of a task whose splits cannot overlap, `SAMPLED`."""
SAMPLED = 2_000
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


def has_split(task: Any, split: str) -> bool:
    """Whether a task has problems of a split."""
    try:
        return len(task.problems(split)) > 0
    except ValueError:
        return False


def refuse_test_problems(task: Any, split: str, count: int) -> None:
    """Weights are about to be chosen by looks at a split: it must not be the test split under another name.

    Raises:
        RecipeError: some of its problems are test problems, too.
    """
    if not has_split(task, "test"):
        return
    test = task.problems("test")
    known = _told_apart(task, [test[index] for index in range(len(test))])
    shared = overlap(known, _told_apart(task, held_out(task, split, count))).count
    if shared:
        raise RecipeError(
            f"evaluate.gate chooses weights, but {shared} {split} problems of task {task.name!r} are test problems; "
            "give the task a test split of its own, or remove evaluate.gate"
        )


def engine_of(chain: Chain) -> Any:
    """The innermost rollout of a recipe; a recipe without rollouts is asked in one turn.

    Room that a method gives long answers only to punish them is training's: an evaluation has the task's room.
    """
    if chain.rollout:
        engine = chain.rollout[-1].it
        return replace(engine, extra=0) if getattr(engine, "extra", 0) else engine
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
    if simulated(chain):
        return _played(chain, models, problems, samples, seed, temperature, role, meter)
    ask = _sampler(chain, models, seed, temperature, role, start, meter, rows)
    started = time.perf_counter()
    with meter.account("evaluation"), meter.booking(role), stream(seed, "evaluate"), torch.no_grad():
        records = evaluate(ask, problems, samples, batch=max(1, batch // samples))
        meter.charge("seconds", time.perf_counter() - started)
    return records


def simulated(chain: Chain) -> bool:
    """Whether the task is stepped, so that an answer is an episode."""
    return "simulator" in chain.task.it.capabilities


def _played(
    chain: Chain, models: Any, problems: Sequence[Problem], samples: int, seed: int, temperature: float, role: str,
    meter: Meter,
) -> list[EvalRecord]:  # fmt: skip
    started = time.perf_counter()
    with meter.account("evaluation"), meter.booking(role), stream(seed, "evaluate"), torch.no_grad():
        records = play(chain.task.it, models[role], problems, samples, explore=temperature > 0)
        meter.charge("env_steps", float(sum(answer.length for record in records for answer in record.answers)))
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


def retained(
    chain: Chain, models: Any, tasks: Sequence[Part], problems: int, split: str, *, seed: int, temperature: float,
    meter: Meter | None = None,
) -> dict[str, float]:  # fmt: skip
    """What a policy can still do on other tasks: `retained/{task}`, pass@1 of one answer to each problem."""
    out = {}
    for task in tasks:
        there = replace(chain, task=task, rollout=chain.rollout if _same_kind(chain.task.it, task.it) else [])
        asked = held_out(task.it, split, problems)
        rate = rate_interval(look(there, models, asked, 1, seed=seed, temperature=temperature, meter=meter))
        if rate is None:
            raise RecipeError(f"evaluate.retain: {task.name} gives no verdicts, so nothing can be counted as right")
        out[RETAINED + task.name] = rate.value
    return out


def _same_kind(a: Any, b: Any) -> bool:
    return ("env" in a.capabilities) == ("env" in b.capabilities)


def parity(chain: Chain, policy: Any, asked: Sequence[Problem], samples: int, split: str) -> ParityManifest:
    """Everything about an evaluation that has to be equal before two runs may be compared.

    Args:
        asked: problems of the last look, out of `split`, with so many `samples` each.
    """
    task, settings = chain.task.it, chain.recipe.evaluate
    if simulated(chain):
        return ParityManifest(
            problems=hash_problems(asked), model="", template="", verifier=_verifier(chain.task),
            sampling={"temperature": settings.temperature}, samples=samples, max_new=task.max_steps or 0, stop=(),
            budget=chain.recipe.budget, evaluation={**_splits(split, settings.split), "problems": len(asked)},
        )  # fmt: skip
    engine = engine_of(chain)
    wording = getattr(engine, "wording", None)
    chat = getattr(getattr(policy, "tokenizer", None), "chat_template", None)
    template = [wording.tag] if wording else []
    template += ["chat:" + hashlib.sha256(str(chat).encode()).hexdigest()[:12]] if chat else []
    stops = getattr(engine, "stop", None)
    return ParityManifest(
        problems=hash_problems(asked),
        model=getattr(policy, "source", ""),
        template=" ".join(template),
        verifier=_verifier(chain.task),
        sampling={"temperature": settings.temperature, **_tails(engine)},
        samples=samples,
        max_new=engine.limit(task) if hasattr(engine, "limit") else int(engine.max_new or task.max_new or 0),
        stop=tuple(getattr(task, "turn_stop", ()) if stops is None else stops),
        budget=chain.recipe.budget,
        evaluation={**_splits(split, settings.split), "problems": len(asked), **_turns(engine, task)},
    )


def _splits(final: str, on_way: str) -> dict[str, str]:
    return {"split": final} if final == on_way else {"split": final, "curves": on_way}


def _verifier(task: Part) -> str:
    """Name and version of what judges: of this package's own, the package's version."""
    from gainstage import __version__

    own = type(task.it).__module__.startswith("gainstage.")
    kind = getattr(task.it, "verifier", None)
    return f"{task.it.name}{f' ({kind})' if isinstance(kind, str) else ''}{f' {__version__}' if own else ''}"


def _tails(engine: Any) -> dict[str, Any]:
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return {name: value for name in off if (value := getattr(engine, name, off[name])) != off[name]}


def _turns(engine: Any, task: Any) -> dict[str, Any]:
    turns = getattr(engine, "max_turns", None) or getattr(task, "max_turns", None)
    return {"max_turns": turns} if turns else {}


def overlaps(tasks: Iterable[Any], asked: Sequence[Problem]) -> dict[str, Overlap]:
    """`exact` and `ngram` overlap of the training problems of all phases with those of the last one's evaluation."""
    seen: list[Problem] = []
    apart: list[Problem | str] = []
    task: Any = None
    for task in tasks:
        train = task.problems("train")
        apart_by_design = hasattr(task, "split_of") or "simulator" in task.capabilities
        most = SAMPLED if apart_by_design else SEEN
        here = [train[index] for index in range(min(len(train), most))]
        seen, apart = [*seen, *here], [*apart, *_told_apart(task, here)]
    return {"exact": overlap(apart, _told_apart(task, asked)), "ngram": ngram_overlap(seen, asked)}


def _told_apart(task: Any, problems: Sequence[Problem]) -> list[Problem | str]:
    """Problems by what tells them apart: games that begin with the same words differ in the world behind them."""
    if hasattr(task, "split_of") and "env" in task.capabilities:
        return [f"{prompt_text(problem)}\n{problem.meta['key']}" for problem in problems]
    return list(problems)


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
