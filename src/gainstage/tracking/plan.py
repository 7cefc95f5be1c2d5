"""The arithmetic of a run in words: what is counted in prompts, what in answers, what in tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_DEFAULTS: dict[str, Any] = {
    "groups": 0,
    "refill": 1,
    "max_empty": None,
    "epochs": 1,
    "minibatch": None,
    "unit": "row",
    "updates": None,
    "tokens_per_microbatch": None,
}
FEW_PROBLEMS = 30
"""Below so many held-out problems a rate says little."""
FEW_EPISODES = 10
"""Below so many held-out episodes a mean return says little."""
_UNITS = {"row": "answers", "step": "decisions"}


def _read(plan: Any) -> dict[str, Any]:
    values = dict(plan) if isinstance(plan, Mapping) else {name: getattr(plan, name, None) for name in _DEFAULTS}
    return {name: default if values.get(name) is None else values[name] for name, default in _DEFAULTS.items()}


def arithmetic(
    plan: Any,
    samples: int | None,
    *,
    max_new: int | None = None,
    learners: int = 1,
    stepped: tuple[int, int] | None = None,
    draws: bool = False,
) -> str:
    """What one iteration does, a line each; printed when a run starts.

    Args:
        plan: the recipe's `plan`, a mapping or an object with its settings.
        samples: answers a prompt, as select asks for them; None where it varies or nothing is sampled.
        max_new: limit of tokens an answer, for the largest spend of an iteration.
        learners: entries of update; each makes its own optimizer step.
        stepped: copies of an environment and steps of each an iteration, where experience comes from a simulator.
        draws: learning draws from what the store holds, not from the iteration's own experience.

    Raises:
        ValueError: `unit` is neither row nor step, or a count is not positive.
    """
    p = _read(plan)
    if p["unit"] not in _UNITS:
        raise ValueError(f"plan.unit must be row or step, got {p['unit']!r}")
    for name in ("refill", "epochs", "minibatch", "updates", "tokens_per_microbatch"):
        if p[name] is not None and p[name] < 1:
            raise ValueError(f"plan.{name} must be at least 1, got {p[name]}")
    if stepped is not None:
        rows, decisions = stepped[0], stepped[0] * stepped[1]
        some = _learned(p, None) if draws else _passes(p, rows if p["unit"] == "row" else decisions)
        lines = [*_stepped(*stepped), *some]
    else:
        lines = [*_collected(p, samples, max_new), *_learned(p, samples)]
    if learners > 1:
        lines.append(f"each of the {learners} learners takes these steps where it is due")
    if p["tokens_per_microbatch"]:
        lines.append(
            f"memory: at most {p['tokens_per_microbatch']:,} tokens at a time (plan.tokens_per_microbatch); "
            "gradients are summed over them, so this changes no result"
        )
    return "\n".join(f"  {line}" for line in ["one iteration:", *(f"  {line}" for line in lines)])


def _stepped(copies: int, steps: int) -> list[str]:
    many = f"{copies} copies x" if copies > 1 else "1 copy x"
    return [f"{many} {steps:,} step{'s' if steps > 1 else ''} = {copies * steps:,} environment steps an iteration"]


def _passes(p: dict[str, Any], size: int) -> list[str]:
    """Minibatches of an iteration's own experience: `size` decisions, or rows (fragments of one copy each)."""
    unit, minibatch, epochs = "decisions" if p["unit"] == "step" else "rows", p["minibatch"], p["epochs"]
    passes = f"{epochs} pass{'es' if epochs > 1 else ''}"
    if minibatch is None or minibatch >= size:
        return [f"each optimizer step sees the whole batch; {passes} (plan.epochs): {_steps(epochs)}"]
    whole, rest = divmod(size, minibatch)
    each = whole + bool(rest)
    short = f", the last of {rest}" if rest else ""
    return [
        f"minibatches of {minibatch} {unit} (plan.minibatch, plan.unit{short}): {each} a pass, "
        f"{passes} (plan.epochs): {_steps(each * epochs)}"
    ]


def _collected(p: dict[str, Any], samples: int | None, max_new: int | None) -> list[str]:
    groups, refill = p["groups"], p["refill"]
    if not groups:
        return ["nothing is sampled: the store's data is drawn from"]
    if samples is None:
        return [f"{groups} prompts or starts (plan.groups); how many answers each is decided as it goes"]
    answers = groups * samples
    lines = [f"{groups} prompts (plan.groups) x {samples} answers each (samples) = {answers:,} answers"]
    if refill > 1:
        lines.append(
            f"groups that are filtered out are replaced, in up to {refill} attempts (plan.refill): "
            f"at most {refill * answers:,} answers are sampled and paid for"
        )
    if max_new:
        lines.append(f"at most {max_new} tokens an answer: up to {refill * answers * max_new:,} generated tokens")
    return lines


def _learned(p: dict[str, Any], samples: int | None) -> list[str]:
    unit, minibatch, epochs, updates = _UNITS[p["unit"]], p["minibatch"], p["epochs"], p["updates"]
    if updates:
        size = f"of {minibatch} {unit} (plan.minibatch, plan.unit)" if minibatch else "of the store's own size"
        return [f"{updates} draws from the store (plan.updates) {size}: {_steps(updates)}"]
    passes = f"{epochs} pass{'es' if epochs > 1 else ''} (plan.epochs)"
    if minibatch is None:
        return [f"each optimizer step sees the whole batch; {passes}: {_steps(epochs)}"]
    if p["unit"] == "step":
        return [f"each optimizer step sees {minibatch} decisions (plan.minibatch); {passes} over all decisions"]
    if not p["groups"] or samples is None:
        return [f"each optimizer step sees {minibatch} answers (plan.minibatch); {passes}"]
    answers = p["groups"] * samples
    whole, rest = divmod(answers, minibatch)
    steps = whole + bool(rest)
    short = f", the last of {rest}" if rest and whole else ""
    lines = [
        f"each optimizer step sees {min(minibatch, answers)} answers (plan.minibatch{short}): {steps} a pass; "
        f"{passes}: {_steps(steps * epochs)}"
    ]
    if minibatch % samples and minibatch < answers:
        lines.append(f"(it does not hold whole groups of {samples} answers; advantages are made before)")
    return lines


def _steps(number: int) -> str:
    return f"{number} optimizer step{'s' if number > 1 else ''}"


def evaluation(
    settings: Any,
    *,
    iterations: int | None = None,
    answers: int | None = None,
    tokens: float | None = None,
    max_new: int | None = None,
    held_out: int | None = None,
) -> str:
    """What looking at held-out problems costs beside training, in words; with a warning where it costs more.

    Args:
        settings: the recipe's `evaluate`.
        iterations: of the run, where they bound it.
        answers: that an iteration samples, where that is known.
        tokens: limit of generated tokens, where the budget has one.
        max_new: most tokens of an answer.
        held_out: problems of the split, where that is known; no look can ask more.
    """
    most = math.inf if held_out is None else held_out
    problems = min(settings.problems, most)
    final = min(settings.final_problems or settings.problems, most)
    counts = _looked(settings, iterations, int(problems), int(final))
    looks = counts.pop("looks")
    times = f" {looks} times on the way" if looks > 1 else " once on the way"
    total = sum(counts.values())
    greedy = ", one greedy answer to each" if counts["greedy"] else ""
    ends = f"{final} held-out problems x {settings.final_samples or settings.samples} answers at both ends{greedy}"
    way = f", {problems} x {settings.samples}{times}" if looks else ""
    how = f"    {ends}{way}"
    shares = {}
    if iterations and answers:
        shares[f"the {iterations * answers:,} that training samples"] = total / (iterations * answers)
    if tokens and max_new:
        shares["the tokens that training may generate, at full length"] = total * max_new / tokens
    text, share = max(shares.items(), key=lambda item: item[1], default=("", 0.0))
    amount = "" if not shares else f", {share:.1f} times {text}" if share >= 2 else f", {100 * share:.0f} % of {text}"
    lines = [f"  evaluation, which no budget counts: {total:,} answers{amount}", how]
    if share > 1:
        lines.append(
            "  evaluation costs more than training: lower evaluate.problems, evaluate.samples or "
            "evaluate.final_samples, or look less often (evaluate.every)"
        )
    if final < FEW_PROBLEMS:
        lines.append(f"  only {final} held-out problems: every rate will have a wide interval; hold out more")
    return "\n".join(lines)


def episodes(settings: Any, *, iterations: int | None = None, held_out: int | None = None) -> str:
    """What looking at held-out starts costs beside training, in episodes.

    Args:
        settings: the recipe's `evaluate`.
        iterations: of the run, where they bound it.
        held_out: starts of the split, where that is known; no look can use more.
    """
    most = math.inf if held_out is None else held_out
    starts = int(min(settings.problems, most))
    final = int(min(settings.final_problems or settings.problems, most))
    counts = _looked(settings, iterations, starts, final)
    looks = counts.pop("looks")
    way = f", {starts * settings.samples} {'twice' if looks == 2 else f'{looks} times'} on the way"
    way = "" if not looks else f", {starts * settings.samples} once on the way" if looks == 1 else way
    kind = "drawn as in training" if settings.temperature > 0 else "with the likeliest action"
    kind += " and as often with the likeliest one" if counts["greedy"] else ""
    ends = final * (settings.final_samples or settings.samples)
    lines = [
        f"  evaluation, which no budget counts: {sum(counts.values()):,} episodes from held-out starts, {kind}",
        f"    {ends} at both ends{way}",
    ]
    if final < FEW_EPISODES:
        lines.append(f"  only {final} held-out starts: the mean return will have a wide interval; play more")
    return "\n".join(lines)


def _looked(settings: Any, iterations: int | None, problems: int, last: int) -> dict[str, int]:
    """Answers of the looks at the start, on the way and at the end, and of the greedy ones; `looks` on the way."""
    looks = math.ceil(1 / settings.every - 1e-9) - 1
    looks = min(looks, max(iterations - 1, 0)) if iterations else looks
    samples = settings.final_samples or settings.samples
    return {
        "looks": looks,
        "start": max(problems, last) * max(settings.samples, samples),
        "way": looks * problems * settings.samples,
        "end": last * samples,
        "greedy": 2 * last if settings.temperature > 0 else 0,
        "retained": 2 * problems * len(settings.retain),
    }
