"""One run from start to finish: its folder, its looks at held-out problems, its checkpoints, the model it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from gainstage import checkpoint
from gainstage.evaluation import overlaps
from gainstage.looking import Looks
from gainstage.measure.runs import RunRecord
from gainstage.recipe import Recipe, of_run
from gainstage.registry import RecipeError
from gainstage.results import BEFORE, bibtex, citation, flat, ks, load_before, load_record, measured, steps_note
from gainstage.tracking.files import writing
from gainstage.tracking.folder import RunFolder, read_metrics
from gainstage.trainer import RunError, Trainer
from gainstage.types import Batch

__all__ = ["Run", "citation", "ks", "load_before", "load_record"]


@dataclass
class Run:
    """A trainer with a folder around it.

    Args:
        folder: where everything is written; absent = nothing is.
        watch: receives each row (for progress lines and sinks).
    """

    recipe: Recipe
    folder: RunFolder | None = None
    device: str = "cpu"
    arm: str = ""
    watch: Callable[[dict[str, float], Trainer], None] = lambda row, trainer: None
    warn: Callable[[str], None] = lambda text: None
    marks: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trainer = Trainer(
            self.recipe, device=self.device, on_row=self._row, on_batch=self._batch, on_mark=self._mark,
            folder=lambda: self.folder.path if self.folder else None,
        )  # fmt: skip
        self.looks = Looks(self.trainer)
        self.curve: list[dict[str, float]] = []

    # -- life ---------------------------------------------------------------------------------------------------------

    def execute(self) -> RunRecord:
        """Run to the end, write the result, and say what came out.

        Raises:
            RunError: the run cannot go on; the batch that stopped it is saved under `failures/`.
        """
        if self.folder and self.trainer.iteration == 0:
            self.folder.write_recipe(self.recipe.model_dump(mode="json"))
            self.folder.write_environment()
        if self.trainer.iteration == 0:
            row = {"iteration": 0.0, "progress": 0.0, **self._first_look(), **self.trainer.meter.metrics()}
            self._row(row, before=True)
        if self.folder and self.ended and (done := load_record(self.folder.path)) is not None:
            return done
        try:
            self.trainer.run()
        except RunError:
            self._save_failed_batch()
            raise
        if self.trainer.stop_requested and not self.ended:
            self._save()
            return self.record(finished=False)
        if self.trainer.iteration == 0:
            raise RunError("the run ended without a single iteration: its budget or `iterations` is too small")
        for text in self._unlearned():
            self.warn(text)
        return self.finish()

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to do: schedule or budget are at their end, or the gate has closed."""
        return self.trainer.finished or self.looks.closed

    def finish(self) -> RunRecord:
        """The last look, the last checkpoint, the model folder with its card."""
        looks = self.looks
        numbers = looks.at_the_end()
        if (looks.at_end.problems, looks.at_end.split) == (looks.on_way.problems, looks.on_way.split):
            ended = {"iteration": self.trainer.iteration, "progress": 1.0, **self.trainer.meter.metrics(), **numbers}
            self.curve.append(flat(ended))
        record = self.record(finished=True)
        record.final |= {k: v for k, v in numbers.items() if k not in record.numbers()}
        record.final |= looks.kept(self.curve[0] if self.curve else {})
        if self.folder:
            self._save()
            self._write_result(numbers)
            checkpoint.replace_file(self.folder.path / "record.json", record.to_json().encode())
        return record

    @classmethod
    def resume(cls, path: Path, **settings: Any) -> Run:
        """Go on with a run from its newest good checkpoint.

        Raises:
            RecipeError: no recipe, or no checkpoint that can be read.
        """
        recipe = of_run(path)
        folder = RunFolder.hold(path)  # before anything is cleaned: another process may be writing it
        try:
            return cls._resume(recipe, folder, **settings)
        except BaseException:
            folder.close()
            raise

    @classmethod
    def _resume(cls, recipe: Recipe, folder: RunFolder, **settings: Any) -> Run:
        path, file = folder.path, folder.path / "recipe.yaml"
        checkpoint.clean(path / "checkpoints")
        newest, complaints = checkpoint.newest_good(path / "checkpoints")
        if newest is None:
            why = f": {complaints[0]}" if complaints else ""
            raise RecipeError(f"{path} has no checkpoint to go on from{why}; start it again with --clean")
        state, weights, manifest = checkpoint.load(newest)
        if manifest["fingerprint"] != recipe.fingerprint():
            raise RecipeError(
                f"{newest} was written by another recipe than {file}; was the file edited? Start a new run instead"
            )
        folder.rewind(int(state["iteration"]))
        run = cls(recipe, folder, **settings)
        for complaint in complaints:
            run.warn(f"skipped a damaged checkpoint: {complaint}")
        run.trainer.load_state_dict(state, weights)
        run.curve = [flat(row) for row in read_metrics(path)]
        run.looks.first = load_before(path)
        run.looks.resumed(run.curve)
        run.marks = {key: int(run.trainer.progress / every + 1e-9) for key, every in run._clocks().items()}
        folder.write_environment()
        return run

    # -- what the trainer calls ---------------------------------------------------------------------------------------

    def _row(self, row: dict[str, float], before: bool = False) -> None:
        iteration = int(row.pop("iteration"))
        if self.folder:
            self.folder.log(iteration - 1, row)
        self.curve.append(flat({"iteration": iteration - 1, **row}))
        self.watch({"iteration": float(iteration), **row}, self.trainer)
        if not before and self._due("save", self.recipe.save.every):
            self._save()

    def _batch(self, iteration: int, batch: Batch) -> None:
        every = 0 if self.trainer.chain.simulates else self.recipe.save.rollouts
        if self.folder and every and iteration % every == 0:
            self.folder.write_rollouts(iteration, batch)

    def _mark(self, trainer: Trainer) -> Mapping[str, float]:
        if not self._due("evaluate", self.recipe.evaluate.every) or trainer.finished:
            return {}
        numbers = self.looks.on_the_way()
        seen = self.looks.seen([*self.curve, numbers])
        if self.folder and self.looks.best(seen):
            trainer.models["policy"].save(self.folder.path / "best")
        self.looks.heed(seen)
        return numbers

    def _clocks(self) -> dict[str, float]:
        return {"save": self.recipe.save.every, "evaluate": self.recipe.evaluate.every}

    def _due(self, what: str, every: float) -> bool:
        mark = int(self.trainer.progress / every + 1e-9)
        due = mark > self.marks.get(what, 0)
        self.marks[what] = mark
        return due

    @property
    def task(self) -> Any:
        return self.looks.task

    def _first_look(self) -> dict[str, float]:
        """The look before training; its answers are kept for the record."""
        numbers = self.looks.before()
        if self.folder and self.looks.first:
            rows = [record.to_dict() for record in self.looks.first]
            checkpoint.replace_file(self.folder.path / BEFORE, json.dumps(rows).encode())
        return numbers

    @property
    def before(self) -> dict[str, float]:
        """Held-out numbers before training."""
        row = self.curve[0] if self.curve and self.curve[0].get("iteration") == -1 else {}
        return {k: v for k, v in row.items() if k.startswith("eval/")} | (self.looks.start_numbers() if row else {})

    # -- files --------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        if self.folder is None:
            return
        policy = self.trainer.models.handles.get("policy")
        checkpoint.save(
            self.folder.checkpoints, self.trainer.state_dict(), self.trainer.models,
            fingerprint=self.recipe.fingerprint(), policy=policy, keep=self.recipe.save.keep,
        )  # fmt: skip

    def _save_failed_batch(self) -> None:
        batch = getattr(self.trainer, "failed_batch", None)
        if self.folder and batch is not None:
            place = self.folder.path / "failures"
            place.mkdir(exist_ok=True)
            save_file(
                {k: v.detach().cpu().contiguous().clone() for k, v in batch.columns.items()},
                place / f"{self.trainer.iteration:06d}.safetensors",
            )

    def _write_result(self, numbers: Mapping[str, float]) -> None:
        from gainstage.tracking.card import write_card

        assert self.folder is not None
        policy, target = self.trainer.models["policy"], self.folder.path / "final"
        recipe = self.recipe.model_dump(mode="json")
        with writing(target, lambda: checkpoint.remedy(self.folder.checkpoints) if self.folder else ""):
            policy.save(target)
            write_card(
                target, recipe=recipe, measured=measured(numbers, self.task.name, self.before),
                base_model=policy.source, dataset=self.task.name, citation=bibtex(self.recipe.paper),
                how_to_run="gainstage train recipe.yaml  # what stands below, in a file of that name",
                kind="net" if hasattr(policy, "net") else "lm",
            )  # fmt: skip

    def record(self, finished: bool) -> RunRecord:
        """What a comparison needs to know of this run."""
        meter, looks, name = self.trainer.meter, self.looks, self.task.name
        tasks = [chain.task.it for chain in self.trainer.chains.values()]
        return RunRecord(
            arm=self.arm or self.recipe.name, seed=self.recipe.seed, curve=self.curve,
            evaluation={name: looks.last} if looks.last else {}, before={name: looks.first} if looks.first else {},
            spent=meter.snapshot(), spent_by=meter.by_component(), evaluation_spent=meter.snapshot("evaluation"),
            manifest=looks.manifest(), contamination=overlaps(tasks, looks.asked()),
            notes=self.notes() if finished else ["the run was stopped before its end"],
        )  # fmt: skip

    def notes(self) -> list[str]:
        """What a reader must know to read the figures right."""
        missed = [
            f"the budget was spent before phase {name!r}, which never ran: "
            f"set phases.{self.trainer.schedule.name}.budget or its iterations"
            for name in self.trainer.schedule.unreached
        ]
        return [*self.looks.notes(), *missed, *self._unlearned(), *steps_note(self.trainer.last_chain)]

    def _unlearned(self) -> list[str]:
        """What is to be said where the run ended before learning began."""
        meter = self.trainer.meter
        if not self.recipe.update or meter.total("gradient_steps") or meter.total("trained_tokens"):
            return []
        return ["no optimizer step was made: the budget ended before learning began (a store's `least`, a warm-up)"]
