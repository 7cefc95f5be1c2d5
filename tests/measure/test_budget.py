import json
import math

import pytest

from gainstage.measure.budget import AXES, Budget, Meter, causal_lm_flops


def test_charges_add_up_and_stay_with_their_component():
    meter = Meter()
    meter.charge("generated_tokens", 100, by="rollout.single_turn")
    with meter.booking("select.vade"):
        meter.charge("generated_tokens", 20)
        meter.charge("scored_tokens", 5, by="credit.reference")
    meter.charge("generated_tokens", 3)
    assert meter.total("generated_tokens") == 123
    assert meter.snapshot().keys() == AXES.keys()
    assert meter.snapshot()["scored_tokens"] == 5
    assert meter.by_component() == {
        "rollout.single_turn": {"generated_tokens": 100},
        "select.vade": {"generated_tokens": 20},
        "credit.reference": {"scored_tokens": 5},
        "": {"generated_tokens": 3},
    }
    assert meter.metrics() == {"budget/generated_tokens": 123, "budget/scored_tokens": 5}


def test_evaluation_has_its_own_account():
    meter = Meter()
    meter.charge("seconds", 1)
    with meter.account("evaluation"):
        meter.charge("seconds", 9)
        meter.charge("generated_tokens", 7, by="policy")
    meter.charge("seconds", 1)
    assert meter.total("seconds") == 2 and meter.total("generated_tokens") == 0
    assert meter.total("seconds", "evaluation") == 9
    assert meter.by_component("evaluation") == {"": {"seconds": 9}, "policy": {"generated_tokens": 7}}


def test_an_exception_ends_the_account():
    meter = Meter()
    with pytest.raises(KeyError), meter.account("evaluation"), meter.booking("x"):
        raise KeyError
    meter.charge("answers", 1)
    assert meter.by_component() == {"": {"answers": 1}}


def test_state_survives_json():
    meter = Meter()
    meter.charge("flops", 1.5e15, by="update.policy")
    with meter.account("evaluation"):
        meter.charge("answers", 2)
    other = Meter()
    other.charge("answers", 99)
    other.load_state_dict(json.loads(json.dumps(meter.state_dict())))
    assert other.state_dict() == meter.state_dict()
    with pytest.raises(ValueError, match="no axis"):
        other.load_state_dict({"accounts": {"": {"tokens_generated": {"": 1}}}})


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf])
def test_refuses_amounts_that_are_none(amount):
    with pytest.raises(ValueError, match="generated_tokens"):
        Meter().charge("generated_tokens", amount)


def test_unknown_axis_names_the_near_match():
    with pytest.raises(ValueError, match="'generated_tokens'"):
        Meter().charge("generate_tokens", 1)
    with pytest.raises(ValueError, match="'env_steps'"):
        Budget(env_step=3)
    with pytest.raises(ValueError, match="did you mean 'generated_tokens'"):
        Budget(tokens=3)


def test_budget_spends_until_its_first_limit():
    budget, meter = Budget(generated_tokens=100, seconds=10), Meter()
    assert budget.spent(meter) == 0 and not budget.exhausted(meter)
    meter.charge("generated_tokens", 30)
    meter.charge("seconds", 5)
    assert budget.spent(meter) == 0.5 and budget.binding(meter) is None
    meter.charge("generated_tokens", 100)
    assert budget.spent(meter) == 1.0 and budget.exhausted(meter) and budget.binding(meter) == "generated_tokens"
    assert Budget().spent(meter) == 0.0 and not Budget().exhausted(meter) and not Budget()


def test_budget_from_the_command_line():
    assert Budget.parse("generated_tokens=2e6") == Budget(generated_tokens=2_000_000)
    assert Budget.parse(["generated_tokens=2M, seconds=90", "judge_calls=1.5k"]).limits == {
        "generated_tokens": 2e6,
        "seconds": 90,
        "judge_calls": 1500,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("generated_tokens", "axis=number"),
        ("generated_tokens=many", "not a number"),
        ("generated_tokens=", "not a number"),
        ("tokens=5", "no axis"),
        ("seconds=0", "positive"),
        ("seconds=-3", "positive"),
        ("seconds=nan", "positive"),
        ("seconds=1,seconds=2", "twice"),
    ],
)
def test_wrong_budgets_say_what_is_wrong(text, message):
    with pytest.raises(ValueError, match=message):
        Budget.parse(text)


def test_flops_of_a_causal_model():
    assert causal_lm_flops(1e6, 10) == 2e7
    assert causal_lm_flops(1e6, 10, training=True) == 6e7
    assert causal_lm_flops(0, 1, layers=2, hidden=8, context=4) == 4 * 2 * 8 * 4
