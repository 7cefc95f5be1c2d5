"""Small letter tasks: sort, reverse and count."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from gainstage.registry import component
from gainstage.tasks.text.generated import GeneratedTask, other
from gainstage.types.records import Problem

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, kw_only=True)
class _LetterTask(GeneratedTask):
    """Args:
    lengths: word lengths, one level each, in equal shares; longer words are harder.
    letters: how many letters of the alphabet occur; more are harder.
    """

    lengths: tuple[int, ...] = (4, 5, 6, 7)
    letters: int = 26

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lengths or min(self.lengths) < 1 or max(self.lengths) > 200:
            raise ValueError(f"lengths must be word lengths from 1 to 200, got {self.lengths}")
        if not 2 <= self.letters <= 26:
            raise ValueError(f"letters must lie in 2..26, got {self.letters}")

    @property
    def max_new(self) -> int:
        return max(self.lengths) + 1

    def _word(self, rng: random.Random, index: int) -> str:
        length = self.lengths[index % len(self.lengths)]
        return "".join(rng.choice(LETTERS[: self.letters]) for _ in range(length))

    def demonstrate(self, problem: Problem, rng: random.Random, noise: float = 0.0) -> str:
        alphabet = LETTERS[: self.letters]
        return "".join(other(rng, alphabet, x) if rng.random() < noise else x for x in problem.meta["result"])


@component("task")
@dataclass(frozen=True, kw_only=True)
class SortLetters(_LetterTask):
    """Write the letters of a word in alphabetical order: `sort dbca:` is answered by `abcd`."""

    __doc__ = f"{__doc__}\n\n{_LetterTask.__doc__}"
    name: ClassVar[str] = "sort_letters"

    def draw(self, rng: random.Random, index: int) -> Problem:
        word = self._word(rng, index)
        answer = "".join(sorted(word))
        return self.problem(word, f"sort {word}:", answer, float(len(word)), result=answer)


@component("task")
@dataclass(frozen=True, kw_only=True)
class Reverse(_LetterTask):
    """Write a word backwards: `reverse dbca:` is answered by `acbd`."""

    __doc__ = f"{__doc__}\n\n{_LetterTask.__doc__}"
    name: ClassVar[str] = "reverse"

    def draw(self, rng: random.Random, index: int) -> Problem:
        word = self._word(rng, index)
        return self.problem(word, f"reverse {word}:", word[::-1], float(len(word)), result=word[::-1])


@component("task")
@dataclass(frozen=True, kw_only=True)
class CountLetters(_LetterTask):
    """Count a letter in a word: `count a in banana:` is answered by `3`."""

    __doc__ = f"{__doc__}\n\n{_LetterTask.__doc__}"
    name: ClassVar[str] = "count_letters"

    lengths: tuple[int, ...] = (4, 6, 8, 10)
    letters: int = 4

    @property
    def max_new(self) -> int:
        return len(str(max(self.lengths))) + 1

    def draw(self, rng: random.Random, index: int) -> Problem:
        word, letter = self._word(rng, index), rng.choice(LETTERS[: self.letters])
        answer = str(word.count(letter))
        return self.problem(f"{letter} {word}", f"count {letter} in {word}:", answer, float(len(word)), result=answer)

    def demonstrate(self, problem: Problem, rng: random.Random, noise: float = 0.0) -> str:
        counts = [str(n) for n in range(len(str(problem.prompt).split()[-1]))]
        return other(rng, counts, problem.answer) if rng.random() < noise else problem.answer
