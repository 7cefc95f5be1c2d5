"""Guessing does not pay: pay-offs, the belief at which they switch, and the task that offers declining."""

import random
from types import SimpleNamespace

import pytest

from gainstage.auditing import audit_reward
from gainstage.chain import build_chain, build_task
from gainstage.evaluation import look
from gainstage.measure.evaluate import summarize
from gainstage.policies.snapshots import Models
from gainstage.recipe import check, load, phase_recipe
from gainstage.registry import RecipeError
from gainstage.reward.terms.decision_payoff import DecisionPayoff, Payoffs, break_even, decision_payoff
from gainstage.store.dataset import Dataset
from gainstage.trainer import Trainer
from gainstage.types import Problem, Verdict

PLAIN = Payoffs(correct=1.0, grounded=0.0, wrong=0.5, abstain=0.1)


def test_an_attempt_at_three_in_ten_pays_less_than_declining():
    expected = 0.3 * decision_payoff(PLAIN, True, False) + 0.7 * decision_payoff(PLAIN, False, False)
    assert expected == pytest.approx(-0.05) and decision_payoff(PLAIN, False, True) == pytest.approx(0.1)
    assert break_even(PLAIN) == pytest.approx(0.4)


@pytest.mark.parametrize("payoffs", [PLAIN, Payoffs(), Payoffs(2.0, 0.0, 1.0, -0.2), Payoffs(1.0, 0.0, 0.0, 0.0)])
def test_at_the_break_even_both_pay_the_same(payoffs):
    p = break_even(payoffs)
    attempt = p * decision_payoff(payoffs, True, False) + (1 - p) * decision_payoff(payoffs, False, False)
    assert attempt == pytest.approx(decision_payoff(payoffs, False, True))


def test_limits():
    assert break_even(Payoffs(1, 0, 0, 0)) == 0, "plain right or wrong: always attempt"
    assert break_even(Payoffs(1, 0, 0.5, 1)) == 1, "declining is worth as much as being right: never attempt"
    assert decision_payoff(Payoffs(), True, False, grounded=0.5) == pytest.approx(1.1)
    assert decision_payoff(Payoffs(), True, True, grounded=1.0) == pytest.approx(0.1), (
        "who declines is paid for nothing else"
    )
    with pytest.raises(ValueError, match="cost"):
        Payoffs(wrong=-1)
    with pytest.raises(ValueError, match="finite"):
        DecisionPayoff(correct=float("nan"))


def row(text, answer="7"):
    return SimpleNamespace(problem=Problem("p", "3+4=", answer), info={"completion": text}, parts={})


def test_the_component_pays_by_the_tasks_verdict():
    task = build_task({"arithmetic": {"abstain": "?"}}).it
    ctx = SimpleNamespace(task=task, judge=task.check)
    rows = [row("7=7"), row("8=8"), row("?"), row("?", None), row("")]
    assert DecisionPayoff().judge(rows, ctx) == pytest.approx([1.0, -0.5, 0.1, 0.1, -0.5])
    assert [r.parts["abstained"] for r in rows] == [0, 0, 1, 1, 0] and rows[0].parts["correct"] == 1
    grounded = SimpleNamespace(task=task, judge=lambda p, text: Verdict(1.0, {"grounded": 0.5}))
    assert DecisionPayoff().judge([row("x")], grounded) == pytest.approx([1.1])
    none = SimpleNamespace(task=task, judge=lambda p, text: Verdict(None))
    assert DecisionPayoff().judge([row("x")], none) == [None]


def test_a_task_that_cannot_be_declined_is_named():
    for task in ("arithmetic", "reverse"):
        it = build_task(task).it
        with pytest.raises(ValueError, match="declining looks like"):
            DecisionPayoff().judge([row("7")], SimpleNamespace(task=it, judge=it.check))


def test_unanswerable_problems_hide_a_digit_and_want_to_be_declined():
    task = build_task({"arithmetic": {"abstain": "?", "unanswerable": 0.3}}).it
    problems = [task.problems("train")[i] for i in range(600)]
    hidden = [p for p in problems if not p.meta.get("answerable", True)]
    assert 0.22 < len(hidden) / 600 < 0.38
    assert all(p.answer is None and p.prompt.count("?") == 1 for p in hidden)
    assert all("?" not in p.prompt and p.answer for p in problems if p not in hidden)
    rng = random.Random(0)
    assert all(task.demonstrate(p, rng) == "?" and task.check(p, "?").reward == 0 for p in hidden)
    chosen, rejected = task.preferences(hidden[0], rng)
    assert chosen == "?" and not task.abstains(rejected) and len(rejected) <= task.max_new
    assert task.abstains("?") and task.abstains("12=?") and not task.abstains("12=21")
    assert build_task("arithmetic").it.abstains("?") is None


def test_problems_that_look_the_same_once_a_digit_is_hidden_share_a_split():
    task = build_task({"arithmetic": {"abstain": "?", "unanswerable": 0.5, "levels": [2], "train_size": 3000}}).it
    train, held = ([p.prompt for p in task.problems(split)] for split in ("train", "test"))
    hidden = [text for text in held if text.count("?")]
    assert 0.35 < len(hidden) / len(held) < 0.65 and len(set(held)) == len(held)
    assert not set(held) & set(train)


def test_noisy_demonstrations_decline_the_wrong_problems_too():
    task = build_task({"arithmetic": {"abstain": "?", "unanswerable": 0.4}}).it
    problems = [task.problems("train")[i] for i in range(1500)]

    def declined(noise, answerable):
        mine = [p for p in problems if p.meta.get("answerable", True) == answerable]
        return sum(task.abstains(task.demonstrate(p, random.Random(i), noise)) for i, p in enumerate(mine)) / len(mine)

    assert declined(0.0, True) == 0 and declined(0.0, False) == 1
    assert declined(0.2, True) == pytest.approx(0.2, abs=0.04) and declined(0.2, False) == pytest.approx(0.8, abs=0.05)
    assert declined(1.0, True) == 1 and declined(1.0, False) == 0
    plain = build_task("arithmetic").it
    assert not any("?" in plain.demonstrate(plain.problems("train")[i], random.Random(i), 1.0) for i in range(50))


def shown(settings):
    """The answers that a data set of demonstrations shows, by whether the problem has an answer."""
    task = build_task({"arithmetic": {"abstain": "?", "unanswerable": 0.3}}).it
    store = Dataset(rows=200, **settings)
    store.start(SimpleNamespace(task=task, seed=0))
    return [(problem.meta.get("answerable", True), *answers) for problem, answers in store.examples]


def test_a_data_set_shows_demonstrations_as_noisy_as_asked():
    clean, noisy = shown({}), shown({"noise": 0.2})
    assert all((text == "?") == (not answerable) for answerable, text in clean)
    assert [a for a, _ in clean] == [a for a, _ in noisy] and noisy == shown({"noise": 0.2})
    wrong = sum((text == "?") == answerable for answerable, text in noisy) / len(noisy)
    assert wrong == pytest.approx(0.2, abs=0.07)
    with pytest.raises(RecipeError, match="noise must lie"):
        Dataset(noise=1.5)
    with pytest.raises(RecipeError, match="source: demonstrations"):
        Dataset("preferences", noise=0.1)


def test_the_recipe_begins_with_a_model_that_declines_without_much_care():
    """After the demonstrations both rewards have something to change: rightly, wrongly, and what is right at all."""
    trainer = Trainer(load("grpo_abstention", ["phases.reinforce=null", "evaluate.problems=1", "evaluate.samples=1"]))
    trainer.run()
    asked = [trainer.chain.task.it.problems("validation")[i] for i in range(96)]
    chain = build_chain(phase_recipe(load("grpo_abstention"), 1))
    numbers = summarize(look(chain, trainer.models, asked, 4, seed=0))
    assert 0.5 < numbers["abstention/unanswerable"] < 0.95 and 0.05 < numbers["abstention/answerable"] < 0.35
    attempted = 1 - numbers["abstention/answerable"]
    assert break_even(Payoffs()) < numbers["pass@1/answerable"] / attempted < 0.8, "attempting pays, and can be learnt"


def test_without_the_settings_the_problems_stay_what_they_were():
    plain, offered = (build_task({"arithmetic": settings}).it for settings in ({}, {"abstain": "?"}))
    assert [plain.problems("test")[i] for i in range(50)] == [offered.problems("test")[i] for i in range(50)]


@pytest.mark.parametrize(
    "settings",
    [{"abstain": "7"}, {"abstain": "a=b"}, {"abstain": " ?"}, {"unanswerable": 0.3},
     {"abstain": "?", "unanswerable": 2}],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ValueError, match=r"abstain|unanswerable"):
        build_task({"arithmetic": settings})


def test_it_trains_and_is_measured():
    task = "task={arithmetic: {abstain: '?', unanswerable: 0.5}}"
    recipe = load("grpo", [task, "reward=[decision_payoff]", "plan.groups=4", "iterations=1", "evaluate.problems=4"])
    trainer = Trainer(recipe)
    rows = []
    trainer.on_row = rows.append
    trainer.run()
    assert -0.5 <= rows[0]["reward/mean"] <= 1.2
    models = Models(recipe.models, ["policy"])
    asked = [trainer.chain.task.it.problems("validation")[i] for i in range(12)]
    numbers = summarize(look(trainer.chain, models, asked, 4, seed=0))
    assert {"abstention", "abstention/unanswerable", "pass@1/answerable"} <= set(numbers)


def test_the_reward_pays_nothing_undeserved():
    made = build_chain(check({"name": "a", "task": {"arithmetic": {"abstain": "?"}}, "rollout": ["generate"],
                              "reward": ["decision_payoff"]}))  # fmt: skip
    report = audit_reward(made, [made.task.it.problems("test")[i] for i in range(2)])
    declined = [f for f in report.findings if f.text.strip() != "?"]
    assert not declined and not report.unpaid
