"""The loop, in two halves that meet in the store: `collect()` and `learn()`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gainstage import collecting, judging, state
from gainstage.chain import Chain, Part, build_chain
from gainstage.measure.budget import Meter
from gainstage.ops.leaving import said, staying
from gainstage.ops.noise import mix
from gainstage.ops.seeding import aside, stream
from gainstage.policies.snapshots import Models
from gainstage.recipe import Recipe, phase_recipe
from gainstage.registry import RecipeError
from gainstage.schedule import NeverEnds, Schedule
from gainstage.spending import check_budget
from gainstage.tracking.numbers import Log
from gainstage.types import Batch, Ctx, Problem, Trajectory, Verdict
from gainstage.update.learner import NonFinite, optimise


class RunError(RuntimeError):
    """A run cannot go on; the message names the cause and the setting to change."""


class Trainer:
    """Runs a recipe. Everything that changes is in `state_dict`; a run goes on from there bit for bit.

    Args:
        recipe: what to run.
        on_row: receives each iteration's numbers.
        on_batch: receives each iteration's batch once its credit stands.
        on_mark: called between iterations after every one (evaluation, checkpoints); returns numbers for the row.
        folder: where the run is written, asked when a phase is entered; None = nowhere.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        device: str = "cpu",
        on_row: Callable[[dict[str, float]], None] = lambda row: None,
        on_batch: Callable[[int, Batch], None] = lambda iteration, batch: None,
        on_mark: Callable[[Trainer], Mapping[str, float]] = lambda trainer: {},
        folder: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self.recipe, self.on_row, self.on_batch, self.on_mark = recipe, on_row, on_batch, on_mark
        self.folder = folder
        self.meter = Meter()
        self.schedule = Schedule(recipe, self.meter, self._epoch)
        recipes = [phase_recipe(recipe, index) for index in range(len(self.schedule.phases))]
        self.chains = {name: build_chain(r) for name, r in zip(self.schedule.phases, recipes, strict=True)}
        check_budget(recipe, self.chains)
        used = [role for chain in self.chains.values() for role in chain.used]
        trained = [role for chain in self.chains.values() for role in chain.trained]
        specs = {k: v for r in recipes for k, v in r.models.items()}
        with stream(recipe.seed, "models"):
            self.models = Models(
                specs, used, trained, self.meter, device, recipe.seed, list(self.chains.values())[-1].task.it
            )
        self._check_rows()
        self.iteration, self.empty = 0, 0
        self.entered: list[str] = []
        self.artifacts: dict[str, Any] = {}
        self.due: dict[str, int] = {}
        self.lr_scale: dict[str, float] = {}
        self.log, self.calls = Log(), dict[str, int]()
        self.groups = 0
        self.stop_requested = False
        self.ctx = self._context(next(iter(self.chains.values())))

    def _check_rows(self) -> None:
        """Raises RecipeError: rows of a role that remembers would be cut into single decisions."""
        for chain in self.chains.values():
            plan = chain.recipe.plan
            if not (chain.simulates and plan.unit == "step" and plan.minibatch):
                continue
            for role in chain.used:
                if not getattr(self.models[role.split(".")[0]], "markov", True):
                    raise RecipeError(
                        "plan.unit=step cuts rows into single decisions, "
                        f"but models.{role} remembers what came before; "
                        "set plan.unit=row and plan.minibatch to a number of rows (copies)"
                    )

    # -- schedule -----------------------------------------------------------------------------------------------------

    @property
    def chain(self) -> Chain:
        """The components of the present phase."""
        return self.chains[self.schedule.name]

    @property
    def last_chain(self) -> Chain:
        """The components of the last phase, whose task the run is judged by."""
        return list(self.chains.values())[-1]

    @property
    def finished(self) -> bool:
        return self.schedule.finished

    @property
    def progress(self) -> float:
        """Share of the run that is done, in [0, 1]."""
        return self.schedule.progress

    def _epoch(self, name: str) -> float:
        chain = self.chains[name]
        if chain.simulates:
            raise RecipeError(f"phases.{name}: a simulator has no epochs; set iterations or a budget of env_steps")
        return len(chain.task.it.problems("train")) / chain.recipe.plan.groups

    def enter(self) -> None:
        """Start the present phase: once per phase name, not again on resume."""
        name = self.schedule.name
        self.ctx = self._context(self.chain)
        if name in self.entered:
            return
        self.models.event(f"phase:{name}")
        for part in self.chain:
            if part.has("start"):
                self._call(part, "start", self.ctx)
        self.entered.append(name)

    def run(self) -> None:
        """Run to the end of the schedule or the budget, or of the iteration in which a stop was asked for."""
        if not self.finished:
            self.enter()
        while not self.finished and not self.stop_requested:
            row = self.iterate()
            try:
                begins = self.schedule.advance()
            except NeverEnds as error:
                raise RunError(str(error)) from error
            if begins == "round":
                self.models.event("round")
            if begins:
                self.enter()
            row["progress"] = self.progress
            row.update(self.on_mark(self))
            self.on_row(row)

    def slow(self, role: str, factor: float) -> None:
        """Multiply the learning rate of everything that trains a role by `factor`, for the rest of the run."""
        self.lr_scale[role] = self.lr_scale.get(role, 1.0) * factor

    # -- one iteration ------------------------------------------------------------------------------------------------

    def iterate(self) -> dict[str, float]:
        """One iteration: experience, then learning."""
        with aside():
            return self._iterate()

    def _iterate(self) -> dict[str, float]:
        started = time.perf_counter()
        self.calls.clear()
        self.groups = 0
        self.ctx.iteration, self.ctx.progress = self.iteration, self.progress
        if self.chain.rollout:
            self.ctx.fresh = self.collect()
        collected = time.perf_counter()
        if self.chain.update or self.chain.credit:
            self.learn()
        self.models.event("iteration")
        self.iteration += 1
        ended = time.perf_counter()
        self.meter.charge("seconds", ended - started)
        times = {"time/collect": collected - started, "time/learn": ended - collected}
        return {"iteration": float(self.iteration), **self.log.drain(), **self.meter.metrics(), **times}

    def collect(self) -> Sequence[Trajectory] | Batch:
        """Experience of one iteration, judged, filtered and put into the store."""
        try:
            return collecting.collect(self)
        except collecting.Barren as error:
            raise RunError(str(error)) from error

    def learn(self) -> None:
        """Credit, then optimizer steps, on what the store hands out."""
        chain, ctx, plan = self.chain, self.ctx, self.chain.recipe.plan
        self._fit("before_update")
        for number, batch in enumerate(chain.store.it.rounds(plan, ctx)):
            for part in chain.select:
                if part.has("relabel"):
                    batch = self._call(part, "relabel", batch, ctx)
            judging.shape(chain, batch, ctx, self._call)
            for part in chain.credit:
                hook = "estimate" if part.has("estimate") else "assign"
                with torch.no_grad():
                    found = self._call(part, hook, *((batch, ctx) if hook == "estimate" else (batch,)))
                for column, value in found.items():
                    batch[column] = value
                if part.has("statistics"):
                    for name, value in part.it.statistics(batch).items():
                        self.log(name, value)
            if number == 0:
                self.on_batch(self.iteration, batch)
            for part in chain.update:
                if part.has("solve"):
                    self._step(part, "solve", batch, partial(part.it.solve, batch, ctx))
            for minibatch in self._split(batch, plan, number):
                self._update(minibatch)
        self._fit("after_update")

    def _update(self, minibatch: Batch) -> None:
        limit = self.chain.recipe.plan.tokens_per_microbatch
        for part in self.chain.update:
            if part.has("loss"):
                self._step(part, "loss", minibatch, partial(optimise, part.it, minibatch, self.ctx, limit))
            elif part.has("see"):
                self._call(part, "see", minibatch, self.ctx)
        self.models.event("step")
        for part in self.chain.select:
            if part.has("feedback"):
                self._call(part, "feedback", minibatch, self.ctx)

    def _step(self, part: Part, hook: str, batch: Batch, take: Callable[[], dict[str, float]]) -> None:
        """A step of one learner where it is due; its numbers go to the log."""
        self.due[part.key] = self.due.get(part.key, 0) + 1
        if self.due[part.key] % part.it.every:
            return
        try:
            numbers = self._within(part, hook, take)
        except NonFinite as error:
            self.failed_batch = batch
            advice = f"Lower update.{part.name}.lr, set update.{part.name}.clip, or look" if hook == "loss" else "Look"
            raise RunError(
                f"iteration {self.iteration}, {part.key}: {error}. No weight was changed. "
                f"{advice} at the saved batch for the row that causes it"
            ) from error
        for name, value in numbers.items():
            self.log(name if part.name == "policy" else f"{part.name}/{name}", value)
        self.models.event(f"update.{part.name}")

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _split(self, batch: Batch, plan: Any, number: int) -> Iterator[Batch]:
        """Epochs of shuffled minibatches; a draw from a replay or data set is one minibatch."""
        if getattr(self.chain.store.it, "draws", False):
            yield batch
            return
        if plan.unit == "step" and plan.minibatch:
            batch = batch.flatten()
        for epoch in range(plan.epochs):
            if plan.minibatch is None or plan.minibatch >= batch.rows:
                yield batch
                continue
            generator = torch.Generator().manual_seed(mix(self.recipe.seed, self.iteration, "split", number, epoch))
            order = torch.randperm(batch.rows, generator=generator)
            for start in range(0, batch.rows, plan.minibatch):
                yield batch.take(order[start : start + plan.minibatch])

    def _fit(self, when: str) -> None:
        for part in self.chain:
            if part.has("fit") and getattr(part.it, "fit_at", "after_update") == when:
                self._call(part, "fit", self.ctx)

    def _call(self, part: Part, hook: str, *args: Any) -> Any:
        return self._within(part, hook, getattr(part.it, hook), *args)

    def _within(self, part: Part, hook: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a hook inside its own random stream, its costs booked to the component."""
        key = f"{part.key}.{hook}"
        number = self.calls[key] = self.calls.get(key, -1) + 1
        place = self.iteration if hook != "start" else -1 - self.schedule.place
        with stream(self.recipe.seed, place, key, number), self.meter.booking(part.key), staying():
            try:
                return function(*args)
            except SystemExit as error:
                raise RunError(f"{part.key}.{hook}: {said(error)}") from error

    def _context(self, chain: Chain) -> Ctx:
        def new_group() -> int:
            self.groups += 1
            return self.groups - 1

        def judge(problem: Problem, text: str) -> Verdict:
            self.meter.charge("verifier_calls", 1)
            return chain.task.it.check(problem, text)

        seed = self.recipe.seed
        return Ctx(
            models=self.models, task=chain.task.it, store=chain.store.it, meter=self.meter, seed=seed,
            artifacts=self.artifacts, lr_scale=self.lr_scale, log=self.log, new_group=new_group, judge=judge,
            device=self.models.device, folder=self.folder(),
            key=lambda group, sample: mix(seed, self.iteration, group, sample), choose=collecting.chooser(self),
        )  # fmt: skip

    # -- state --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights: place in the schedule, spending, state of every component entered so far."""
        return state.collect(self)

    def load_state_dict(self, saved: Mapping[str, Any], weights: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Go on from a saved state. Components are started first, so that there is something to load into."""
        self.artifacts.update(saved["artifacts"])  # what a phase finds when it starts
        for place, (_, name) in enumerate(self.schedule.order):
            if name in saved["entered"] and name not in self.entered:
                self.schedule.place = place
                self.enter()
        state.restore(self, saved, weights)
        self.ctx = self._context(self.chain)
