"""Budgets that nothing would ever be charged to: refused before the run, or found while it runs."""

from __future__ import annotations

import pytest

from gainstage import schedule
from gainstage.chain import build_chain
from gainstage.measure.budget import AXES, Meter
from gainstage.recipe import check, load
from gainstage.registry import RecipeError, component
from gainstage.schedule import NeverEnds, Schedule
from gainstage.spending import axes
from gainstage.trainer import RunError, Trainer

TINY = ["plan.groups=2", "plan.minibatch=16", "evaluate.problems=4", "evaluate.samples=1"]


@component("credit", "spends_what_it_likes", needs=("reward",), writes=("advantage",))
def spends_what_it_likes(batch):
    return {"advantage": batch["reward"]}


@pytest.mark.parametrize("name", ["grpo", "ppo_lm", "sft", "dpo", "opd", "remax", "grpo_rooms"])
def test_a_run_is_charged_on_no_axis_but_those_foretold(name: str) -> None:
    small = [*TINY, "iterations=1"]
    recipe = load(name, small)
    if recipe.phases:
        data = recipe.model_dump()
        for phase in data["phases"]:
            phase |= {"iterations": 1, "plan": {"groups": 2}}
        recipe = check(data)
    trainer = Trainer(recipe)
    trainer.run()
    charged = {axis for axis, amount in trainer.meter.snapshot().items() if amount}
    foretold = set().union(*(axes(chain) for chain in trainer.chains.values()))
    assert charged <= foretold
    assert foretold - charged <= {"judge_calls", "verifier_calls"}


@pytest.mark.parametrize("name", ["sft", "dpo"])
@pytest.mark.parametrize("iterations", ["null", "5"])
def test_a_recipe_that_samples_nothing_refuses_a_budget_of_generated_tokens(name: str, iterations: str) -> None:
    with pytest.raises(RecipeError, match=r"spends no generated_tokens.*trained_tokens, gradient_steps"):
        Trainer(load(name, ["budget.generated_tokens=1000", f"iterations={iterations}"]))


def test_one_axis_that_can_be_spent_is_enough() -> None:
    trainer = Trainer(
        load(
            "sft",
            [
                "budget={generated_tokens: 1000, gradient_steps: 3}",
                "iterations=null",
                "plan.updates=1",
                "plan.minibatch=2",
            ],
        )
    )
    trainer.run()
    assert trainer.iteration == 3


def test_a_phase_s_budget_is_held_against_that_phase() -> None:
    data = load("opd").model_dump()
    data["phases"] = [
        {"name": "fit", "store": {"dataset": {"rows": 8}}, "budget": {"generated_tokens": 10}, "credit": [],
         "update": [{"policy": {"objectives": ["likelihood"]}}]},
        *data["phases"],
    ]  # fmt: skip
    with pytest.raises(RecipeError, match=r"phases\.fit\.budget.*spends no generated_tokens"):
        Trainer(check(data))


def test_a_component_from_elsewhere_may_spend_anything() -> None:
    chain = build_chain(
        load("grpo", ["credit=[spends_what_it_likes, broadcast]", "update.policy.objectives=[clipped]"])
    )
    assert axes(chain) == set(AXES)


def test_a_budget_that_stands_still_is_found_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "IDLE", 2)
    trainer = Trainer(
        load(
            "grpo",
            [*TINY, "iterations=null", "budget.labels=10", "credit=[spends_what_it_likes, broadcast]",
             "update.policy.objectives=[clipped]"],
        )
    )  # fmt: skip
    with pytest.raises(RunError, match=r"spent nothing of the budget \(labels\).*generated_tokens"):
        trainer.run()
    assert trainer.iteration == 3


def plain(**keys) -> tuple[Schedule, Meter]:
    meter = Meter()
    return Schedule(check({"name": "r", **keys}), meter, lambda name: 1.0), meter


def test_standing_still_counts_in_a_row_survives_resume_and_spares_counted_runs() -> None:
    watched, meter = plain(iterations=None, budget={"labels": 1000})
    for number in range(5 * schedule.IDLE):
        if number % (schedule.IDLE - 1) == 0:
            meter.charge("labels", 1)
        watched.advance()
    watched, meter = plain(iterations=None, budget={"labels": 1000})
    meter.charge("labels", 1)
    for _ in range(schedule.IDLE):
        watched.advance()
    resumed, _ = plain(iterations=None, budget={"labels": 1000})
    resumed.meter = meter
    resumed.load_state_dict(watched.state_dict())
    with pytest.raises(NeverEnds):
        resumed.advance()
    counted, _ = plain(iterations=100, budget={"labels": 1000})
    for _ in range(100):
        counted.advance()
    assert counted.finished


def test_phases_that_the_budget_never_reached_are_named() -> None:
    phases = [{"name": "teach", "iterations": 5}, {"name": "distil", "iterations": 5}]
    made, meter = plain(phases=phases, budget={"labels": 10})
    made.advance()
    assert not made.unreached
    meter.charge("labels", 10)
    assert made.finished and made.unreached == ["distil"]
    done, _ = plain(phases=phases)
    for _ in range(10):
        done.advance()
    assert done.over and not done.unreached


def test_compare_says_which_arm_cannot_spend_the_budget_and_what_all_can(tmp_path) -> None:
    from gainstage.cli.arms import plan_runs

    with pytest.raises(RecipeError, match=r"arm 'sft' spends no generated_tokens.*--budget trained_tokens=80k"):
        plan_runs(["grpo", "sft"], range(1), ["budget.generated_tokens=80000"], tmp_path, [], 1)
    assert len(plan_runs(["grpo", "sft"], range(1), ["budget.trained_tokens=80000"], tmp_path, [], 1)) == 2


def test_the_budget_ends_the_arms_of_a_comparison_not_their_iterations(tmp_path) -> None:
    from gainstage.cli.arms import plan_runs

    budget = "budget.generated_tokens=1e9"
    for job, iterations in zip(
        plan_runs(["grpo", "grpo,iterations=7", "opd"], range(1), [budget], tmp_path, [], 1),
        (None, 7, 100),
        strict=True,
    ):
        assert load(job.recipe, job.overrides).iterations == iterations
