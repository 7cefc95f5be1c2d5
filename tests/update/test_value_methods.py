"""Methods of the value family as whole recipes: worlds that each must solve, restarts bit for bit, clear refusals."""

import copy

import pytest
import torch

from gainstage.episodes import play
from gainstage.recipe import load
from gainstage.registry import RecipeError
from gainstage.trainer import Trainer

METHODS = (
    "dqn", "double_dqn", "dueling_dqn", "prioritized_dqn", "n_step_dqn", "noisy_dqn", "c51", "qr_dqn", "rainbow",
    "log_dqn", "log_lin_dqn", "ensemble_c51",
)  # fmt: skip
QUICK = (
    "evaluate.problems=1", "store.replay.least=200", "store.replay.capacity=4000", "iterations=null",
    "budget.env_steps=1600", "task.identity.max_steps=4", "rollout.env_steps.steps=4", "plan.updates=8",
)  # fmt: skip


def score(trainer, count=30):
    """Mean reward a step of greedy episodes."""
    task = trainer.chain.task.it
    records = play(task, trainer.models["policy"], task.problems("test")[:count], 1, explore=False)
    answers = [answer for record in records for answer in record.answers]
    return sum(a.reward for a in answers) / sum(a.length for a in answers)


@pytest.mark.parametrize("name", METHODS)
def test_identity_is_solved(name):
    """Answer what is shown: the best mean reward is 1, chance a third."""
    group = ("models.policy.high=4", "update.ensemble_td.lr=2e-3", "plan.updates=10", "rollout.env_steps.steps=8")
    more = group if name == "ensemble_c51" else ()
    trainer = Trainer(load(name, ["task=identity", *QUICK, *more]))
    trainer.run()
    assert score(trainer) > 0.97


def run(name, iterations, *overrides):
    small = (
        "store.replay.least=40", "store.replay.capacity=90", "evaluate.problems=1", "rollout.env_steps.steps=3",
        "plan.updates=4",
    )  # fmt: skip
    return Trainer(load(name, [f"iterations={iterations}", "budget={}", *small, *overrides]))


@pytest.mark.parametrize("name", ["dqn", "prioritized_dqn", "rainbow", "log_lin_dqn", "ensemble_c51"])
@pytest.mark.parametrize("cut", [1, 7])
def test_a_restart_ends_with_the_same_weights(name, cut):
    """Ring (which turns over), tree, noise, target and optimizer: all go on bit for bit."""
    straight = run(name, 10, "task=cart_pole")
    straight.run()
    broken = run(name, 10, "task=cart_pole")
    broken.enter()
    for _ in range(cut):
        broken.iterate()
        broken.schedule.advance()
    saved = copy.deepcopy((broken.state_dict(), broken.models.state_dict()))
    again = run(name, 10, "task=cart_pole")
    again.load_state_dict(*saved)
    again.run()
    for role in ("policy", "policy_target"):
        one, other = (t.models[role].module.state_dict() for t in (straight, again))
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert straight.meter.total("gradient_steps") == again.meter.total("gradient_steps") > 0
    ends = [t.chain.store.it for t in (straight, again)]
    assert all(torch.equal(ends[0].columns[k], ends[1].columns[k]) for k in ends[0].columns)


def test_priorities_of_one_power_0_are_uniform_and_change_no_weight():
    """alpha 0: every transition alike, and every weight 1."""
    trainer = run("prioritized_dqn", 6, "task=cart_pole", "select.prioritized.alpha=0")
    seen = []
    trainer.on_batch = lambda iteration, batch: seen.append(batch["weight_draw"])
    trainer.run()
    assert seen and all(torch.equal(weight, torch.ones_like(weight)) for weight in seen)


def test_members_that_learn_apart_are_not_moved_by_one_another():
    """Without the group in the targets, other weights of the last member change nothing of the first four."""

    def trained(disturb):
        trainer = run("ensemble_c51", 8, "task=cart_pole", "credit.ensemble_target.mix=0")
        trainer.enter()
        if disturb:
            for role in ("policy", "policy_target"):
                for weight in trainer.models[role].module.nets.parameters():
                    weight.data[4] += 0.5
        for _ in range(8):
            trainer.iterate()
        return list(trainer.models["policy"].module.nets.parameters())

    for one, other in zip(trained(False), trained(True), strict=True):
        assert torch.equal(one[:4], other[:4]) and not torch.equal(one[4], other[4])


def test_what_does_not_fit_is_told_when_the_run_is_made():
    for name in METHODS:
        with pytest.raises(RecipeError, match=r"sac, td3, ppo"):
            Trainer(load(name, ["task=pendulum"]))
    with pytest.raises(RecipeError, match="more than the ring holds"):
        Trainer(load("dqn", ["store.replay.capacity=10"]))
    with pytest.raises(RecipeError, match=r"store\.replay\.gamma=0\.9"):
        Trainer(load("n_step_dqn", ["credit.q_target.gamma=0.9"])).run()
    with pytest.raises(RecipeError, match="multiple of members"):
        Trainer(load("ensemble_c51", ["rollout.env_steps.copies=4"])).run()
    with pytest.raises(RecipeError, match="n_step=1"):
        Trainer(load("log_dqn", ["store.replay.n_step=3"])).run()
    with pytest.raises(RecipeError, match="store: replay"):
        Trainer(load("prioritized_dqn", ["store=on_policy"])).run()
