"""Divergences: worked numbers, bounds, gradients, and unbiased samples."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gainstage.ops.divergences import full_kl, jsd, kl_estimate, total_variation


def test_worked_numbers_of_k3():
    pi, ref = torch.tensor([0.5, 0.25]).log(), torch.tensor([0.4, 0.3]).log()
    k3 = kl_estimate(pi, ref, "k3")
    assert k3.tolist() == pytest.approx([0.023144, 0.017678], abs=1e-6)
    assert k3.mean().item() == pytest.approx(0.020411, abs=1e-6)


@given(st.floats(-5, 0), st.floats(-5, 0))
def test_estimates_by_their_formulas(p: float, q: float):
    logp, logq = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)
    assert kl_estimate(logp, logq, "k1").item() == pytest.approx(p - q)
    assert kl_estimate(logp, logq, "k2").item() == pytest.approx(0.5 * (p - q) ** 2)
    assert kl_estimate(logp, logq, "k3").item() == pytest.approx(math.exp(q - p) - (q - p) - 1, abs=1e-9)
    assert kl_estimate(logp, logq, "k3").item() >= 0


def test_k1_and_k3_are_unbiased():
    p, q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    exact = (p * (p / q).log()).sum()
    assert full_kl(p.log(), q.log()).item() == pytest.approx(exact.item())
    for kind in ("k1", "k3"):
        assert (p * kl_estimate(p.log(), q.log(), kind)).sum().item() == pytest.approx(exact.item())


def test_the_gradient_of_k1_has_mean_zero_and_that_of_k2_is_the_kl_s():
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    logq = torch.log_softmax(torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64), 0)
    p = torch.softmax(logits, 0).detach()
    (want,) = torch.autograd.grad(full_kl(torch.log_softmax(logits, 0), logq), logits)
    for kind, right in (("k1", torch.zeros(3, dtype=torch.float64)), ("k2", want)):
        (got,) = torch.autograd.grad((p * kl_estimate(torch.log_softmax(logits, 0), logq, kind)).sum(), logits)
        torch.testing.assert_close(got, right, atol=1e-12, rtol=0)


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")  # type: ignore[arg-type]


def test_worked_numbers_of_the_jensen_shannon_divergence():
    p, q = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]]), torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2]])
    assert jsd(p.log(), q.log()).tolist() == pytest.approx([0.021901, 0.027058], abs=1e-6)


def test_impossible_outcomes_are_zero_and_bounds_are_reached():
    p, q = torch.tensor([1.0, 0.0]).log(), torch.tensor([0.0, 1.0]).log()
    assert full_kl(p, torch.tensor([0.5, 0.5]).log()).item() == pytest.approx(math.log(2))
    assert full_kl(p, q).item() == math.inf
    assert full_kl(p, p).item() == 0.0
    assert jsd(p, q).item() == pytest.approx(math.log(2))
    assert total_variation(p, q).item() == 1.0
    assert total_variation(torch.tensor([0.7, 0.3]).log(), torch.tensor([0.4, 0.6]).log()).item() == pytest.approx(0.3)


def test_gradients_stay_finite_where_an_outcome_is_impossible():
    logp = torch.tensor([math.log(0.5), math.log(0.5), -math.inf], requires_grad=True)
    full_kl(logp, torch.tensor([0.2, 0.3, 0.5]).log()).backward()
    assert logp.grad is not None and bool(torch.isfinite(logp.grad).all())


def test_jsd_leans_to_either_kl_at_the_ends_of_beta():
    p, q = torch.tensor([0.7, 0.3], dtype=torch.float64).log(), torch.tensor([0.4, 0.6], dtype=torch.float64).log()
    assert (jsd(p, q, 1e-6) / 1e-6).item() == pytest.approx(full_kl(p, q).item(), rel=1e-4)
    assert (jsd(p, q, 1 - 1e-6) / 1e-6).item() == pytest.approx(full_kl(q, p).item(), rel=1e-4)
    with pytest.raises(ValueError, match="beta"):
        jsd(p, q, 1.0)
