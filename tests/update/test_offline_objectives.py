"""Losses of offline learners: worked numbers, limits, and what they reduce to."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from gainstage.credit.returns.recorded import LowerTarget
from gainstage.models.autoencoder import Autoencoder, kl_to_normal
from gainstage.recipe import load
from gainstage.trainer import Trainer
from gainstage.types import Batch, PolicyOut
from gainstage.update.objectives.imitation.likelihood import action_error
from gainstage.update.objectives.policy.behaviour_term import (
    BehaviourTerm,
    GuidedTerm,
    behaviour_term,
    guided_target,
    reconstruction_loss,
)
from gainstage.update.objectives.value.conservative import ConservativeTd, Expectile, cql_penalty, expectile_loss

Q_DATA = torch.tensor([1.0, 0.2, -0.5, 0.9])
Q_VAE = torch.tensor([0.7, 0.6, -0.4, 0.9])
V = torch.tensor([0.5, 0.3, 0.0, 0.9])
DATA = torch.tensor([[0.1], [0.2], [0.3], [0.4]])
VAE = torch.tensor([[0.5], [0.6], [0.7], [0.8]])
OWN = torch.tensor([[0.0], [0.1], [0.2], [0.3]])


def test_guided_target_and_its_loss():
    target, gate, picked = guided_target(Q_DATA, Q_VAE, V, DATA, VAE)
    torch.testing.assert_close(target.squeeze(1), torch.tensor([0.1, 0.6, 0.7, 0.8]))
    assert gate.tolist() == [1, 1, 0, 1]
    assert picked.tolist() == [False, True, True, True]  # ties go to the generated action
    pull = behaviour_term(OWN, target, gate)
    assert float(pull) == pytest.approx(0.1275, abs=1e-6)
    q = torch.tensor([0.8, 0.5, -0.6, 1.1])
    scale = 2.5 / q.abs().mean()
    assert float(-scale * q.mean() + pull) == pytest.approx(-1.3725, abs=1e-5)


def test_both_reasons_for_the_pull_count_once():
    one = torch.ones(1)
    _, gate, _ = guided_target(2 * one, 2 * one, one, one.unsqueeze(1), one.unsqueeze(1))
    assert gate.tolist() == [1.0]


def test_model_of_the_data_learns_only_from_good_actions():
    gate = torch.tensor([1.0, 0, 0, 0])
    recon = torch.tensor([[0.15], [0.1], [0.35], [0.45]])
    kl = kl_to_normal(torch.tensor([[0.2, -0.1]]), torch.tensor([[-0.5, 0.1]]))
    assert float(kl) == pytest.approx(0.109821, abs=1e-6)
    assert float(reconstruction_loss(recon, DATA, torch.zeros(1), gate)) == pytest.approx(0.000625, abs=1e-8)
    assert float(reconstruction_loss(recon, DATA, kl, gate)) == pytest.approx(0.055535, abs=1e-6)
    shut = reconstruction_loss(recon, DATA, kl, torch.zeros(4))
    assert float(shut) == pytest.approx(0.5 * float(kl))  # the gate does not act on the KL


def test_autoencoder_bounds_its_spread():
    net = Autoencoder(2, 4, condition=3, hidden=[8])
    _, log_std = net.encode(torch.full((5, 2), 1e4), torch.full((5, 3), -1e4))
    assert float(log_std.detach().min()) >= -4 and float(log_std.detach().max()) <= 15
    recon, mean, _ = net(torch.zeros(5, 2), torch.zeros(5, 3))
    assert recon.shape == (5, 2) and mean.shape == (5, 4)


class Table:
    """A role that answers from fixed numbers."""

    def __init__(self, **answers):
        self.answers = answers
        self.module = torch.nn.Linear(1, 1)

    def __getattr__(self, name):
        return lambda *args: self.answers[name]


def test_lower_target():
    """Not done, r = 0.3: the target critics' minima are 1.2 and 0.8, the learning ones' 1.0 and 0.9."""
    models = {
        "policy_target": Table(sample=(torch.zeros(2, 1), None)),
        "critic_target": Table(q=torch.tensor([[1.2, 0.8], [1.5, 0.9]])),
        "critic": Table(q=torch.tensor([[1.0, 0.95], [1.3, 0.9]])),
    }
    batch = Batch({
        "obs": torch.zeros(2, 2, 1), "rewards": torch.full((2, 1), 0.3), "terminated": torch.zeros(2, 1).bool(),
        "mask": torch.ones(2, 1, dtype=torch.bool),
    })  # fmt: skip
    found = LowerTarget(gamma=0.99).estimate(batch, SimpleNamespace(models=models))
    torch.testing.assert_close(found["returns"].squeeze(1), torch.tensor([1.488, 1.092]))
    torch.testing.assert_close(found["state_returns"].squeeze(1), torch.tensor([1.29, 1.092]))


def test_expectiles():
    q, v = torch.tensor([1.0, -1.0]), torch.zeros(2)
    assert float(expectile_loss(q, v, 0.5)) == pytest.approx(0.5)
    assert float(expectile_loss(q, v, 0.9)) == pytest.approx(0.5)  # 0.9 and 0.1 of a square each
    draws = torch.randn(4000)
    level = torch.zeros((), requires_grad=True)
    for _ in range(300):
        (grad,) = torch.autograd.grad(expectile_loss(draws, level.expand(4000), 0.9), level)
        level = (level - 0.5 * grad).detach().requires_grad_()
    above, below = (draws - level).clamp(min=0).mean(), (level - draws).clamp(min=0).mean()
    assert float(0.9 * above) == pytest.approx(float(0.1 * below), rel=1e-3)
    with pytest.raises(ValueError, match="tau"):
        Expectile(tau=1.0)


def test_cql_penalty_of_choices_and_of_draws():
    q = torch.tensor([[[1.0, 2.0, 3.0]]])
    assert float(cql_penalty(q, torch.tensor([[3.0]]))) == pytest.approx(math.log(1 + math.exp(-1) + math.exp(-2)))
    assert float(cql_penalty(torch.zeros(1, 1, 4), torch.zeros(1, 1))) == pytest.approx(math.log(4))
    # uniform draws in [-1, 1] of q(a) = a: log of the integral of exp a
    points = torch.linspace(-1, 1, 4001).reshape(1, 1, -1)
    found = cql_penalty(points, torch.zeros(1, 1), torch.full((1, 4001), -math.log(2.0)))
    assert float(found) == pytest.approx(math.log(math.e - 1 / math.e), abs=1e-3)
    with pytest.raises(ValueError, match="draws"):
        ConservativeTd(draws=0)


def test_action_error_needs_numbers():
    mb = Batch({"mask": torch.tensor([[True, False]]), "actions": torch.tensor([[[1.0, 0.0], [float("nan")] * 2]])})
    out = PolicyOut(torch.zeros(1, 2), None, None, {"mean": torch.zeros(1, 2, 2, requires_grad=True)})
    term = action_error(out, mb)
    assert term.tolist() == [[0.5, 0.0]]
    term.sum().backward()
    with pytest.raises(ValueError, match="likelihood"):
        action_error(PolicyOut(torch.zeros(1, 2)), mb)


SMALL = ["task.recorded.episodes=8", "iterations=1", "plan.updates=6", "plan.minibatch=32", "evaluate.problems=2"]
HIDDEN = [f"models.{role}.hidden=[8]" for role in ("policy", "critic")]


def weights_after(method: str, *more: str, role: str = "policy"):
    trainer = Trainer(load(method, [*SMALL, *HIDDEN, *more]))
    trainer.run()
    return trainer.models[role].module.state_dict()


def test_an_open_gate_and_no_model_is_td3_bc(tmp_path, monkeypatch):
    """A2PR without gate and model, on the same streams of chance, moves the actor as TD3+BC does, bit for bit."""
    monkeypatch.setenv("GAINSTAGE_CACHE", str(tmp_path))
    plain = BehaviourTerm()
    guided = GuidedTerm(gate=False, pick=False)
    torch.manual_seed(0)
    actor = torch.nn.Linear(3, 2)
    critic = torch.nn.Linear(5, 2)

    class Role:
        def __init__(self, module):
            self.module = module

        def sample(self, obs):
            return torch.tanh(self.module(obs)), None

        def q(self, obs, action):
            return self.module(torch.cat((obs, action), -1)).T

        def v(self, obs):
            return obs.sum(-1)

    models = {"policy": Role(actor), "critic": Role(critic), "value": Role(critic)}
    ctx = SimpleNamespace(models=models)
    mb = Batch({"obs": torch.randn(16, 2, 3), "actions": torch.rand(16, 1, 2) * 2 - 1, "mask": torch.ones(16, 1) > 0})
    losses, grads = [], []
    for learner in (plain, guided):
        actor.zero_grad()
        loss, _ = learner.loss(mb, ctx)
        loss.backward()
        losses.append(loss.detach())
        grads.append(actor.weight.grad.clone())
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-6)
    assert critic.weight.grad is None  # only the action's gradient was wanted


def test_alpha_zero_is_cloning():
    torch.manual_seed(0)
    actor = torch.nn.Linear(3, 1)

    class Actor:
        module = actor

        def sample(self, obs):
            return torch.tanh(actor(obs)), None

    class Critic:
        module = torch.nn.Linear(1, 1)

        def q(self, obs, action):
            return action.T * 100

    mb = Batch({"obs": torch.randn(8, 2, 3), "actions": torch.zeros(8, 1, 1), "mask": torch.ones(8, 1) > 0})
    loss, _ = BehaviourTerm(alpha=0.0).loss(mb, SimpleNamespace(models={"policy": Actor(), "critic": Critic()}))
    wanted = torch.tanh(actor(mb["obs"][:, 0])).square().mean()
    torch.testing.assert_close(loss, wanted)


def test_values_of_nothing_do_not_divide_by_zero():
    class Actor:
        module = torch.nn.Linear(3, 1)

        def sample(self, obs):
            return torch.tanh(self.module(obs)), None

    class Critic:
        module = torch.nn.Linear(1, 1)

        def q(self, obs, action):
            return action.T * 0

    mb = Batch({"obs": torch.randn(8, 2, 3), "actions": torch.zeros(8, 1, 1), "mask": torch.ones(8, 1) > 0})
    loss, stats = BehaviourTerm().loss(mb, SimpleNamespace(models={"policy": Actor(), "critic": Critic()}))
    assert torch.isfinite(loss) and float(stats["actor/scale"]) == pytest.approx(2.5e6)


def test_no_penalty_is_plain_td(tmp_path, monkeypatch):
    monkeypatch.setenv("GAINSTAGE_CACHE", str(tmp_path))
    free = weights_after("cql", "update.conservative_td.penalty=0", role="critic")
    plain = (
        "update=[data_statistics, {td: {train: [critic], lr: 3.0e-3}}, {actor_value: {train: [policy], alpha: alpha, "
    )
    plain += "lr: 1.0e-3, warmup: 0.4}}, {entropy_temperature: {train: [alpha], lr: 1.0e-3}}]"
    td = weights_after("cql", plain, role="critic")
    bound = weights_after("cql", role="critic")
    assert all(torch.equal(free[name], td[name]) for name in td)
    assert any(not torch.equal(free[name], bound[name]) for name in bound)


def test_a2pr_refuses_choices():
    with pytest.raises(ValueError, match="needs a Box action space"):
        Trainer(load("a2pr", ["task={recorded: {task: cart_pole, mix: random, episodes: 4}}",
                              "models.policy={net: q_network}", "models.critic={net: q_network}"]))  # fmt: skip


class Generator:
    """A model of the data that halves an action."""

    module = torch.nn.Linear(1, 1)

    def reconstruct(self, obs, action):
        return 0.5 * action, None, None


@pytest.mark.parametrize(("detach", "slope"), [(True, 2 * 0.5), (False, 2 * 0.5 * 0.5)])
def test_a_generated_target_may_move_with_the_policy(detach, slope):
    """The pull is (a - a/2)^2: its slope in a is 2 (a - a/2), or half of that where the target moves along."""
    actor = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(actor.weight, 1.0)
    torch.nn.init.zeros_(actor.bias)
    roles = {
        "policy": SimpleNamespace(sample=lambda obs: (actor(obs), None)),
        "critic": SimpleNamespace(module=torch.nn.Linear(1, 1), q=lambda obs, action: 0 * action.T + 1),
        "value": SimpleNamespace(v=lambda obs: torch.zeros(len(obs))),
        "vae": Generator(),
    }
    mb = Batch({"obs": torch.ones(4, 2, 1), "actions": torch.zeros(4, 1, 1), "mask": torch.ones(4, 1) > 0})
    loss, stats = GuidedTerm(detach_target=detach).loss(mb, SimpleNamespace(models=roles))
    loss.backward()
    assert float(stats["actor/pull"]) == pytest.approx(0.25) and float(stats["gate/other"]) == 1.0
    assert float(actor.weight.grad) == pytest.approx(slope)
    assert Generator.module.weight.grad is None
