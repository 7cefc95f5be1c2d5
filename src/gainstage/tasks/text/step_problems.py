"""Problems of several steps whose every intermediate value is known."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from gainstage.registry import component
from gainstage.tasks.text.generated import GeneratedTask, other
from gainstage.types.records import Problem

NAMES = "abcdefghijklmnopqrstuvwxyz"


def follow(value: int, op: str, operand: int, modulus: int) -> int:
    """One step of a chain."""
    return {"+": value + operand, "-": value - operand, "*": value * operand}[op] % modulus


@component("task")
@dataclass(frozen=True, kw_only=True)
class ModularChain(GeneratedTask):
    """Follow assignments modulo a number: `x=3;y=x+4;z=y*2;z?` is answered by `3,7=4` (modulo 10).

    A worked answer writes every value in turn; the last, after `=`, is the answer and the only one judged.
    `Problem.meta["values"]` holds all of them.

    Args:
        lengths: numbers of assignments, one level each, in equal shares; longer chains are harder.
        modulus: all values lie in 0..modulus - 1; a larger one makes each step harder to guess.
        ops: which of `+`, `-`, `*` occur; `*` is the hardest.
        distractors: further assignments that the question does not need; more make it harder.
        shuffled: state the assignments in random order, so that the chain must be searched.
    """

    name: ClassVar[str] = "modular_chain"

    lengths: tuple[int, ...] = (3, 4, 5, 6)
    modulus: int = 10
    ops: tuple[str, ...] = ("+", "-", "*")
    distractors: int = 0
    shuffled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lengths or min(self.lengths) < 1 or max(self.lengths) + self.distractors > len(NAMES):
            raise ValueError(f"lengths (with distractors) must lie in 1..{len(NAMES)}, got {self.lengths}")
        if not 2 <= self.modulus <= 1000:
            raise ValueError(f"modulus must lie in 2..1000, got {self.modulus}")
        if not self.ops or set(self.ops) - set("+-*"):
            raise ValueError(f"ops must be some of +, -, *, got {self.ops}")
        if self.distractors < 0:
            raise ValueError(f"distractors must be >= 0, got {self.distractors}")

    @property
    def max_new(self) -> int:
        return max(self.lengths) * (len(str(self.modulus - 1)) + 1)

    def draw(self, rng: random.Random, index: int) -> Problem:
        length = self.lengths[index % len(self.lengths)]
        names = rng.sample(NAMES, length + self.distractors)
        value, highest = rng.randrange(self.modulus), min(self.modulus, 10)
        values, steps, lines = [value], [], [f"{names[0]}={value};"]
        for i in range(1, length):
            op = rng.choice(self.ops)
            operand = rng.randrange(2 if op == "*" and highest > 2 else 1, highest)
            values.append(follow(values[-1], op, operand, self.modulus))
            steps.append((op, operand))
            lines.append(f"{names[i]}={names[i - 1]}{op}{operand};")
        for i in range(length, length + self.distractors):
            line = f"{names[i]}={rng.choice(names[:i])}{rng.choice(self.ops)}{rng.randrange(1, highest)};"
            lines.insert(rng.randint(0, len(lines)), line)
        if self.shuffled:
            rng.shuffle(lines)
        prompt = "".join(lines) + f"{names[length - 1]}?"
        if self.modulus != 10:
            prompt = f"mod {self.modulus}:{prompt}"
        return self.problem(prompt, prompt, str(values[-1]), float(length), values=tuple(values), steps=tuple(steps))

    def demonstrate(self, problem: Problem, rng: random.Random, noise: float = 0.0) -> str:
        values = [problem.meta["values"][0]]
        for op, operand in problem.meta["steps"]:
            values.append(follow(values[-1], op, operand, self.modulus))
            if rng.random() < noise:  # later steps follow from the slip
                values[-1] = other(rng, range(self.modulus), values[-1])
        return ",".join(str(value) for value in values[:-1]) + f"={values[-1]}"
