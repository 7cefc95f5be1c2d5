"""Distributions as targets: the projection's worked numbers and limits, mixtures of a group, quantiles."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gainstage.credit.returns import categorical
from gainstage.credit.returns.categorical import (
    CategoricalTarget,
    EnsembleTarget,
    QuantileTarget,
    cramer,
    project,
)  # fmt: skip
from gainstage.registry import RecipeError
from gainstage.types import Batch
from gainstage.update.objectives.value.distributional import categorical_td, entropy

SUPPORT = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
P1 = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
P2 = torch.tensor([[0.1, 0.3, 0.6]], dtype=torch.float64)
GOES_ON = torch.tensor([False])


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_worked_numbers_of_the_group_target():
    mean = (P1 + P2) / 2
    assert mean[0].tolist() == pytest.approx([0.3, 0.3, 0.4])
    target, outside = project(mean, f64(0.5), GOES_ON, 0.9, SUPPORT)
    assert target[0].tolist() == pytest.approx([0.15, 0.33, 0.52])
    assert float(target[0] @ SUPPORT) == pytest.approx(1.37) and outside.tolist() == pytest.approx([0.4])
    assert 0.5 + 0.9 * float(mean[0] @ SUPPORT) == pytest.approx(1.49)  # what it would be without the cut
    apart = [project(p, f64(0.5), GOES_ON, 0.9, SUPPORT)[0] for p in (P1, P2)]
    assert torch.allclose((apart[0] + apart[1]) / 2, target)
    p = f64(0.2, 0.5, 0.3)
    cross = float(categorical_td(p.log(), target[0]))
    assert cross == pytest.approx(1.0962201, abs=1e-7)
    assert cross - float(entropy(target[0])) == pytest.approx(0.1057517, abs=1e-7)
    assert float(cramer(target[0], p, 1.0)) == pytest.approx(0.0509, abs=1e-9)


def test_an_atom_that_hits_another_loses_no_mass():
    """Where both neighbours are one and the same atom, shares by distance are both 0."""
    target, _ = project(P1, f64(1.0), GOES_ON, 1.0, SUPPORT)
    assert target[0].tolist() == pytest.approx([0.0, 0.5, 0.5])
    target, _ = project(P1, f64(0.0), GOES_ON, 1.0, SUPPORT)
    assert target[0].tolist() == pytest.approx([0.5, 0.3, 0.2])


def test_a_real_end_leaves_the_reward_alone_and_reads_nothing_after_it():
    nothing = torch.full((3, 3), float("nan"), dtype=torch.float64)
    target, outside = project(nothing, f64(0.25, 7.0, -1.0), torch.ones(3, dtype=torch.bool), 0.9, SUPPORT)
    assert target.tolist() == [[0.75, 0.25, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    assert outside.tolist() == [0.0, 1.0, 1.0]


@given(
    st.integers(2, 60),
    st.floats(-3, 3),
    st.floats(0, 1),
    st.integers(0, 5),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_mass_is_kept_and_inside_the_bounds_the_mean_is_that_of_the_target(atoms, reward, gamma, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    support = torch.linspace(-10, 10, atoms, dtype=dtype)
    probs = torch.rand(4, atoms, generator=generator, dtype=dtype).softmax(-1)
    rewards = torch.full((4,), reward, dtype=dtype)
    target, outside = project(probs, rewards, torch.tensor([False, False, True, False]), gamma, support)
    assert torch.allclose(target.sum(1), torch.ones(4, dtype=dtype), atol=1e-5) and (target >= 0).all()
    wanted = rewards + torch.tensor([1, 1, 0, 1], dtype=dtype) * gamma * (probs @ support)
    inside = outside == 0
    assert torch.allclose((target @ support)[inside], wanted[inside], atol=2e-5 if dtype == torch.float32 else 1e-9)


def test_each_row_has_its_own_discount():
    both, _ = project(P1.expand(2, 3), f64(0.0, 0.0), GOES_ON.expand(2), f64(1.0, 0.5), SUPPORT)
    assert torch.equal(both[0], P1[0]) and both[1].tolist() == pytest.approx([0.65, 0.35, 0.0])


# -- the components ----------------------------------------------------------------------------------------------------


class Distributions:
    """A role that knows the answer: `probs "N A K"`."""

    def __init__(self, probs, support=SUPPORT, learning=None):
        self.all, self.support, self.learning = probs, support, learning

    def probs(self, obs):
        return self.all

    def q(self, obs):
        return (self.all if self.learning is None else self.learning) @ self.support

    def quantiles(self, obs):
        return self.all


def context(**models):
    seen = {}
    return SimpleNamespace(models=models, log=seen.__setitem__, seen=seen, store=SimpleNamespace())


def transitions(reward, terminated, **more):
    n = len(reward)
    return Batch({
        "obs": torch.zeros(n, 2, 1), "rewards": f64(*reward).unsqueeze(1), "mask": torch.ones(n, 1, dtype=torch.bool),
        "terminated": torch.tensor(terminated).unsqueeze(1), **more,
    })  # fmt: skip


def test_the_target_takes_the_best_action_of_the_lagging_or_of_the_learning_net():
    lagging = torch.stack((P1, P2), 1)  # means .7 and 1.5
    learning = torch.stack((P2, P1), 1)
    ctx = context(policy=Distributions(learning), policy_target=Distributions(lagging))
    batch = transitions([0.5], [False])
    plain = CategoricalTarget(gamma=0.9).estimate(batch, ctx)["target_probs"]
    assert torch.equal(plain[:, 0], project(P2, f64(0.5), GOES_ON, 0.9, SUPPORT)[0])
    double = CategoricalTarget(gamma=0.9, double=True).estimate(batch, ctx)["target_probs"]
    assert torch.equal(double[:, 0], project(P1, f64(0.5), GOES_ON, 0.9, SUPPORT)[0])
    spanned = transitions([0.5], [False], discount=f64(0.81).unsqueeze(1))
    n_step = CategoricalTarget(gamma=0.9).estimate(spanned, ctx)["target_probs"]
    assert torch.equal(n_step[:, 0], project(P2, f64(0.5), GOES_ON, 0.81, SUPPORT)[0])


class Members:
    """Two members, one row each; `probs "M N A K"`."""

    support = SUPPORT

    def __init__(self, probs):
        self.all = probs

    def probs(self, obs):
        return self.all

    def member_of(self, rows):
        return torch.arange(2).repeat_interleave(rows // 2)


def atoms(mean):
    """A distribution on 0, 1, 2 with that mean."""
    return [1 - mean / 2, 0.0, mean / 2]


def group(rows=2):
    """Means over two actions: the first member .5 and .8, the second 1 and .2; so they disagree, together it is .75
    and .5."""
    table = f64([atoms(0.5), atoms(0.8)], [atoms(1.0), atoms(0.2)])
    return table.unsqueeze(1).expand(2, rows, 2, 3)


def test_the_group_picks_by_its_average_and_a_member_alone_by_its_own():
    ctx = context(policy_target=Members(group()))
    batch = transitions([0.0, 0.0], [False, False])
    full = EnsembleTarget(gamma=1.0).estimate(batch, ctx)["target_probs"][:, 0]
    assert (full @ SUPPORT).tolist() == pytest.approx([0.75, 0.75])  # both towards the average of action 0
    alone = EnsembleTarget(gamma=1.0, mix=0.0).estimate(batch, ctx)["target_probs"][:, 0]
    assert (alone @ SUPPORT).tolist() == pytest.approx([0.8, 1.0])  # C51 twice: actions 1 and 0
    own = EnsembleTarget(gamma=1.0, greedy="own").estimate(batch, ctx)["target_probs"][:, 0]
    assert (own @ SUPPORT).tolist() == pytest.approx([0.5, 0.75])  # own actions, the group's distribution
    assert ctx.seen["ensemble/disagreement"] > 0


@pytest.mark.parametrize(("mix", "wanted"), [(0.0, [0.5, 0.3, 0.2]), (0.5, [0.4, 0.3, 0.3]), (1.0, [0.3, 0.3, 0.4])])
def test_a_mixture_averages_probabilities_not_values(mix, wanted):
    """One action, no reward, no discount: the target of the first member is what it mixes; its ends are exact."""
    probs = torch.stack((P1, P2)).unsqueeze(2).expand(2, 2, 1, 3)
    batch = transitions([0.0, 0.0], [False, False])
    found = EnsembleTarget(gamma=1.0, mix=mix).estimate(batch, context(policy_target=Members(probs)))["target_probs"]
    assert found[0, 0].tolist() == pytest.approx(wanted)
    if mix != 0.5:
        assert torch.equal(found[0, 0], (P1 if mix == 0 else (P1 + P2) / 2)[0])


def test_without_the_group_nothing_of_the_other_members_enters():
    changed = group().clone()
    changed[1] = torch.tensor([0.2, 0.2, 0.6])
    batch = transitions([0.3, 0.3], [False, False])
    targets = [
        EnsembleTarget(gamma=0.9, mix=0.0).estimate(batch, context(policy_target=Members(p)))["target_probs"]
        for p in (group(), changed)
    ]
    assert torch.equal(targets[0][0], targets[1][0]) and not torch.equal(targets[0][1], targets[1][1])


def test_quantiles_are_moved_by_the_reward_and_end_with_the_episode():
    quantiles = f64([[1.0, 2.0], [0.0, 2.0]], [[float("nan")] * 2] * 2)
    ctx = context(policy_target=Distributions(quantiles))
    batch = transitions([0.5, 3.0], [False, True])
    target = QuantileTarget(gamma=0.5).estimate(batch, ctx)["target_quantiles"][:, 0]
    assert target.tolist() == [[1.0, 1.5], [3.0, 3.0]]


def test_a_support_that_is_too_narrow_for_too_long_is_an_error(monkeypatch):
    monkeypatch.setattr(categorical, "PATIENCE", 3)
    ctx = context(policy_target=Distributions(torch.stack((P1, P2), 1)))
    target = CategoricalTarget(gamma=0.0)
    for reward in (9.0, 9.0, 1.0, 9.0, 9.0):  # a reward inside the atoms begins the count anew
        target.estimate(transitions([reward], [False]), ctx)
    assert ctx.seen["target/outside_support"] == 1.0
    again = CategoricalTarget(gamma=0.0)
    again.load_state_dict(target.state_dict())
    for one in (target, again):
        with pytest.raises(RecipeError, match=r"widen models\.policy\.low"):
            one.estimate(transitions([9.0], [False]), ctx)


def test_a_store_that_discounts_otherwise_is_refused():
    ctx = context()
    ctx.store = SimpleNamespace(n_step=3, gamma=0.9)
    for target in (CategoricalTarget(gamma=0.99), EnsembleTarget(gamma=0.99)):
        with pytest.raises(RecipeError, match=r"store\.replay\.gamma=0\.99"):
            target.start(ctx)
    CategoricalTarget(gamma=0.9).start(ctx)
    for wrong in ({"gamma": 1.5}, {"mix": 2.0}):
        with pytest.raises(ValueError, match="lie in"):
            EnsembleTarget(**wrong)
