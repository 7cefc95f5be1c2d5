"""The looks of a run at held-out problems: before training, on the way, at the end; and the gate that heeds them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gainstage.chain import build_task
from gainstage.evaluation import greedy, has_split, held_out, look, parity, refuse_test_problems, retained, simulated
from gainstage.measure.audits.calibration import Gate
from gainstage.measure.evaluate import EvalRecord, summarize
from gainstage.measure.runs import ParityManifest
from gainstage.results import ks
from gainstage.trainer import Trainer
from gainstage.types import Problem

SMALL = 50_000_000
"""Weights up to which a copy of the start is kept to measure the KL from it."""


class Extent(NamedTuple):
    """What a look asks: so many problems of a split, so many answers to each."""

    problems: int
    samples: int
    split: str


@dataclass
class Looks:
    """Everything a run learns about itself on problems that it is not trained on.

    Raises:
        RecipeError: a gate whose problems are test problems.
    """

    trainer: Trainer
    first: list[EvalRecord] = field(default_factory=list)
    """Answers before training to what the last look asks, so that both can be told apart by training alone."""
    last: list[EvalRecord] = field(default_factory=list)
    closed: bool = False
    """The gate has ended the run."""

    def __post_init__(self) -> None:
        settings = self.settings = self.trainer.recipe.evaluate
        self.retain = [build_task(entry) for entry in settings.retain]
        self.gate = None if settings.gate is None else Gate(**settings.gate.model_dump())
        if self.gate is not None:
            refuse_test_problems(self.task, settings.split, settings.problems)
        self.start = None if simulated(self.trainer.last_chain) else _start_copy(self.trainer.models)
        self.on_way = Extent(settings.problems, settings.samples, settings.split)
        self.at_end = Extent(
            settings.final_problems or settings.problems, settings.final_samples or settings.samples,
            settings.final_split or ("test" if self.gate and has_split(self.task, "test") else settings.split),
        )  # fmt: skip

    @property
    def task(self) -> Any:
        return self.trainer.last_chain.task.it

    # -- looks --------------------------------------------------------------------------------------------------------

    def before(self) -> dict[str, float]:
        """What the policy can do before training.

        It is asked what the last look asks; the numbers count only as many of these answers as the looks on the way
        have, because calibration, diversity and pass@k depend on how many there are.
        """
        if "policy" not in self.trainer.models:
            return {}
        way, end = self.on_way, self.at_end
        if way.split == end.split:
            found = self._ask(Extent(max(way.problems, end.problems), max(way.samples, end.samples), way.split))
            self.first, shown = cut(found, end), cut(found, way)
        else:
            self.first, shown = self._ask(end), self._ask(way)
        return {**self._numbers(shown, way), **self._greedy(), **self._retained()}

    def on_the_way(self) -> dict[str, float]:
        """What the policy can do now."""
        if "policy" not in self.trainer.models:
            return {}
        return self._numbers(self._ask(self.on_way), self.on_way)

    def at_the_end(self) -> dict[str, float]:
        """What the policy can do at the end; its answers are kept as `last`."""
        self.last = self._ask(self.at_end)
        return {**self._numbers(self.last, self.at_end), **self._greedy()}

    def kept(self, before: Mapping[str, float]) -> dict[str, float]:
        """Retained tasks at the end, with their change since the start."""
        out = self._retained()
        return out | {f"{name}/change": value - before[name] for name, value in out.items() if name in before}

    def start_numbers(self) -> dict[str, float]:
        """Numbers before training of as many answers as the last look has."""
        return self._numbers(self.first, self.at_end) if self.first else {}

    def asked(self) -> list[Problem]:
        """Problems of the last look."""
        return held_out(self.task, self.at_end.split, self.at_end.problems)

    def manifest(self) -> ParityManifest:
        """What has to be equal before the run's score may be compared with another one's."""
        chain, policy = self.trainer.last_chain, self.trainer.models["policy"]
        return parity(chain, policy, self.asked(), self.at_end.samples, self.at_end.split)

    def _ask(self, extent: Extent) -> list[EvalRecord]:
        trainer = self.trainer
        return look(
            trainer.last_chain, trainer.models, held_out(self.task, extent.split, extent.problems), extent.samples,
            seed=trainer.recipe.seed, temperature=self.settings.temperature, start=self.start, meter=trainer.meter,
        )  # fmt: skip

    def _numbers(self, records: Sequence[EvalRecord], extent: Extent) -> dict[str, float]:
        return summarize(records, ks(extent.samples), self.task.name)

    def _greedy(self) -> dict[str, float]:
        """Greedy pass@1 on the problems of the last look; nothing where the evaluation samples greedily anyway."""
        trainer = self.trainer
        if self.settings.temperature == 0:
            return {}
        return greedy(
            trainer.last_chain, trainer.models, self.asked(), seed=trainer.recipe.seed, meter=trainer.meter
        )  # fmt: skip

    def _retained(self) -> dict[str, float]:
        """What the policy can do now on the tasks that it shall not forget."""
        trainer = self.trainer
        return retained(
            trainer.last_chain, trainer.models, self.retain, self.on_way.problems, self.on_way.split,
            seed=trainer.recipe.seed, temperature=self.settings.temperature, meter=trainer.meter,
        )  # fmt: skip

    # -- the gate -----------------------------------------------------------------------------------------------------

    def seen(self, rows: Sequence[Mapping[str, float]]) -> list[tuple[float, float]]:
        """(pass@1, calibration error) of every look in these rows, which the gate goes by."""
        names = (f"eval/{self.task.name}/pass@1", f"eval/{self.task.name}/ece")
        return [(row[names[0]], row[names[1]]) for row in rows if all(name in row for name in names)]

    def best(self, seen: Sequence[tuple[float, float]]) -> bool:
        """Whether the newest look is the best one by the gate's score."""
        return self.gate is not None and bool(seen) and self.gate.best(seen) == len(seen) - 1

    def heed(self, seen: Sequence[tuple[float, float]]) -> None:
        """Let the gate act on the newest look: end the run, or halve the policy's learning rate."""
        if self.gate is None or not self.gate.closed(seen):
            return
        if self.gate.action == "halve":
            self.trainer.slow("policy", 0.5)
        else:
            self.closed = self.trainer.stop_requested = True

    def resumed(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Stay ended where the gate had ended the run. Halved rates are in the trainer's own state."""
        if self.gate is not None and self.gate.action == "stop":
            self.heed(self.seen(rows))

    def notes(self) -> list[str]:
        """What the gate did."""
        if self.gate is None:
            return []
        out = []
        if self.closed:
            out.append("the calibration gate ended the run: its error rose while its accuracy stood still")
        if times := round(-math.log2(self.trainer.lr_scale.get("policy", 1.0))):
            much = "once" if times == 1 else f"{times} times"
            out.append(f"the calibration gate halved the policy's learning rate {much}")
        if self.at_end.split == self.on_way.split:
            out.append(f"scored on the {self.on_way.split} split, which the calibration gate looked at")
        return out


def cut(records: Sequence[EvalRecord], extent: Extent) -> list[EvalRecord]:
    """The first problems of a look with their first answers."""
    return [
        replace(record, answers=record.answers[: extent.samples], failed=max(extent.samples - record.n, 0))
        for record in records[: extent.problems]
    ]


def _start_copy(models: Any) -> Any:
    """The weights that the run starts from, where keeping them costs little."""
    if "policy" not in models or not hasattr(models["policy"], "snapshot"):
        return None
    for role, spec in models.roles.items():
        untouched = spec.make == "copy" and spec.of == "policy" and spec.on == "start"
        if untouched and role in models and role not in models.trained:
            return models[role]
    policy = models["policy"]
    return policy.snapshot("start") if policy.size <= SMALL or policy.peft is not None else None
