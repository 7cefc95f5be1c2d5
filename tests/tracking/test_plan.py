"""The arithmetic printed at start counts as the loop does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gainstage.tracking import arithmetic
from gainstage.tracking.plan import episodes, evaluation


def test_prompts_times_samples_and_updates_a_batch():
    text = arithmetic({"groups": 16, "epochs": 2, "minibatch": 32, "tokens_per_microbatch": 4096}, 8, max_new=20)
    assert "16 prompts (plan.groups) x 8 answers each (samples) = 128 answers" in text
    assert (
        "each optimizer step sees 32 answers (plan.minibatch): 4 a pass; 2 passes (plan.epochs): 8 optimizer steps"
        in text
    )
    assert "up to 2,560 generated tokens" in text
    assert "at most 4,096 tokens at a time (plan.tokens_per_microbatch)" in text and "changes no result" in text
    assert "whole groups" not in text


def test_the_whole_batch_is_one_update():
    assert "sees the whole batch; 1 pass (plan.epochs): 1 optimizer step" in arithmetic({"groups": 4}, 2)


def test_a_short_last_minibatch_and_split_groups_are_said():
    text = arithmetic({"groups": 5, "minibatch": 16}, 8)
    assert "sees 16 answers (plan.minibatch, the last of 8): 3 a pass; 1 pass (plan.epochs): 3 optimizer steps" in text
    assert "does not hold whole groups of 8" in arithmetic({"groups": 4, "minibatch": 12}, 8)
    assert "sees 8 answers (plan.minibatch): 1 a pass" in arithmetic({"groups": 4, "minibatch": 100}, 2)


def test_refills_are_paid_for():
    assert "at most 512 answers are sampled and paid for" in arithmetic({"groups": 16, "refill": 4}, 8)


def test_other_units_and_stores():
    assert "sees 640 decisions (plan.minibatch); 2 passes" in arithmetic(
        {"groups": 8, "epochs": 2, "minibatch": 640, "unit": "step"}, 8
    )
    text = arithmetic({"groups": 0, "updates": 16, "minibatch": 256, "unit": "step"}, None)
    assert "16 draws from the store (plan.updates) of 256 decisions" in text and "nothing is sampled" in text
    assert "how many answers each is decided as it goes" in arithmetic({"groups": 8}, None)
    assert "each of the 3 learners" in arithmetic({"groups": 8}, 2, learners=3)


def test_a_plan_may_be_an_object():
    plan = SimpleNamespace(groups=2, refill=1, max_empty=20, epochs=1, minibatch=None, unit="row", updates=None)
    assert "= 6 answers" in arithmetic(plan, 3)


@pytest.mark.parametrize("wrong", [{"unit": "token"}, {"epochs": 0}, {"minibatch": -1}])
def test_wrong_plans_name_the_setting(wrong: dict):
    with pytest.raises(ValueError, match=f"plan.{next(iter(wrong))} must be"):
        arithmetic({"groups": 1, **wrong}, 1)


def look(**changes):
    given = {"problems": 128, "samples": 2, "every": 0.125, "temperature": 1.0, "final_problems": None}
    return SimpleNamespace(**given | {"final_samples": 16, "retain": []} | changes)


def test_what_evaluation_costs_counts_the_problems_that_there_are():
    text = evaluation(look(), iterations=100, answers=256, held_out=10)
    assert "10 held-out problems x 16" in text and "10 x 2 7 times" in text and "only 10 held-out" in text
    assert f"{10 * 2 * 7 + 2 * 160 + 20:,} answers" in text
    assert evaluation(look(), iterations=100, held_out=500) == evaluation(look(), iterations=100)


def test_what_evaluation_costs_beside_training():
    text = evaluation(look(), iterations=100, answers=256)
    assert "128 held-out problems x 16 answers at both ends, one greedy answer to each, 128 x 2 7 times on" in text
    total = 128 * (2 * 16 + 7 * 2 + 2)
    assert f"{total:,} answers, {100 * total / 25600:.0f} % of the 25,600 that training samples" in text
    assert "costs more" not in text
    assert "one greedy answer" in text and "greedy" not in evaluation(look(temperature=0.0))
    assert f"{total + 2 * 128:,} answers" in evaluation(look(retain=["countdown"]))


def test_the_tighter_of_iterations_and_budget_decides():
    text = evaluation(look(), iterations=100, answers=256, tokens=8000, max_new=12)
    assert "6,144 answers, 9.2 times the tokens that training may generate, at full length" in text
    assert "evaluation costs more than training: lower evaluate.problems" in text
    assert "24 % of the 25,600" in evaluation(look(), iterations=100, answers=256, tokens=1e9, max_new=12)


def test_short_runs_are_looked_at_once_an_iteration_at_most():
    assert "128 x 2 once on the way" in evaluation(look(), iterations=2, answers=256)
    assert "on the way" not in evaluation(look(every=1.0)) and "%" not in evaluation(look(every=1.0))


@pytest.mark.parametrize(("every", "looks"), [(0.1, 9), (0.125, 7), (0.3, 3)])
def test_looks_are_counted_as_the_run_makes_them(every: float, looks: int):
    assert f"x 2 {looks} times on the way" in evaluation(look(every=every))


def test_steps_of_copies_are_counted():
    text = arithmetic({"groups": 16, "epochs": 4, "minibatch": 256, "unit": "step"}, None, stepped=(8, 128))
    assert "8 copies x 128 steps = 1,024 environment steps an iteration" in text
    assert "minibatches of 256 decisions (plan.minibatch, plan.unit): 4 a pass, 4 passes" in text
    assert "16 optimizer steps" in text and "prompts" not in text
    text = arithmetic({"epochs": 2, "minibatch": 3, "unit": "row"}, None, stepped=(8, 64))
    assert "minibatches of 3 rows (plan.minibatch, plan.unit, the last of 2): 3 a pass, 2 passes" in text
    assert "1 copy x 2,048 steps" in arithmetic({}, None, stepped=(1, 2048))
    text = arithmetic({"updates": 50, "minibatch": 256, "unit": "step"}, None, stepped=(1, 50), draws=True)
    assert "50 environment steps" in text and "50 draws from the store (plan.updates) of 256 decisions" in text


def test_looks_at_environments_are_counted_in_episodes():
    settings = SimpleNamespace(problems=20, samples=1, final_problems=None, final_samples=None, every=0.25,
                               temperature=0.0, retain=[])  # fmt: skip
    text = episodes(settings)
    assert "100 episodes from held-out starts, with the likeliest action" in text
    assert "20 at both ends, 20 3 times on the way" in text and "answers" not in text and "only" not in text
    assert "only 5 held-out starts" in episodes(settings, held_out=5)
