"""Trust-region steps: the worked bandit, what is refused, and the recipes that take them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gainstage.credit.returns.gae import gae
from gainstage.credit.returns.old_rollouts import truncated
from gainstage.ops.distributions import held
from gainstage.policies.control.actor_critic import ActorCritic
from gainstage.recipe import load
from gainstage.registry import RecipeError, build
from gainstage.trainer import RunError, Trainer
from gainstage.types import Batch
from gainstage.update.optimizers.natural_gradient import NaturalGradient, Trust, natural_step

ADVANTAGES = torch.tensor([1.0, 0.0, -1.0])
PLAIN = Trust(damping=0.0)


def bandit(theta: nn.Parameter):
    old = torch.log_softmax(theta.detach().clone(), 0)

    def surrogate() -> torch.Tensor:
        return (torch.softmax(theta, 0) * ADVANTAGES).sum()

    def kl() -> torch.Tensor:
        return (old.exp() * (old - torch.log_softmax(theta, 0))).sum()

    return surrogate, kl


def test_a_softmax_bandit_by_hand():
    """g = [1/3, 0, -1/3], F^+ g = [1, 0, -1], x F x = 2/3, factor sqrt(.02 / (2/3))."""
    theta = nn.Parameter(torch.zeros(3))
    taken = natural_step([theta], *bandit(theta), PLAIN)
    assert taken.accepted and taken.length == 1.0 and taken.kl == pytest.approx(0.0099751, abs=1e-6)
    assert theta.tolist() == pytest.approx([0.173205, 0.0, -0.173205], abs=1e-5)
    assert torch.softmax(theta, 0).tolist() == pytest.approx([0.392436, 0.330025, 0.277539], abs=1e-5)


def test_a_step_is_shortened_until_the_divergence_fits():
    theta = nn.Parameter(torch.tensor([3.0, 0.0, -3.0]))  # far from flat: the quadratic model is too bold
    taken = natural_step([theta], *bandit(theta), Trust(delta=0.5, damping=0.0))
    assert taken.kl <= 0.5 and (not taken.accepted or taken.improvement > 0)
    shorter = [0.8**j for j in range(10)]
    assert not taken.accepted or any(math.isclose(taken.length, s) for s in shorter)


def test_where_no_length_fits_the_parameters_are_as_before_bit_for_bit():
    theta = nn.Parameter(torch.tensor([0.1, 0.2, 0.3]))
    before = theta.detach().clone()
    surrogate, kl = bandit(theta)
    taken = natural_step([theta], surrogate, lambda: kl() + 1.0, PLAIN)  # any step diverges too much
    assert not taken.accepted and taken.why == "linesearch" and torch.equal(theta.detach(), before)
    taken = natural_step([theta], lambda: surrogate() - 100 * kl() - (theta - before).abs().sum(), kl, PLAIN)
    assert not taken.accepted and torch.equal(theta.detach(), before)  # within the region, and yet no gain


def test_no_signal_and_no_curvature_are_no_step():
    theta = nn.Parameter(torch.zeros(3))
    surrogate, kl = bandit(theta)
    assert natural_step([theta], lambda: 0.0 * surrogate(), kl, PLAIN).why == "flat"
    assert natural_step([theta], surrogate, lambda: -kl(), PLAIN).why == "curvature"
    assert not bool(theta.any())


def test_only_what_the_actions_depend_on_moves():
    theta, other = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(2))
    assert natural_step([other, theta], *bandit(theta), PLAIN).accepted
    assert bool(theta.any()) and torch.equal(other.detach(), torch.ones(2))


def test_the_policy_before_does_not_move_along():
    """A log-std that is a parameter of its own is in the old distribution, too."""
    task = build("task", "pendulum")
    policy = ActorCritic(hidden=[4]).make(
        role="policy", meter=None, device=torch.device("cpu"), trained=True, task=task
    )
    batch = Batch({"obs": torch.randn(2, 4, 3), "mask": torch.ones(2, 3).bool()})
    with torch.no_grad():
        old, alive = held(policy.distribution(batch)), policy.distribution(batch)
        policy.module.head.log_std += 0.5
        now = policy.distribution(batch)
        assert float(old.kl(now).min()) > 0.1 and float(alive.kl(now).max()) == 0.0


@pytest.mark.parametrize("wrong", [{"delta": 0.0}, {"shrink": 1.0}, {"iters": 0}, {"backtracks": 0}, {"damping": -1.0}])
def test_wrong_settings_are_refused(wrong: dict):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Trust(**wrong)


# -- entropy along the way, older experience --------------------------------------------------------------------------


def test_entropy_inside_the_advantage_by_hand():
    r, v, h = torch.ones(1, 3), torch.tensor([[2.0, 1.5, 1.0]]), torch.tensor([[0.69, 0.5, 0.1]])
    end = torch.tensor([[False, False, True]])
    plain, _ = gae(r, v, None, end, None, 0.9, 0.95)
    paid, _ = gae(r + 0.1 * h, v, None, end, None, 0.9, 0.95)
    assert plain[0].tolist() == pytest.approx([0.692, 0.4, 0.0], abs=1e-6)
    assert paid[0].tolist() == pytest.approx([0.81106, 0.45855, 0.01], abs=1e-5)
    more = gae(r + 0.1 * h, v, None, end, None, 0.9, 1.0)[0] - gae(r, v, None, end, None, 0.9, 1.0)[0]
    want = [0.1 * (0.69 + 0.9 * 0.5 + 0.81 * 0.1), 0.1 * (0.5 + 0.9 * 0.1), 0.1 * 0.1]
    assert more[0].tolist() == pytest.approx(want, abs=1e-6)


def test_weights_of_old_data_are_truncated():
    c = truncated(torch.tensor([-0.5, -1.2]), torch.tensor([-0.7, -2.5]), 2.0)
    assert c.tolist() == pytest.approx([1.221403, 2.0], abs=1e-6)


SMALL = ["rollout.env_steps.steps=32", "models.policy.hidden=[16]", "plan.epochs=2"]


def run(name: str, *overrides: str, iterations: int = 3) -> tuple[Trainer, list[dict], list[Batch]]:
    rows: list[dict] = []
    batches: list[Batch] = []
    made = Trainer(
        load(name, [*SMALL, f"iterations={iterations}", *overrides]), on_row=rows.append,
        on_batch=lambda i, batch: batches.append(batch),
    )  # fmt: skip
    made.run()
    return made, rows, batches


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    return made.models["policy"].module.state_dict()


def test_one_rollout_and_no_entropy_is_trpo_bit_for_bit():
    plain = weights(run("trpo")[0])
    ours = weights(run("entrpo", "store.recent_rollouts.rollouts=1", "reward.entropy_reward.beta=0",
                       "reward.entropy_reward.end=0")[0])  # fmt: skip
    assert all(torch.equal(ours[key], value) for key, value in plain.items())
    full = weights(run("entrpo")[0])
    assert any(not torch.equal(full[key], value) for key, value in plain.items())


@pytest.mark.parametrize("task", ["cart_pole", "pendulum", "{identity: {space: multi_discrete}}"])
def test_every_step_that_is_taken_stays_inside_the_region(task: str):
    _, rows, _ = run("trpo", f"task={task}", iterations=5)
    taken = [row for row in rows if row["step/taken"]]
    assert taken and all(0 < row["kl/step"] <= 0.01 and row["surrogate/gain"] > 0 for row in taken)


def test_older_rollouts_are_valued_by_the_nets_of_now():
    made, rows, batches = run("entrpo", iterations=3)
    batch = batches[2]
    assert batch["age"].tolist() == [0] * 8 + [1] * 8 + [2] * 8
    new, old = batch["mask"][:8], batch["mask"][8:]
    assert bool(new.all()) and int(old.sum()) == new.numel() // 2 == rows[2]["importance/old"]
    assert bool((batch["importance"][:8] == 1).all()) and float(batch["importance"].max()) <= 2.0
    assert bool((batch["rewards"] > 1).all()), "paid 1 a step, and entropy on top"
    held = made.chain.store.it.held
    assert bool((held[0]["rewards"] == 1).all()), "what is kept holds no bonus"
    assert rows[2]["reward/mean"] == 1.0 and rows[2]["entropy_reward/mean"] > 0


def test_rollouts_of_policies_too_far_away_are_left_out():
    _, rows, batches = run("entrpo", "credit.old_rollouts.max_kl=1e-9")
    assert rows[-1]["importance/rollouts_dropped"] == 1.0 and rows[-1]["importance/old"] == 0.0
    assert not bool(batches[-1]["mask"][8:].any())


def test_entropy_is_not_paid_twice():
    with pytest.raises(RecipeError, match=r"entropy is paid twice, by reward\.entropy_reward and update\.policy"):
        load_and_build("entrpo", "update.policy.entropy=0.01")
    with pytest.raises(RecipeError, match="entropy is paid twice"):
        load_and_build("ppo", "reward=[entropy_reward]")
    load_and_build("trpo", "update.policy.entropy=0.01")


def load_and_build(name: str, *overrides: str) -> Trainer:
    return Trainer(load(name, list(overrides)))


def test_language_models_and_several_roles_are_refused():
    with pytest.raises(RecipeError, match="it is for nets that act"):
        NaturalGradient().start(SimpleNamespace(models={"policy": SimpleNamespace(evaluate=None)}))
    with pytest.raises(ValueError, match="train names one policy"):
        NaturalGradient(train=["policy", "value"])


def test_a_surrogate_that_is_not_finite_stops_the_run_with_the_weights_as_before():
    made = Trainer(load("trpo", [*SMALL, "iterations=2"]))
    made.iteration = 0
    made.enter()
    made.iterate()
    before = {key: value.clone() for key, value in weights(made).items()}
    gae_part = made.chain.credit[0].it
    whole = gae_part.estimate

    def poisoned(batch, ctx):
        found = whole(batch, ctx)
        found["advantages"][0, 0] = math.inf
        return found

    gae_part.estimate = poisoned
    made.chain.credit.pop()  # whiten would complain about it first
    with pytest.raises(RunError, match=r"update\.policy: an advantage is not finite"):
        made.iterate()
    assert all(torch.equal(weights(made)[key], value) for key, value in before.items())
