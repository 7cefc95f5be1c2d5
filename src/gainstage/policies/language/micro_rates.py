"""What a fresh embedded model scores before any reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gainstage import registry
from gainstage.policies.language.micro_tokenizer import END, PAD, VOCABULARY, build_tokenizer, encode
from gainstage.types.records import Problem


@torch.no_grad()
def sample(model: Any, texts: Sequence[str], max_new: int, stops: Sequence[str] = ()) -> list[str]:
    """One continuation of every text at temperature 1, up to the end token or one of the characters `stops`."""
    rows = [encode(text) for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([[VOCABULARY[PAD]] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    ends = [VOCABULARY[END], *(VOCABULARY[stop] for stop in stops)]
    written = model.generate(
        ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=max_new, eos_token_id=ends
    )
    return build_tokenizer().batch_decode(written[:, width:], skip_special_tokens=True)


def play(model: Any, task: Any, problems: Sequence[Problem]) -> list[float]:
    """Rewards of one episode of each problem: those of its turns, and the verdict on the last text if there is one."""
    games = [task.open(problem) for problem in problems]
    texts = [game.start() for game in games]
    rewards, live = [0.0] * len(games), list(range(len(games)))
    for _ in range(task.max_turns):
        answers = sample(model, [texts[i] for i in live], task.max_new, task.turn_stop)
        going = []
        for i, answer in zip(live, answers, strict=True):
            step = games[i].step(answer)
            rewards[i] += step.reward or 0.0
            if step.done and "check" in task.capabilities:
                rewards[i] += task.check(problems[i], answer).reward or 0.0
            if not step.done:
                texts[i] += answer + step.observation
                going.append(i)
        if not (live := going):
            break
    return rewards


def base_rates(model: Any, task_name: str, problems: int = 128, samples: int = 16, seed: int = 0) -> dict[str, float]:
    """pass@1 and pass@`samples` on the first validation problems of a task at its default settings, temperature 1."""
    task = registry.build("task", task_name)
    asked = list(task.problems("validation")[:problems])
    rows = [problem for problem in asked for _ in range(samples)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if "env" in task.capabilities:
            scores = play(model, task, rows)
        else:
            texts = sample(model, [problem.prompt for problem in rows], task.max_new)
            scores = [task.check(problem, text).reward for problem, text in zip(rows, texts, strict=True)]
    solved = [any(scores[at : at + samples]) for at in range(0, len(scores), samples)]
    return {
        "pass@1": round(sum(scores) / len(scores), 3),
        f"pass@{samples}": round(sum(solved) / len(solved), 3),
    }
