"""Retrieval: find the value of a key among many pairs."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from gainstage.registry import component
from gainstage.tasks.text.generated import GeneratedTask, other
from gainstage.types.records import Problem

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"


@component("task")
@dataclass(frozen=True, kw_only=True)
class KeyValue(GeneratedTask):
    """Read the value of one key out of a list of pairs: `k=41;q=07;?q:` is answered by `07`.

    Args:
        pairs: numbers of pairs, one level each, in equal shares; more pairs are harder and make longer prompts.
        key_length: letters of a key; shorter keys share more letters with their neighbours.
        value_length: digits of a value; more digits mean more chances of a slip.
        position: share of the list after which the asked pair stands, 0 first to 1 last; None is anywhere.
    """

    name: ClassVar[str] = "key_value"

    pairs: tuple[int, ...] = (2, 4, 6)
    key_length: int = 1
    value_length: int = 2
    position: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.key_length <= 20 or not 1 <= self.value_length <= 50:
            raise ValueError("key_length must lie in 1..20 and value_length in 1..50")
        if not self.pairs or min(self.pairs) < 1 or max(self.pairs) > 26**self.key_length // 2:
            raise ValueError(f"pairs must lie in 1..{26**self.key_length // 2} for these keys, got {self.pairs}")
        if self.position is not None and not 0 <= self.position <= 1:
            raise ValueError(f"position must lie in [0, 1], got {self.position}")

    @property
    def max_new(self) -> int:
        return self.value_length + 1

    def draw(self, rng: random.Random, index: int) -> Problem:
        count = self.pairs[index % len(self.pairs)]
        keys: dict[str, str] = {}
        while len(keys) < count:
            key = "".join(rng.choice(LETTERS) for _ in range(self.key_length))
            keys[key] = "".join(rng.choice(DIGITS) for _ in range(self.value_length))
        at = rng.randrange(count) if self.position is None else round(self.position * (count - 1))
        asked = list(keys)[at]
        prompt = "".join(f"{key}={value};" for key, value in keys.items()) + f"?{asked}:"
        return self.problem(prompt, prompt, keys[asked], float(count), values=tuple(keys.values()), position=at)

    def demonstrate(self, problem: Problem, rng: random.Random, noise: float = 0.0) -> str:
        return "".join(other(rng, DIGITS, x) if rng.random() < noise else x for x in problem.answer)
