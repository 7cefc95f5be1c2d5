"""Every recipe of the catalogue: it builds, trains two iterations, and reads and writes what it declares."""

from __future__ import annotations

import pytest
import torch

from gainstage.chain import build_chain
from gainstage.recipe import catalog, load, phase_recipe
from gainstage.trainer import Trainer
from gainstage.types import Batch

SMALL = ["iterations=2", "evaluate.problems=4", "evaluate.samples=1"]


def small(name: str, *overrides: str):
    """A recipe of the catalogue in seconds: few groups, short phases."""
    recipe = load(name, [*SMALL, *overrides])
    data = recipe.model_dump()
    data["plan"] |= {"groups": min(recipe.plan.groups, 4), "updates": min(recipe.plan.updates, 2)}
    if data["plan"]["minibatch"]:
        data["plan"]["minibatch"] = 2 if "control" in recipe.tags and recipe.plan.unit == "row" else 16
    for entry in data["rollout"]:
        if isinstance(entry, dict) and "env_steps" in entry:
            entry["env_steps"]["steps"] = min(entry["env_steps"].get("steps", 128), 64)
    if isinstance(data["store"], dict) and "least" in (stored := next(iter(data["store"].values()))):
        stored["least"] = min(stored["least"], 16)
    for phase in data["phases"]:
        phase["iterations"] = 2
        phase["plan"] = {"groups": 4}
    from gainstage.recipe import check

    return check(data)


@pytest.mark.parametrize("name", sorted(catalog()))
def test_recipe_trains(name: str) -> None:
    recipe = small(name)
    rows: list[dict[str, float]] = []
    trainer = Trainer(recipe, on_row=rows.append)
    before = {key: value.clone() for key, value in trainer.models["policy"].module.state_dict().items()}
    trainer.run()
    assert len(rows) == (4 if recipe.phases else 2)
    assert all(torch.isfinite(value).all() for value in trainer.models["policy"].module.state_dict().values())
    after = trainer.models["policy"].module.state_dict()
    if any("loss" in row and row.get("grad/norm", 0) > 0 for row in rows):
        assert any(not torch.equal(before[key], after[key]) for key in before)
    assert trainer.meter.total("gradient_steps") > 0 or all(row.get("skipped") for row in rows if "skipped" in row)


class TracedColumns(dict):
    """A batch's columns that remember what is read and written."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.read, self.written = set(), set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        if key in self:
            self.read.add(key)
        return super().get(key, default)

    def __setitem__(self, key, value):
        self.written.add(key)
        super().__setitem__(key, value)


def declared_reads(part) -> set[str]:
    return {name.rstrip("?") for name in part.declares("needs")}


def declared_writes(part) -> set[str]:
    return {name.rstrip("?") for name in part.declares("writes")}


SCORED = {"tokens", "temperature", "author", "obs", "actions", "next_obs", "cut", "start", "state0"}
"""What a policy that is asked about a batch reads by itself."""


@pytest.mark.parametrize("name", sorted(catalog()))
def test_credit_reads_and_writes_what_it_declares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One traced iteration: no credit entry touches a column that it does not declare."""
    recipe = small(name, "seed=1")
    trainer = Trainer(recipe)
    original = Trainer._call
    faults: list[str] = []

    def call(self, part, hook, *args):
        if part.stage != "credit" or hook not in ("assign", "estimate"):
            return original(self, part, hook, *args)
        batch: Batch = args[0]
        batch.columns = TracedColumns(batch.columns)
        found = original(self, part, hook, *args)
        traced: TracedColumns = batch.columns
        extra = traced.read - declared_reads(part) - declared_writes(part) - {"author", "greedy", "mask"}
        if hook == "estimate":
            extra -= SCORED
        if extra:
            faults.append(f"{part.key} reads {sorted(extra)}")
        if unknown := set(found) - declared_writes(part):
            faults.append(f"{part.key} writes {sorted(unknown)}")
        if traced.written - declared_writes(part):
            faults.append(f"{part.key} writes {sorted(traced.written)} on its own")
        batch.columns = dict(traced)
        return found

    monkeypatch.setattr(Trainer, "_call", call)
    trainer.run()
    assert not faults


@pytest.mark.parametrize("name", sorted(catalog()))
def test_recipe_names_its_paper_and_builds(name: str) -> None:
    recipe = load(name)
    assert recipe.title and recipe.claim and recipe.paper and recipe.tags
    for index in range(max(len(recipe.phases), 1)):
        chain = build_chain(phase_recipe(recipe, index))
        assert chain.used
