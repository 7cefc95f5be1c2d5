"""BNPO: worked numbers, its special cases, the quantity it minimises, degenerate batches."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import integrate, stats
from tests.credit.helpers_credit import batch_of, context

from gainstage.credit.group.beta_normalized import BetaNormalized, beta_normalized, beta_weight, fit_beta


def rewards_at(rates: list[float], size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [[1.0] * round(p * size) + [0.0] * (size - round(p * size)) for p in rates]
    return torch.tensor(rows).flatten(), torch.arange(len(rates)).repeat_interleave(size)


def test_worked_numbers():
    r, keys = rewards_at([0.25, 0.5, 0.75, 0.5])
    advantage, fit = beta_normalized(r, keys)
    assert (fit["mu"], fit["a"], fit["b"]) == pytest.approx((0.5, 2.5, 2.5))
    assert fit["v"] == pytest.approx(0.041667, abs=1e-6)
    assert (fit["alpha"], fit["beta"]) == pytest.approx((1.833333, 1.833333), abs=1e-6)
    want = [0.667379, *[-0.222460] * 3, *[0.350079] * 2, *[-0.350079] * 2, *[0.222460] * 3, -0.667379]
    assert advantage[:12].tolist() == pytest.approx(want, abs=1e-6)


def test_weights_of_the_second_example_and_the_log_density():
    p = torch.tensor([0.2, 0.4, 0.4, 0.6, 0.9])
    _, _, alpha, beta = fit_beta(float(p.double().mean()), float(p.double().var()))
    assert (alpha, beta) == pytest.approx((1.428571, 1.428571), abs=1e-6)
    want = [0.978299, 0.822250, 0.822250, 0.822250, 1.251878]
    assert beta_weight(p, alpha, beta).tolist() == pytest.approx(want, abs=1e-6)
    assert beta_weight(torch.tensor(0.25), 1.833333, 1.833333).item() == pytest.approx(math.exp(-0.116716), abs=1e-6)


def test_a_flat_density_is_reinforce_with_group_mean_and_three_halves_is_grpo():
    p = torch.tensor([0.1, 0.5, 0.8], dtype=torch.float64)
    assert beta_weight(p, 1.0, 1.0).tolist() == pytest.approx([1.0] * 3)
    grpo = math.pi / 8 / (p * (1 - p)).sqrt()
    assert beta_weight(p, 1.5, 1.5).tolist() == pytest.approx(grpo.tolist())


def test_the_fitted_normaliser_minimises_the_expected_gradient_variance():
    prior = stats.beta(2, 3)

    def variance(alpha: float, beta: float) -> float:
        density = stats.beta(alpha, beta)
        return integrate.quad(lambda p: prior.pdf(p) * p * (1 - p) / density.pdf(p) ** 2, 0, 1)[0]

    mean, var = prior.mean(), prior.var()
    a, b, alpha, beta = fit_beta(mean, var)
    assert (a, b, alpha, beta) == pytest.approx((2, 3, 1.666667, 2), abs=1e-6)
    assert variance(alpha, beta) == pytest.approx(0.136687, abs=1e-5)
    assert variance(1, 1) == pytest.approx(0.2, abs=1e-5)
    assert variance(1.5, 1.5) == pytest.approx(0.154213, abs=1e-5)
    for step in (0.05, -0.05):
        assert variance(alpha + step, beta) > variance(alpha, beta)
        assert variance(alpha, beta + step) > variance(alpha, beta)


@pytest.mark.parametrize("rates", [[0.0, 0.0], [1.0, 1.0], [0.5, 0.5], [0.25]])
def test_without_spread_of_rates_it_is_the_group_mean_baseline(rates: list[float]):
    r, keys = rewards_at(rates)
    advantage, fit = beta_normalized(r, keys)
    assert (fit["alpha"], fit["beta"]) == (1.0, 1.0)
    assert advantage.tolist() == pytest.approx([x - rates[k] for x, k in zip(r.tolist(), keys.tolist(), strict=True)])


def test_sure_groups_have_advantage_exactly_zero_beside_infinite_weight():
    r, keys = rewards_at([0.0, 1.0, 0.5, 0.5, 0.5])
    advantage, fit = beta_normalized(r, keys)
    assert fit["alpha"] > 1 and fit["beta"] > 1
    assert beta_weight(torch.tensor([0.0, 1.0]), fit["alpha"], fit["beta"]).tolist() == pytest.approx([1e6, 1e6])
    assert advantage[:8].tolist() == [0.0] * 8
    assert bool(torch.isfinite(advantage).all())


def test_a_negative_concentration_is_clamped():
    r, keys = rewards_at([0.0, 1.0])
    _, fit = beta_normalized(r, keys)
    assert fit["a"] < 0 and (fit["alpha"], fit["beta"]) == (1.0, 1.0)


def test_rewards_outside_the_unit_interval_are_an_error_or_mapped():
    batch = batch_of([1] * 4, [-1.0, 1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=r"needs rewards in \[0, 1\], got -1 to 1"):
        BetaNormalized().estimate(batch, context())
    got = BetaNormalized(low=-1.0).estimate(batch, context())["advantage"]
    assert got.tolist() == pytest.approx([-0.75, 0.25, 0.25, 0.25])


def test_a_missing_reward_takes_no_part():
    r, keys = rewards_at([0.25, 0.5, 0.75])
    full, _ = beta_normalized(r, keys)
    with_gap, _ = beta_normalized(torch.cat((r, torch.tensor([math.nan]))), torch.cat((keys, torch.tensor([1]))))
    assert with_gap.tolist() == pytest.approx([*full.tolist(), 0.0])


def test_several_parts_are_normalised_one_by_one_never_their_sum():
    right, keys = rewards_at([0.25, 0.5, 0.75, 0.5])
    form, _ = rewards_at([1.0, 0.75, 0.5, 1.0])
    batch = batch_of([1] * 16, (right + form).tolist(), keys.tolist(), parts__right=right, parts__form=form)
    want = 0.5 * beta_normalized(right, keys)[0] + 0.5 * beta_normalized(form, keys)[0]
    ctx = context()
    assert BetaNormalized(parts=["right", "form"]).estimate(batch, ctx)["advantage"].tolist() == pytest.approx(
        want.tolist()
    )
    assert ctx.logged["beta_normalized/right/alpha"] == pytest.approx(1.833333, abs=1e-6)
    weighted = BetaNormalized(parts=["right", "form"], weights={"right": 1.0, "form": 0.0}).estimate(batch, ctx)
    assert weighted["advantage"].tolist() == pytest.approx(beta_normalized(right, keys)[0].tolist())


def test_smoothed_moments_follow_the_past_and_survive_a_checkpoint():
    first, second = rewards_at([0.25, 0.75]), rewards_at([0.5, 0.5])
    batches = [batch_of([1] * 8, r.tolist(), k.tolist()) for r, k in (first, second)]
    entry, ctx = BetaNormalized(ema=0.5), context()
    entry.estimate(batches[0], ctx)
    resumed = BetaNormalized(ema=0.5)
    resumed.load_state_dict(entry.state_dict())
    for component in (entry, resumed):
        component.estimate(batches[1], ctx)
        assert ctx.logged["beta_normalized/reward/v"] == pytest.approx(0.125 / 2)
    alone = context()
    BetaNormalized().estimate(batches[1], alone)
    assert alone.logged["beta_normalized/reward/v"] == 0.0


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="low must be below high"):
        BetaNormalized(low=1.0, high=1.0)
    with pytest.raises(ValueError, match="weights names"):
        BetaNormalized(parts=["a"], weights={"b": 1.0})
    with pytest.raises(ValueError, match="samples must be 2 or more"):
        BetaNormalized().check_plan(1)


def test_a_fit_to_few_problems_warns_unless_it_is_smoothed(recwarn):
    r, keys = rewards_at([0.25, 0.5, 0.75])
    few = batch_of([1] * len(r), r.tolist(), keys.tolist())
    with pytest.warns(UserWarning, match="fewer than 8 problems"):
        BetaNormalized().estimate(few, context())
    recwarn.clear()
    BetaNormalized(ema=0.5).estimate(few, context())
    r, keys = rewards_at([0.25, 0.5] * 4)
    BetaNormalized().estimate(batch_of([1] * len(r), r.tolist(), keys.tolist()), context())
    assert not recwarn.list
