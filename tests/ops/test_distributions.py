"""Distributions over actions: squashed, clipped, discrete; entropies and divergences against other ways to get them."""

from __future__ import annotations

import math

import pytest
import torch

from gainstage.ops.distributions import (
    Categorical,
    Gaussian,
    MultiBernoulli,
    MultiCategorical,
    TanhGaussian,
    held,
    log_squash,
)
from gainstage.policies.control.action_heads import ActionHead
from gainstage.registry import RecipeError
from gainstage.types.spaces import Box, Discrete, MultiBinary, MultiDiscrete

ZERO = torch.zeros(1, 1)


def test_a_squashed_action_has_the_density_of_the_squashed_one():
    """Raw sample 1 of a standard normal: -0.55138 in tanh's own units, less ln 2 where the bounds are +-2."""
    dist = TanhGaussian(ZERO, ZERO)
    got = float(dist.log_prob(torch.ones(1, 1)))
    assert got == pytest.approx(-0.55138, abs=1e-5) and got - math.log(2) == pytest.approx(-1.24452, abs=1e-5)
    head = ActionHead(4, Box.of(-2, 2, (1,)), "tanh")
    assert float(head.to_env(torch.ones(1, 1))) == pytest.approx(1.52319, abs=1e-5)


def test_far_outside_it_is_still_exact():
    dist = TanhGaussian(torch.full((1, 1), 10.0), ZERO)
    raw = torch.full((1, 1), 10.0, requires_grad=True)
    assert float(log_squash(raw.detach())) == pytest.approx(-18.6137, abs=1e-4)
    logp = dist.log_prob(raw)
    assert float(logp.detach()) == pytest.approx(17.6948, abs=1e-4)
    assert bool(torch.isfinite(torch.autograd.grad(logp.sum(), raw)[0]).all())
    assert bool(torch.isfinite(dist.log_prob(torch.tensor([[-60.0]]))).all())


def test_a_clipped_action_is_kept_as_it_was_drawn():
    head = ActionHead(4, Box.of(-1, 1, (1,)), "gaussian")
    drawn = torch.full((1, 1), 2.5)
    assert float(head.to_env(drawn)) == 1.0
    dist = Gaussian(ZERO, ZERO)
    assert float(dist.log_prob(drawn)) == pytest.approx(-4.04394, abs=1e-5)
    ratio = (dist.log_prob(head.to_env(drawn)) - dist.log_prob(drawn)).exp()
    assert float(ratio) == pytest.approx(13.80, abs=0.01), (
        "what storing the clipped action would make of the first ratio"
    )


@pytest.mark.parametrize("seed", range(3))
def test_densities_of_squashed_normals_sum_to_one(seed: int):
    torch.manual_seed(seed)
    dist = TanhGaussian(torch.randn(1, 1).double(), torch.randn(1, 1).double() * 0.3)
    raw = torch.linspace(-12, 12, 200_001, dtype=torch.float64).unsqueeze(1)
    squashed = torch.tanh(raw).squeeze(1)
    assert float(torch.trapezoid(dist.log_prob(raw).exp(), squashed)) == pytest.approx(1.0, abs=1e-5)


PAIRS = [
    (Categorical(torch.randn(4, 5)), Categorical(torch.randn(4, 5))),
    (MultiCategorical(torch.randn(4, 5), (2, 3)), MultiCategorical(torch.randn(4, 5), (2, 3))),
    (MultiBernoulli(torch.randn(4, 3)), MultiBernoulli(torch.randn(4, 3))),
    (Gaussian(torch.randn(4, 2), torch.randn(2) * 0.3), Gaussian(torch.randn(4, 2), torch.randn(2) * 0.3)),
]


@pytest.mark.parametrize(("p", "q"), PAIRS, ids=lambda d: type(d).__name__)
def test_entropy_and_divergence_equal_those_of_samples(p, q):
    """Over 20,000 samples, within five standard errors."""
    torch.manual_seed(3)
    drawn = torch.stack([p.sample() for _ in range(20_000)])
    own, other = (torch.stack([d.log_prob(a) for a in drawn]) for d in (p, q))
    for exact, samples in ((p.entropy(), -own), (p.kl(q), own - other)):
        error = samples.std(0) / math.sqrt(len(samples))
        assert bool(((samples.mean(0) - exact).abs() < 5 * error + 1e-6).all())
    assert bool((p.kl(q) > 0).all()) and float(p.kl(held(p)).abs().max()) < 1e-6


def test_choices_that_are_not_allowed_are_never_drawn_and_cost_nothing():
    logits = torch.tensor([[0.0, -torch.inf, 0.0]])
    dist = Categorical(logits)
    assert 1 not in {int(dist.sample()) for _ in range(200)}
    assert float(dist.entropy()) == pytest.approx(math.log(2)) and bool(torch.isfinite(dist.kl(dist)).all())


def test_draws_have_the_frequencies_of_the_logits():
    torch.manual_seed(1)
    dist = Categorical(torch.tensor([0.2, 0.3, 0.5]).log().expand(30_000, 3))
    shares = torch.bincount(dist.sample(), minlength=3) / 30_000
    assert shares.tolist() == pytest.approx([0.2, 0.3, 0.5], abs=0.012)


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete((2, 3)), MultiBinary(4), Box.of(-1, 1, (2,))])
@pytest.mark.parametrize("lead", [(5,), (2, 3)])
def test_heads_serve_every_space_at_any_number_of_axes(space, lead):
    dist = ActionHead(6, space)(torch.randn(*lead, 6))
    action = dist.sample()
    assert tuple(action.shape) == (*lead, *space.shape)
    assert dist.log_prob(action).shape == dist.entropy().shape == torch.Size(lead)
    assert dist.log_prob(dist.mode()).shape == torch.Size(lead)


def test_heads_that_do_not_fit_say_so():
    with pytest.raises(RecipeError, match=r"head tanh is for continuous actions; Discrete\(3\) takes head: auto"):
        ActionHead(4, Discrete(3), "tanh")
    with pytest.raises(RecipeError, match="head tanh needs an action space with finite bounds"):
        ActionHead(4, Box.of(-math.inf, math.inf, (2,)), "tanh")
