"""Weights of recorded episodes: worked numbers, degenerate sets, draws."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch

from gainstage.select.replay.trajectory_weights import (
    TopEpisodes,
    TrajectoryWeights,
    return_statistics,
    start_advantage,
    top_fraction,
    trajectory_weights,
    transition_probs,
)

G, T = torch.tensor([0.0, 1, 2, 10]), torch.tensor([2, 2, 1, 1])


def close(found, wanted):
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=found.dtype), rtol=0, atol=1e-6)


def test_weights_by_return():
    w = trajectory_weights(G, 0.5)
    p = transition_probs(w, T)
    close(p[[0, 2, 4, 5]], [0.075054, 0.091672, 0.111968, 0.554580])
    assert float(p.sum()) == pytest.approx(1)
    mass = w * T / (w * T).sum()
    close(mass, [0.150109, 0.183343, 0.111968, 0.554580])
    found = return_statistics(G, T, w)
    assert found["mean"] == 3.25 and found["induced_return"] == pytest.approx(7.034194, abs=1e-6)
    assert found["psv"] == pytest.approx(11.390625) and found["psv_scaled"] == pytest.approx(0.11390625)
    assert found["largest_mass"] == pytest.approx(0.554580, abs=1e-6)
    sharp = trajectory_weights(G, 0.1)
    close(sharp * T / (sharp * T).sum(), [0.000091, 0.000247, 0.000335, 0.999327])


def test_weights_by_advantage():
    a = start_advantage(G, torch.tensor([[0.0], [1], [0], [1]]))
    close(a, [-1, -4.5, 1, 4.5])
    w = trajectory_weights(a, 0.5)
    close(w * T / (w * T).sum(), [0.254026, 0.116706, 0.198093, 0.431175])


def test_starts_that_do_not_differ_leave_the_return():
    a = start_advantage(G, torch.full((4, 1), 0.7))
    torch.testing.assert_close(a, G.double() - G.double().mean())
    torch.testing.assert_close(trajectory_weights(a, 0.3), trajectory_weights(G, 0.3))


def test_too_few_episodes_fall_back_to_the_return():
    with pytest.warns(UserWarning, match="too few"):
        a = start_advantage(G, torch.randn(4, 3))
    assert torch.equal(a, G.double())


def test_degenerate_sets():
    assert torch.equal(trajectory_weights(torch.full((3,), 2.0), 0.1), torch.ones(3, dtype=torch.float64))
    assert torch.equal(trajectory_weights(torch.tensor([5.0]), 0.1), torch.ones(1, dtype=torch.float64))
    nearly = trajectory_weights(G, 1e6)
    torch.testing.assert_close(nearly, torch.ones(4, dtype=torch.float64), rtol=0, atol=2e-6)
    uniform = return_statistics(G, T, torch.ones(4))
    assert uniform["ess"] == pytest.approx(6) and uniform["induced_return"] == uniform["mean"]
    with pytest.raises(ValueError, match="episode 2 is not finite"):
        trajectory_weights(torch.tensor([0.0, 1, float("nan")]), 0.1)
    with pytest.raises(ValueError, match="alpha"):
        trajectory_weights(G, 0.0)


def test_top_fraction_keeps_the_earlier_of_equals():
    assert top_fraction(torch.tensor([1.0, 3, 3, 2]), 0.25).tolist() == [0, 1, 0, 0]
    assert top_fraction(torch.tensor([1.0, 3, 3, 2]), 0.3).tolist() == [0, 1, 1, 0]  # ceil(1.2) = 2
    assert top_fraction(G, 1.0).tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="share"):
        top_fraction(G, 0.0)


class Store:
    lengths = T

    def returns(self):
        return G

    def at(self, name, step, row):
        return torch.tensor([[0.0], [1], [0], [1]])[row]


def choose(part, n=60_000):
    logged = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index = part.choose(Store(), n, SimpleNamespace(log=logged.__setitem__))
    assert bool((index.step < T[index.row]).all() and (index.step >= 0).all())
    return torch.bincount(index.row, minlength=4) / n, index, logged


def test_draws_follow_the_weights():
    share, index, logged = choose(TrajectoryWeights(alpha=0.5))
    torch.testing.assert_close(share, torch.tensor([0.150109, 0.183343, 0.111968, 0.554580]), rtol=0, atol=0.01)
    first = index.step[index.row == 0]
    assert float((first == 0).float().mean()) == pytest.approx(0.5, abs=0.02)  # alike within an episode
    assert logged["data/psv"] == pytest.approx(11.390625)
    share, _, _ = choose(TrajectoryWeights(alpha=0.5, score="advantage"))
    torch.testing.assert_close(share, torch.tensor([0.254026, 0.116706, 0.198093, 0.431175]), rtol=0, atol=0.01)
    share, _, _ = choose(TopEpisodes(share=0.5))
    torch.testing.assert_close(share, torch.tensor([0.0, 0.0, 0.5, 0.5]), rtol=0, atol=0.02)


def test_too_sharp_weights_are_said():
    with pytest.warns(UserWarning, match="alpha 0.01 is too small"):
        TrajectoryWeights(alpha=0.01).choose(Store(), 32, SimpleNamespace(log=lambda *a: None))
    with pytest.raises(ValueError, match="raise alpha"):
        TrajectoryWeights(alpha=0.01, strict=True).choose(Store(), 32, SimpleNamespace(log=lambda *a: None))


def test_a_store_without_episodes_is_refused():
    with pytest.raises(ValueError, match="offline or windows"):
        TopEpisodes().choose(object(), 4, None)
