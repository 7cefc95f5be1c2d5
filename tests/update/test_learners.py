"""Learners with a loss of their own, through one optimizer step each."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gainstage.registry import RecipeError, build
from gainstage.types import Batch, PolicyOut, Problem
from gainstage.update.learner import optimise
from gainstage.update.objectives.value.value import explained_variance, value_loss
from gainstage.update.optimizers.build import NonFinite


class Role:
    """A table of log-probs and values per token id: enough of a policy to be trained."""

    version = 0

    def __init__(self, vocabulary: int = 6, values: bool = True) -> None:
        self.module = nn.ModuleDict(
            {"table": nn.Embedding(vocabulary, vocabulary), "value": nn.Embedding(vocabulary, 1)}
        )
        self.has_values = values

    def evaluate(self, batch, want=()):
        tokens, mask = batch["tokens"], batch["mask"]
        before = torch.cat((torch.zeros_like(tokens[:, :1]), tokens[:, :-1]), 1)
        logp = torch.log_softmax(self.module["table"](before), -1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        values = self.module["value"](tokens).squeeze(-1) if "values" in want and self.has_values else None
        entropy = torch.zeros_like(logp) if "entropy" in want else None
        return PolicyOut(torch.where(mask, logp, 0.0), entropy, values)


class Models(dict):
    def updated(self, role):
        self.seen = role


def context(role: Role) -> SimpleNamespace:
    charges: dict[str, float] = {}
    meter = SimpleNamespace(charge=lambda kind, n: charges.__setitem__(kind, charges.get(kind, 0) + n), charges=charges)
    return SimpleNamespace(models=Models(policy=role), meter=meter, progress=0.0, lr_scale={})


def batch(lengths=(4, 2, 3, 4)) -> Batch:
    generator = torch.Generator().manual_seed(1)
    shape = (len(lengths), max(lengths))
    tokens = torch.randint(0, 6, shape, generator=generator)
    mask = torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(1)
    columns = {
        "mask": mask,
        "version": torch.zeros(len(lengths), dtype=torch.long),
        "tokens": tokens,
        "author": torch.where(mask, 1, -1),
        "returns": torch.randn(shape, generator=generator),
        "values": torch.randn(shape, generator=generator),
        "ref_logprobs": torch.full(shape, -1.8),
        "behaviour_logprobs": torch.full(shape, -1.8),
        "advantages": torch.randn(shape, generator=generator),
    }
    problems = [Problem(id=str(i // 2), prompt="") for i in range(len(lengths))]
    return Batch(columns, problems)


# --- value ----------------------------------------------------------------------------------------------------------


def test_value_losses_by_hand():
    values, returns = torch.tensor([[1.0, 4.0, math.nan]]), torch.tensor([[0.0, 1.0, math.nan]])
    mask = torch.tensor([[True, True, False]])
    assert value_loss(values, returns, mask)[0].tolist() == [0.5, 4.5, 0.0]
    assert value_loss(values, returns, mask, kind="huber", delta=1.0)[0].tolist() == [0.5, 2.5, 0.0]
    old = torch.tensor([[0.9, 1.5, math.nan]])
    clipped = value_loss(values, returns, mask, old, clip=0.2)
    assert clipped[0].tolist() == pytest.approx([0.5, 4.5, 0.0])  # the larger error of the two
    towards = value_loss(
        torch.tensor([[1.2]]), torch.tensor([[1.0]]), torch.ones(1, 1).bool(), torch.tensor([[2.0]]), 0.1
    )
    assert towards.tolist() == [[pytest.approx(0.5 * 0.9**2)]]


def test_value_clip_stops_the_gradient_of_a_value_that_has_moved_enough():
    values = torch.tensor([[1.2, 1.95]], requires_grad=True)
    value_loss(values, torch.ones(1, 2), torch.ones(1, 2).bool(), torch.full((1, 2), 2.0), 0.1).sum().backward()
    assert values.grad[0].tolist() == pytest.approx([0.0, 0.95])


def test_an_infinite_clip_is_no_clip_and_gradients_are_right():
    values = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    returns, old, mask = (
        torch.randn(2, 3).double(),
        torch.randn(2, 3).double(),
        torch.tensor([[1, 1, 0], [1, 0, 0]]).bool(),
    )
    assert torch.equal(value_loss(values, returns, mask, old, math.inf), value_loss(values, returns, mask))
    for kind in ("mse", "huber"):
        assert torch.autograd.gradcheck(lambda v, kind=kind: value_loss(v, returns, mask, kind=kind), (values,))


def test_explained_variance():
    returns, mask = torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[True, True, False]])
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(torch.zeros(1, 3), returns, mask) == pytest.approx(0.0)
    assert explained_variance(returns, torch.ones(1, 3), mask) == 0.0


def test_value_learner_learns_and_no_split_changes_the_step():
    found = []
    for tokens in (None, 4, 1):
        torch.manual_seed(3)
        role = Role()
        ctx = context(role)
        learner = build("update", "value", {"lr": 0.05, "value_clip": 10.0, "weight": 0.5})
        learner.start(ctx)
        stats = [optimise(learner, batch(), ctx, tokens) for _ in range(5)]
        found.append((role.module["value"].weight.detach().clone(), stats))
    assert found[0][1][-1]["value/loss"] < found[0][1][0]["value/loss"]
    assert found[0][1][0]["loss"] == pytest.approx(0.5 * found[0][1][0]["value/loss"], rel=1e-5)
    assert {"value/explained_variance", "value/mean", "value/clipped", "grad/norm"} <= set(found[0][1][0])
    for weights, stats in found[1:]:
        torch.testing.assert_close(weights, found[0][0], rtol=1e-5, atol=1e-6)
        assert stats[0]["value/explained_variance"] == pytest.approx(found[0][1][0]["value/explained_variance"])


def test_value_learner_names_what_is_missing():
    learner = build("update", "value", {"lr": 0.1})
    ctx = context(Role(values=False))
    learner.start(ctx)
    with pytest.raises(RecipeError, match="'policy' gives no values"):
        optimise(learner, batch(), ctx)
    with pytest.raises(RecipeError, match="value_clip must be > 0"):
        build("update", "value", {"value_clip": 0.0})
    with pytest.raises(RecipeError, match="train names one role"):
        build("update", "value", {"train": ["a", "b"]})


# --- preference -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["dpo", {"simpo": {"gamma": 0.2}}, {"ipo": {"beta": 0.5}}])
def test_preference_learner_parts_the_pair(objective):
    role = Role()
    ctx, data = context(role), batch()
    learner = build("update", "preference", {"objective": objective, "lr": 0.05})
    learner.start(ctx)

    def gap():
        with torch.no_grad():
            sums = (role.evaluate(data).logprobs * data["mask"]).sum(1)
        return float((sums[::2] - sums[1::2]).sum())

    before = gap()
    stats = [optimise(learner, data, ctx, 3) for _ in range(8)]
    assert gap() > before
    assert stats[-1]["loss"] < stats[0]["loss"]
    assert 0 <= stats[0]["preference/accuracy"] <= 1 and "preference/margin" in stats[0]
    assert ctx.meter.charges["trained_tokens"] == 8 * 13


def test_preference_learner_keeps_pairs_together():
    ctx = context(Role())
    learner = build("update", "preference")
    learner.start(ctx)
    with pytest.raises(ValueError, match="holds pairs of rows, got 3"):
        optimise(learner, batch((2, 2, 2)), ctx)
    shuffled = batch().take([0, 2, 1, 3])
    with pytest.raises(ValueError, match="different problems"):
        optimise(learner, shuffled, ctx)


def test_the_optimizers_own_settings_override_the_learners():
    learner = build("update", "value", {"optimizer": {"adamw": {"weight_decay": 0.3}}, "weight_decay": 0.1})
    learner.start(context(Role()))
    assert [g["weight_decay"] for g in learner.opt.param_groups] == [0.3]
    with pytest.raises(RecipeError, match="set the learner's own `lr`"):
        build("update", "value", {"optimizer": {"adamw": {"lr": 0.3}}}).start(context(Role()))


# --- policy ---------------------------------------------------------------------------------------------------------


def test_policy_learner_takes_the_same_step_for_any_split():
    found = []
    for tokens in (None, 5, 1):
        torch.manual_seed(5)
        role = Role()
        ctx = context(role)
        learner = build("update", "policy", {"lr": 0.05, "objectives": ["clipped", {"reference_kl": {"weight": 0.1}}]})
        learner.start(ctx)
        stats = [optimise(learner, batch(), ctx, tokens) for _ in range(3)]
        found.append((role.module["table"].weight.detach().clone(), stats))
    for weights, stats in found[1:]:
        torch.testing.assert_close(weights, found[0][0], rtol=1e-5, atol=1e-6)
        for name, value in stats[-1].items():
            assert value == pytest.approx(found[0][1][-1][name], rel=1e-4, abs=1e-6), name


def test_a_step_is_taken_where_other_code_has_switched_gradients_off():
    role = Role()
    ctx = context(role)
    learner = build("update", "policy", {"lr": 0.05, "objectives": ["clipped"]})
    learner.start(ctx)
    with torch.no_grad():
        assert optimise(learner, batch(), ctx)["grad/norm"] > 0


def test_a_step_that_is_not_finite_leaves_weights_and_state():
    role = Role()
    ctx, data = context(role), batch()
    learner = build("update", "value", {"lr": 0.05})
    learner.start(ctx)
    optimise(learner, data, ctx)
    weights = {k: v.clone() for k, v in role.module.state_dict().items()}
    moments = [v.clone() for s in learner.opt.state.values() for v in s.values()]
    data["returns"][0, 0] = math.inf
    with pytest.raises(NonFinite):
        optimise(learner, data, ctx)
    assert all(torch.equal(weights[k], v) for k, v in role.module.state_dict().items())
    assert all(torch.equal(a, v) for a, v in zip(moments, [v for s in learner.opt.state.values() for v in s.values()]))


def test_a_mask_that_never_acts_is_said_once_after_fifty_steps():
    learner = build("update", "policy", {"objectives": ["prefix_divergence"], "agg": "token_mean", "lr": 0.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for masked in [*[0.0] * 49, 0.1, *[0.0] * 49]:
            learner.watch({"ratio/masked": masked})
        learner.watch({"loss": 1.0})  # an objective without a mask is never idle
        for _ in range(49):
            learner.watch({"ratio/masked": 0.0})
    with pytest.warns(UserWarning, match=r"kept every token for 50 optimizer steps.*plan\.minibatch"):
        learner.watch({"ratio/masked": 0.0})


def test_idle_steps_of_a_mask_are_counted_through_optimise_and_saved():
    role = Role()
    ctx = context(role)
    same = batch()
    same["behaviour_logprobs"] = role.evaluate(same).logprobs.detach()
    made = [build("update", "policy", {"objectives": ["prefix_divergence"], "lr": 0.0}) for _ in range(2)]
    for learner in made:
        learner.start(ctx)
    for _ in range(3):
        assert optimise(made[0], same, ctx)["ratio/masked"] == 0
    made[1].load_state_dict(made[0].state_dict())
    assert made[1].idle == 3


def test_the_constant_of_dr_grpo_follows_the_answers_that_are_allowed():
    from gainstage.chain import build_chain
    from gainstage.recipe import load

    def constant(*changes: str) -> float:
        chain = build_chain(load("dr_grpo", changes))
        assert chain.answer_limit is not None
        return chain.update[0].it.constant

    assert constant() == build_chain(load("grpo")).answer_limit
    assert constant("task=countdown") == build_chain(load("grpo", ["task=countdown"])).task.it.max_new
    assert constant("rollout.generate.max_new=33") == 33
    assert constant("update.policy.constant=7") == 7
    turns = "task=room_quest", "rollout=[{multi_turn: {max_new: 5, max_turns: 3}}]", "reward=[]"
    assert constant(*turns) == 15
    with pytest.raises(RecipeError, match="needs the setting `constant`"):
        build_chain(load("sft", ["update.policy.agg=sequence_sum_over_constant"]))


def test_a_role_that_was_slowed_down_steps_less():
    rates = []
    for scale in ({}, {"policy": 0.5}, {"other": 0.5}):
        ctx = context(Role())
        ctx.lr_scale = scale
        learner = build("update", "value", {"lr": 0.25})
        learner.start(ctx)
        data = batch()
        data["returns"] = torch.ones_like(data["mask"], dtype=torch.float)
        optimise(learner, data, ctx)
        rates.append(learner.opt.param_groups[0]["lr"])
    assert rates == [0.25, 0.125, 0.25]
