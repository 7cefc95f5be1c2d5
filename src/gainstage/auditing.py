"""Audits of tasks, rewards, judges and policies: what `measure` asks for, put together from the other rooms."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gainstage.chain import Chain, Part, build_task
from gainstage.judging import judge
from gainstage.measure.audits.contamination import prompt_text
from gainstage.measure.audits.judge_audit import Item, JudgeReport, judge_audit
from gainstage.measure.audits.partial_prompts import Ids, PartialPromptAudit, PartialPromptReport
from gainstage.measure.audits.reward_hacks import HackReport, Specimen, reward_hacks
from gainstage.measure.budget import Meter
from gainstage.ops.noise import mix
from gainstage.registry import RecipeError
from gainstage.types import Author, Ctx, Problem, Prompt, Sampling, Stop, Trajectory

BATCH = 64
"""Prefixes that are completed at once."""
OTHER_SEED = 1_000_003
"""Added to a generated task's seed for problems that are not those of the test."""


# -- rewards ----------------------------------------------------------------------------------------------------------


def specimens(task: Any, problems: Sequence[Problem], seed: int = 0) -> list[Specimen]:
    """A right and a wrong output of ordinary form for each problem that offers both.

    Right is a worked solution where the task writes them, else the gold answer; wrong is a solution gone wrong, else
    the gold answer changed.
    """
    return [
        made
        for index, problem in enumerate(problems)
        if (made := _specimen(task, problem, random.Random(mix("specimen", seed, index)))) is not None
    ]


def _specimen(task: Any, problem: Problem, rng: random.Random) -> Specimen | None:
    if not problem.meta.get("answerable", True):
        return None
    gold = problem.answer if isinstance(problem.answer, str | int | float) else None
    if "preferences" in task.capabilities:
        try:
            right, wrong = task.preferences(problem, rng)
        except ValueError:  # a problem that has no right solution
            return None
    elif gold is not None:
        right, wrong = _ordinary(task, str(gold)), _ordinary(task, changed(str(gold)))
    else:
        return None
    answers = [task.extract(text) if hasattr(task, "extract") else text for text in (right, wrong)]
    return Specimen(problem, right, answers[1] or wrong, str(gold) if gold is not None else answers[0] or right)


def _ordinary(task: Any, answer: str) -> str:
    """An answer in the form in which the task finds it."""
    for form in ("{}", "\\boxed{{{}}}", "#### {}", "The answer is {}."):
        text = form.format(answer)
        if not hasattr(task, "extract") or task.extract(text) == answer:
            return text
    return answer


def changed(answer: str) -> str:
    """A wrong answer that looks like the right one: its last digit, else its last letter, is another one."""
    for kind, alphabet in ((str.isdigit, "0123456789"), (str.isalpha, "abcdefghijklmnopqrstuvwxyz")):
        for place in range(len(answer) - 1, -1, -1):
            if answer[place].isascii() and kind(answer[place]):
                at = alphabet.index(answer[place].lower())
                return answer[:place] + alphabet[(at + 1) % len(alphabet)] + answer[place + 1 :]
    return answer + "0"


def payer(chain: Chain) -> Callable[[Problem, list[str]], list[float | None]]:
    """The reward of a recipe, as training would pay it, for texts of anybody's; the task's verdict without one."""
    task = chain.task.it
    ctx = Ctx(models={}, task=task, store=None, meter=Meter(), judge=task.check)  # type: ignore[arg-type]
    if refused := [p.key for p in chain.reward if p.declares("uses") or (p.has("shape") and not p.has("judge"))]:
        raise RecipeError(f"audit reward: {refused[0]} needs a model or a running batch; audit the other rewards")

    def pay(problem: Problem, texts: list[str]) -> list[float | None]:
        if not chain.reward:
            return [task.check(problem, text).reward for text in texts]
        rows = [_row(problem, text, index) for index, text in enumerate(texts)]
        paid = {t.sample: float(t.columns["reward"]) for t in judge(chain, rows, ctx, _call)}
        return [paid.get(index) for index in range(len(texts))]

    return pay


def _call(part: Any, hook: str, *args: Any) -> Any:
    return getattr(part.it, hook)(*args)


def _row(problem: Problem, text: str, sample: int) -> Trajectory:
    size = max(len(text), 1)
    columns = {
        "tokens": torch.zeros(size, dtype=torch.long),
        "author": torch.full((size,), int(Author.POLICY)),
        "turn": torch.zeros(size, dtype=torch.long),
        "mask": torch.ones(size, dtype=torch.bool),
    }
    info = {"prompt": prompt_text(problem), "completion": text}
    return Trajectory(problem, 0, sample, sample, "policy", 0, Stop.EOS, columns, {}, info)


def audit_reward(
    chain: Chain, problems: Sequence[Problem], seed: int = 0, tell: Callable[[float], None] = lambda done: None
) -> HackReport:
    """Give outputs that solve nothing to the reward of a recipe.

    Raises:
        RecipeError: the task checks no texts, or no problem has a known right and wrong output.
    """
    task = chain.task.it
    if "check" not in task.capabilities:
        raise RecipeError(f"audit reward: {chain.task.name} checks no texts; it offers {', '.join(task.capabilities)}")
    found = specimens(task, problems, seed)
    if not found:
        raise RecipeError(f"audit reward: no problem of {chain.task.name} has a known right and a known wrong output")
    return reward_hacks(found, payer(chain), tell)


# -- judges -----------------------------------------------------------------------------------------------------------


def audit_judge(
    task: Any,
    problems: Sequence[Problem],
    asked: Callable[..., float] | None = None,
    seed: int = 0,
    tell: Callable[[float], None] = lambda done: None,
) -> JudgeReport:
    """Ask a judge about right, wrong and worthless answers to a task's problems.

    Args:
        asked: the judge, of one answer or of two; the task's own verifier where None.

    Raises:
        RecipeError: no problem has a known right and wrong answer.
    """
    found = {prompt_text(made.problem): made for made in specimens(task, problems, seed)}
    if not found:
        raise RecipeError(f"audit judge: no problem of {task.name} has a known right and a known wrong output")

    def verifier(question: str, answer: str, rubric: str) -> float:
        return float(task.check(found[question].problem, answer).reward or 0.0)

    items = [Item(question, made.right, made.wrong) for question, made in found.items()]
    return judge_audit(asked or verifier, items, tell=tell)


# -- contamination ----------------------------------------------------------------------------------------------------


def control_for(task: Part, named: str | None) -> Part:
    """The control set of a task: the one that is named, else the same generator with another seed.

    Raises:
        RecipeError: the task generates nothing, so that somebody has to name problems that the model cannot know.
    """
    if named is not None:
        return build_task(named)
    made: Any = task.it
    if not hasattr(made, "seed") or not dataclasses.is_dataclass(type(made)):
        raise RecipeError(
            f"audit contamination: {task.name} cannot make new problems; name a set of the same kind that the model "
            "cannot know with --control, for instance newer problems or rg:NAME"
        )
    return dataclasses.replace(task, it=dataclasses.replace(made, seed=made.seed + OTHER_SEED))


def audit_contamination(
    policy: Any,
    task: Any,
    problems: Sequence[Problem],
    control: Sequence[Problem],
    audit: PartialPromptAudit | None = None,
    tell: Callable[[float], None] = lambda done: None,
) -> PartialPromptReport:
    """Show a policy part of each problem and see what it knows of the rest, against problems that it cannot know.

    The bare text is continued, without a chat template. An answer counts as solved where the task accepts what follows
    the recovered rest, or the continuation as a whole.
    """
    room = max(int(getattr(task, "max_new", 0) or 0), 1) if "check" in task.capabilities else 0

    def complete(prefixes: list[Ids], sizes: list[int]) -> list[Ids]:
        out: list[Ids] = []
        for first in range(0, len(prefixes), BATCH):
            part = slice(first, first + BATCH)
            asked = [Prompt(ids, (0,), Sampling(temperature=0.0)) for ids in prefixes[part]]
            found = policy.generate(asked, max_new=max(sizes[part]) + room)
            out += [group[0].ids for group in found]
        return out

    def solved(problem: Problem, ids: Ids, rest: int) -> float | None:
        if not room:
            return None
        verdicts = [task.check(problem, policy.decode(part)).reward for part in (ids[rest:], ids)]
        return max((float(v) for v in verdicts if v is not None), default=None)

    return (audit or PartialPromptAudit()).run(
        problems, control, lambda problem: policy.encode(prompt_text(problem)), complete, solved, tell
    )
