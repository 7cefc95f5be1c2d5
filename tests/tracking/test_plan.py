"""The arithmetic printed at start counts as the loop does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gainstage.tracking import arithmetic


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
