"""Procedural tasks of the reasoning-gym package by name (arXiv:2505.24760)."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from gainstage.ops.answers import extract_boxed
from gainstage.ops.extras import require
from gainstage.ops.workers import Failure, shared_pool
from gainstage.registry import component, near
from gainstage.tasks.text.datasets import SPLITS, Dataset, normalised
from gainstage.tasks.text.generated import digest, split_of
from gainstage.types import Problem, Verdict

TAGGED = "{prompt}\n\nGive the final answer between <answer> and </answer>."
LONGEST_STREAM = 2**31 - 1
PATIENCE = 200
"""Items drawn for each one wanted before a split counts as exhausted."""


@component("task", "rg")
@dataclass(kw_only=True)
class ReasoningGym:
    """Any reasoning-gym data set, with its own scores as verdicts.

    Which split a question belongs to is decided by a hash of its wording, so splits are disjoint for every seed.

    Args:
        dataset: name in reasoning-gym, e.g. `chain_sum`.
        settings: the data set's own settings (difficulty), e.g. `{min_digits: 2}`.
        train_size: training problems.
        heldout_size: validation problems, and test problems.
        seed: another seed draws other problems.
        template: wording around `{prompt}`; None asks the bare question.
        chat: put the question as a user message.
        max_new: room for an answer, in tokens.
        seconds: limit of scoring one answer.
    """

    dataset: str
    settings: dict[str, Any] = field(default_factory=dict)
    train_size: int = 2000
    heldout_size: int = 100
    seed: int = 0
    template: str | None = TAGGED
    chat: bool = True
    max_new: int = 512
    seconds: float = 10.0
    concurrent_checks: ClassVar[int] = 4

    def __post_init__(self) -> None:
        require("reasoning_gym", extra="tasks")
        from reasoning_gym.factory import DATASETS

        if self.dataset not in DATASETS:
            raise ValueError(f"rg: reasoning-gym has no {self.dataset!r}; {near(self.dataset, DATASETS)}")
        for name in ("train_size", "heldout_size", "max_new"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.template is not None and "{prompt}" not in self.template:
            raise ValueError("template must contain {prompt}")
        self._splits: dict[str, Dataset[Problem]] = {}
        self._make(1)

    @property
    def name(self) -> str:
        return f"rg:{self.dataset}"

    @property
    def stream_seed(self) -> int:
        """Item i of seed s is item i - 1 of seed s + 1 in the package, so neighbouring seeds are spread apart."""
        return int(digest(f"rg {self.seed}"), 16) % 2**31

    @cached_property
    def capabilities(self) -> frozenset[str]:
        """`check` always; `answer` where the data set states one."""
        return frozenset({"check", "answer"} if self.problems("validation")[0].answer is not None else {"check"})

    def problems(self, split: str) -> Sequence[Problem]:
        """The problems of a split; held-out splits hold no question twice.

        Raises:
            ValueError: an unknown split, or settings that leave a split without problem.
        """
        if split not in SPLITS:
            raise ValueError(f"task {self.name}: unknown split {split!r}; splits are {', '.join(SPLITS)}")
        if split not in self._splits:
            self._splits[split] = Dataset(tuple(self._draw(split)), self.name)
        return self._splits[split]

    def check(self, problem: Problem, output: str) -> Verdict:
        """The data set's score of the answer, made in a worker process; no reward where that failed."""
        answer = self.extract(output)
        pool = shared_pool("gainstage.tasks.text.reasoning_gym_scoring:score")
        result = pool.call(*problem.meta["stream"], problem.meta["index"], answer, seconds=self.seconds)
        if isinstance(result, Failure):
            return Verdict(None, {}, f"no verdict: {result.kind}: {result.message}")
        return Verdict(result, {"format": float(answer is not None)})

    def extract(self, output: str) -> str | None:
        """What stands in the last answer tags, in a box, or the whole output where tags were not asked for."""
        tagged = re.findall(r"<answer>(.*?)</answer>", output, re.DOTALL)
        if tagged:
            return tagged[-1].strip()
        boxed = extract_boxed(output)
        return boxed if boxed is not None or self.template == TAGGED else output.strip() or None

    def _make(self, wanted: int) -> tuple[Any, int]:
        """The data set and its length: endless where it permits that."""
        import reasoning_gym

        create = functools.partial(reasoning_gym.create_dataset, self.dataset, seed=self.stream_seed, **self.settings)
        try:
            return create(size=LONGEST_STREAM), LONGEST_STREAM
        except TypeError as error:
            raise ValueError(f"settings: {self.dataset} does not take them: {error}") from None
        except (ValueError, AssertionError):
            pass
        try:
            return create(size=wanted), wanted
        except (ValueError, AssertionError) as error:
            raise ValueError(f"settings: {self.dataset} refuses them: {error}") from None

    def _draw(self, split: str) -> list[Problem]:
        wanted = self.train_size if split == "train" else self.heldout_size
        items, size = self._make(20 * max(self.train_size, self.heldout_size))
        found: list[Problem] = []
        seen: set[str] = set()
        for index in range(min(size, wanted * PATIENCE)):
            if len(found) == wanted:
                break
            item = items[index]
            key = normalised(item["question"])
            if split_of(key) != split or (split != "train" and key in seen):
                continue
            seen.add(key)
            found.append(self._problem(item, index, size))
        if not found:
            raise ValueError(f"task {self.name}: these settings leave no problem for the split {split!r}")
        return found

    def _problem(self, item: dict[str, Any], index: int, size: int) -> Problem:
        question = item["question"]
        text = self.template.replace("{prompt}", question) if self.template is not None else question
        stream = (self.dataset, json.dumps(self.settings, sort_keys=True), size, self.stream_seed)
        meta = {"stream": stream, "index": index, "question": question, "metadata": item.get("metadata", {})}
        name = f"{self.dataset}-{stream[3]}-{index}"
        return Problem(name, [{"role": "user", "content": text}] if self.chat else text, item.get("answer"), None, meta)
