"""What all generated text tasks share: splits that cannot overlap, the final answer, preference pairs."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, overload

from gainstage.types.records import Problem, Verdict

SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}
"""Share of all problems that belongs to each split, decided by a hash of the content."""

PATIENCE = 300
"""Draws without a fitting problem after which a split counts as exhausted."""

LONGEST = 2000
"""Outputs with more characters than this are wrong unread."""


def digest(text: str) -> str:
    """A stable 16-digit name of a text."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def split_of(key: str) -> str:
    """The split that content belongs to: a function of the content alone, so splits never overlap."""
    position = int(digest(key)[-8:], 16) / 2**32
    for split, share in SPLITS.items():
        position -= share
        if position < 0:
            return split
    return split


def final_answer(output: str) -> tuple[str | None, str]:
    """What follows the only `=` of an output, or all of it where there is none; outer white space is dropped.

    Returns:
        The answer and an empty string, or None and the reason why there is no single answer.
    """
    if len(output) > LONGEST:
        return None, f"longer than {LONGEST} characters"
    head, mark, tail = output.strip().partition("=")
    if "=" in tail:
        return None, "more than one answer"
    answer = (tail if mark else head).strip()
    return (answer, "") if answer else (None, "no answer")


class GeneratedSplit(Sequence[Problem]):
    """One split of a generated task: item i is a function of the task's settings, the split and i.

    `train` is drawn on demand and may repeat a problem; `validation` and `test` hold no problem twice
    and may be shorter than asked where the settings allow too few problems.
    """

    def __init__(self, task: GeneratedTask, split: str) -> None:
        self.task, self.split = task, split
        self.cache: dict[int, Problem] = {}
        self.size = task.train_size
        if split != "train":
            found = list(self._distinct(task.heldout_size))
            self.cache, self.size = dict(enumerate(found)), len(found)

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Problem: ...

    @overload
    def __getitem__(self, index: slice) -> list[Problem]: ...

    def __getitem__(self, index: int | slice) -> Problem | list[Problem]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.size))]
        if not -self.size <= index < self.size:
            raise IndexError(f"problem {index} of {self.size}")
        index %= self.size
        if index not in self.cache:
            found = self._draw(index, frozenset())
            if found is None:
                raise ValueError(f"task {self.task.name}: these settings leave no problem for the split {self.split!r}")
            self.cache[index] = found
        return self.cache[index]

    def _draw(self, index: int, seen: Iterable[str]) -> Problem | None:
        rng = random.Random(f"{self.task.name}/{self.task.seed}/{self.split}/{index}")
        for _ in range(PATIENCE):
            problem = self.task.draw(rng, index)
            key = problem.meta["key"]
            if split_of(key) == self.split and key not in seen:
                return problem
        return None

    def _distinct(self, size: int) -> Iterable[Problem]:
        seen: set[str] = set()
        for index in range(size):
            problem = self._draw(index, seen)
            if problem is not None:
                seen.add(problem.meta["key"])
                yield problem
        if not seen:
            raise ValueError(f"task {self.task.name}: these settings leave no problem for the split {self.split!r}")


@dataclass(frozen=True, kw_only=True)
class GeneratedTask:
    """Base of the generated text tasks; a task adds `draw`, `demonstrate` and `judge`.

    Args:
        train_size: items of the train split; more means fewer repeats in a long run.
        heldout_size: items of validation and of test; more gives narrower intervals and slower evaluation.
        seed: another seed draws other items; the split of a problem does not depend on it.
    """

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[str]] = frozenset({"answer", "check", "demonstrations", "preferences"})

    train_size: int = 16384
    heldout_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("train_size", "heldout_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")

    @property
    def max_new(self) -> int:
        """Tokens (one a character) that the longest worked answer needs, end token included."""
        raise NotImplementedError

    def draw(self, rng: random.Random, index: int) -> Problem:
        """One problem of any split. `index` cycles through the difficulty levels; `rng` decides the rest."""
        raise NotImplementedError

    def demonstrate(self, problem: Problem, rng: random.Random, noise: float = 0.0) -> str:
        """A worked solution that ends with the answer; each step goes wrong with probability `noise`."""
        raise NotImplementedError

    def judge(self, problem: Problem, answer: str) -> tuple[bool, str]:
        """Whether a single extracted answer is right, and a short reason."""
        if answer == problem.answer:
            return True, "right"
        return False, f"wrong answer {answer[:40]!r}"

    def problem(self, key: str, prompt: str, answer: Any, difficulty: float, **meta: Any) -> Problem:
        """A problem whose split is decided by `key`, the content without its wording."""
        named = f"{self.name} {key}"
        return Problem(digest(f"{named} {prompt}"), prompt, answer, difficulty, {"key": named, **meta})

    def split_of(self, problem: Problem) -> str:
        """The split a drawn problem belongs to."""
        return split_of(problem.meta["key"])

    def problems(self, split: str) -> Sequence[Problem]:
        """The problems of `train`, `validation` or `test`.

        Raises:
            ValueError: an unknown split, or settings that leave a split without any problem.
        """
        if split not in SPLITS:
            raise ValueError(f"task {self.name}: unknown split {split!r}; splits are {', '.join(SPLITS)}")
        return _split(self, split)

    def extract(self, output: str) -> str | None:
        """The single answer an output gives, or None."""
        return final_answer(output)[0]

    def check(self, problem: Problem, output: str) -> Verdict:
        """1 for the right answer, 0 for anything else; the part `format` is 1 where there is one single answer."""
        answer, reason = final_answer(output)
        if answer is None:
            return Verdict(0.0, {"format": 0.0}, reason)
        right, reason = self.judge(problem, answer)
        return Verdict(float(right), {"format": 1.0}, reason)

    def preferences(self, problem: Problem, rng: random.Random) -> tuple[str, str]:
        """A right worked solution and a wrong one of about its length (certified by `check`)."""
        chosen = self.demonstrate(problem, rng)
        for _ in range(PATIENCE):
            rejected = self.demonstrate(problem, rng, noise=0.4)
            if self.check(problem, rejected).reward == 0 and abs(len(rejected) - len(chosen)) <= 2:
                return chosen, rejected
        raise ValueError(f"task {self.name}: no wrong solution found for {problem.prompt!r}")


def other(rng: random.Random, alphabet: Sequence[Any], item: Any) -> Any:
    """A different member of an alphabet, or the item itself where there is none."""
    rest = [x for x in alphabet if x != item]
    return rng.choice(rest) if rest else item


@functools.lru_cache(maxsize=32)
def _split(task: GeneratedTask, split: str) -> GeneratedSplit:
    """One object per settings and split: problems that were drawn once are not drawn again."""
    return GeneratedSplit(task, split)
