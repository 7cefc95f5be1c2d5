"""Regression of distributions: finite differences, a slow reference, quantiles that settle where they belong."""

from types import SimpleNamespace

import pytest
import torch

from gainstage.registry import RecipeError
from gainstage.types import Batch, column
from gainstage.update.objectives.value.distributional import (
    CategoricalTd,
    EnsembleTd,
    QuantileTd,
    categorical_td,
    quantile_huber,
)  # fmt: skip
from gainstage.update.optimizers.build import NonFinite


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_cross_entropy_is_least_at_the_target_and_its_gradient_is_the_difference():
    target = drawn(3, 5, seed=1).softmax(-1)
    logits = drawn(3, 5).requires_grad_()
    categorical_td(logits, target).sum().backward()
    assert torch.allclose(logits.grad, logits.detach().softmax(-1) - target)
    zero = torch.tensor([[0.0, 1.0]])
    assert torch.isfinite(categorical_td(torch.tensor([[200.0, -200.0]]), zero)).all()  # no log of 0


def slow_quantile(quantiles, target, kappa):
    total = torch.zeros(len(quantiles), dtype=torch.float64)
    k = quantiles.shape[1]
    for n in range(len(quantiles)):
        for i in range(k):
            for j in range(target.shape[1]):
                u = float(target[n, j] - quantiles[n, i].detach())
                size = abs(u)
                huber = size if kappa == 0 else (u * u / 2 if size <= kappa else kappa * (size - kappa / 2)) / kappa
                total[n] += abs((i + 0.5) / k - (u < 0)) * huber / target.shape[1]
    return total


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
def test_quantile_loss_against_a_slow_reference_and_its_gradient(kappa):
    quantiles, target = drawn(4, 5).requires_grad_(), 2 * drawn(4, 7, seed=1)
    assert torch.allclose(quantile_huber(quantiles, target, kappa), slow_quantile(quantiles, target, kappa))
    assert torch.autograd.gradcheck(lambda q: quantile_huber(q, target, kappa), quantiles)


def test_quantiles_settle_where_they_belong():
    """Samples 0 .. 99 and ten quantiles: the k-th ends near 10 k + 5."""
    target = torch.arange(100.0).unsqueeze(0)
    quantiles = torch.zeros(1, 10, requires_grad=True)
    optimizer = torch.optim.Adam([quantiles], lr=0.5)
    for _ in range(1500):
        optimizer.zero_grad()
        quantile_huber(quantiles, target).sum().backward()
        optimizer.step()
    assert torch.allclose(quantiles[0], torch.arange(5.0, 100, 10), atol=2.0)


# -- learners ----------------------------------------------------------------------------------------------------------


class Role:
    """`values "N A K"` to be learned; `module` so that a learner can train it."""

    members = 2
    support = torch.tensor([0.0, 1.0, 2.0])

    def __init__(self, values):
        self.weight = torch.nn.Parameter(values)

    def logits(self, obs):
        return self.weight

    own_logits = quantiles = logits


for name in ("target_probs", "target_quantiles"):
    column(name, "step", dims="K")


def batch(target, name, **more):
    n = len(target)
    return Batch({
        "obs": torch.zeros(n, 2, 1), "actions": torch.tensor([[1], [0]] * (n // 2)),
        "mask": torch.ones(n, 1, dtype=torch.bool), name: target.unsqueeze(1), **more,
    })  # fmt: skip


def test_only_the_action_taken_is_moved_and_the_error_is_0_where_the_target_is_met():
    logits = drawn(2, 3, 3).float()
    target = torch.stack((logits[0, 1].softmax(-1), torch.tensor([0.2, 0.3, 0.5])))
    role = Role(logits)
    mb = batch(target, "target_probs")
    loss, stats = CategoricalTd().loss(mb, SimpleNamespace(models={"policy": role}))
    loss.backward()
    grad = role.weight.grad
    assert torch.allclose(grad[0], torch.zeros(3, 3), atol=1e-6)  # met, and its other actions are not asked
    assert float(grad[1, 0].abs().sum()) > 0 and float(grad[1, 1:].abs().sum()) == 0
    error = mb["td_error"][:, 0]
    assert error[0].item() == pytest.approx(0, abs=1e-6) and error[1] > 0.01
    assert float(stats["q/error"]) == pytest.approx(float(error.abs().mean()))


def test_weights_of_a_draw_scale_each_rows_loss():
    target = drawn(2, 3, seed=3).softmax(-1).float()
    losses = []
    for weight in (None, torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])):
        more = {} if weight is None else {"weight_draw": weight}
        mb = batch(target, "target_probs", **more)
        losses.append(
            float(CategoricalTd().loss(mb, SimpleNamespace(models={"policy": Role(drawn(2, 3, 3).float())}))[0])
        )
    assert losses[0] == pytest.approx(losses[1] + losses[2]) and losses[1] != losses[2]


def test_quantile_learner_moves_the_mean_and_reports_by_how_much_it_misses():
    role = Role(torch.zeros(2, 2, 4))
    mb = batch(torch.tensor([[1.0, 3.0], [2.0, -4.0]]), "target_quantiles")
    loss, _ = QuantileTd().loss(mb, SimpleNamespace(models={"policy": role}))
    loss.backward()
    assert mb["td_error"][:, 0].tolist() == [-2.0, 1.0] and role.weight.grad[0, 1].sum() < 0
    with pytest.raises(ValueError, match="kappa"):
        QuantileTd(kappa=-1.0)


def test_the_loss_of_a_group_is_the_sum_of_its_members_and_names_the_one_that_breaks():
    target = drawn(4, 3, seed=2).softmax(-1).float()
    logits = drawn(4, 3, 3).float()
    ctx = SimpleNamespace(models={"policy": Role(logits)})
    loss, _ = EnsembleTd().loss(batch(target, "target_probs"), ctx)
    taken = logits[torch.arange(4), torch.tensor([1, 0, 1, 0])]
    rows = categorical_td(taken, target)
    assert float(loss) == pytest.approx(float(rows[:2].mean() + rows[2:].mean()), rel=1e-6)
    logits[3] = float("nan")
    with pytest.raises(NonFinite, match="member 1"):
        EnsembleTd().loss(batch(target, "target_probs"), SimpleNamespace(models={"policy": Role(logits)}))
    with pytest.raises(RecipeError, match="one role"):
        EnsembleTd(train=["a", "b"])
