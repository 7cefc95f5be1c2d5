"""Fixed data: demonstrations and preference pairs, drawn every row once a pass."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gainstage.ops.noise import mix
from gainstage.registry import RecipeError, component
from gainstage.types import Author, Batch, Problem, Stop, Trajectory, collate


@component("store")
@dataclass
class Dataset:
    """Demonstrations (`prompt`, answer) or preference pairs (chosen, rejected) of the task's train split.

    They come from the task (its worked solutions, or the completion columns of a data set) or from an
    artifact that an earlier phase wrote. Pairs are adjacent rows, chosen first.
    """

    source: Literal["demonstrations", "preferences", "artifact"] = "demonstrations"
    artifact: str = ""
    """Name of the artifact, with rows of `prompt` and `completion`."""
    rows: int = 4096
    """Rows (or pairs) that are kept; the first of the split."""
    noise: float = 0.0
    """Chance that a step of a generated task's demonstration goes wrong, in [0, 1]; data sets stay as they are."""
    role: str = "policy"
    """Role whose tokenizer encodes the text."""

    fixed = True
    """Takes no experience."""
    draws = True
    """A round is one minibatch."""
    writes = ("tokens", "author", "turn", "mask")

    def __post_init__(self) -> None:
        if not 0 <= self.noise <= 1:
            raise RecipeError(f"store.dataset.noise must lie in [0, 1], got {self.noise}")
        if self.noise and self.source != "demonstrations":
            raise RecipeError(f"store.dataset.noise is for source: demonstrations, not {self.source}; leave it out")
        self.requires = () if self.source == "artifact" else (self.source,)
        self.uses = (self.role,)
        self.examples: list[tuple[Problem, tuple[str, ...]]] = []
        self.cursor = 0

    def start(self, ctx: Any) -> None:
        """Write out the examples. Raises RecipeError where there is none."""
        self.examples = list(self._examples(ctx))
        if not self.examples:
            raise RecipeError(f"store.dataset: no {self.source} to train on")

    def _examples(self, ctx: Any) -> Iterator[tuple[Problem, tuple[str, ...]]]:
        if self.source == "artifact":
            if not ctx.artifacts.get(self.artifact):
                raise RecipeError(
                    f"store.dataset: the artifact {self.artifact!r} is empty or was not written by an earlier phase"
                )
            for index, row in enumerate(ctx.artifacts[self.artifact][: self.rows]):
                yield Problem(str(row.get("id", index)), row["prompt"]), (row["completion"],)
            return
        problems = ctx.task.problems("train")
        for index in range(min(self.rows, len(problems))):
            problem = problems[index]
            rng = random.Random(mix("demonstrate", ctx.seed, index))
            if self.source == "demonstrations":
                noisy = {"noise": self.noise} if self.noise else {}
                yield problem, (ctx.task.demonstrate(problem, rng, **noisy),)
            else:
                yield problem, tuple(ctx.task.preferences(problem, rng))

    def __len__(self) -> int:
        return len(self.examples)

    def add(self, experience: Any, ctx: Any) -> None:
        """A fixed set takes nothing."""

    def rounds(self, plan: Any, ctx: Any) -> Iterator[Batch]:
        """`plan.updates` minibatches of `plan.minibatch` rows; a pair counts as one and is never split."""
        for _ in range(plan.updates):
            known = min(self.cursor, len(self.examples))
            picked = [self._next(ctx.seed) for _ in range(plan.minibatch or 32)]
            if self.source != "artifact":  # a label is paid for once, when it is first looked at
                ctx.meter.charge("labels", min(self.cursor, len(self.examples)) - known, "store.dataset")
            yield self.batch(picked, ctx)

    def _next(self, seed: int) -> int:
        number, place = divmod(self.cursor, len(self.examples))
        self.cursor += 1
        generator = torch.Generator().manual_seed(mix("dataset", seed, number))
        return int(torch.randperm(len(self.examples), generator=generator)[place])

    def batch(self, picked: Sequence[int], ctx: Any) -> Batch:
        """Rows of the given examples, collated."""
        policy = ctx.models[self.role]
        rows = []
        for group, index in enumerate(picked):
            problem, answers = self.examples[index]
            prompt = policy.encode(problem.prompt)
            for sample, text in enumerate(answers):
                rows.append(expert_row(problem, prompt, policy.encode_answer(text), group, sample, self.role))
        return collate(rows, ctx.device)

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cursor = int(state["cursor"])


def expert_row(
    problem: Problem, prompt: list[int], answer: list[int], group: int, sample: int, actor: str
) -> Trajectory:
    """A row whose answer somebody else wrote: every token of it is trained."""
    size = len(prompt) + len(answer)
    columns = {
        "tokens": torch.tensor([*prompt, *answer]),
        "author": torch.tensor([int(Author.PROMPT)] * len(prompt) + [int(Author.EXPERT)] * len(answer)),
        "turn": torch.tensor([-1] * len(prompt) + [0] * len(answer)),
        "mask": torch.arange(size) >= len(prompt),
    }
    return Trajectory(problem, group, sample, group, actor, 0, Stop.EOS, columns)
