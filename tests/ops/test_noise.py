"""Stateless noise: stable, uniform, independent across keys and positions."""

import math

import pytest
import torch

from gainstage.ops.noise import mix, signed, uniform


def test_mix_is_stable_across_versions_and_processes():
    assert mix(0, 1, 2, 3) == 5902417529459800947
    assert mix("rollout", 5) == 4497811931063969182


def test_mix_separates_what_differs():
    seen = [mix(), mix(0), mix("0"), mix(0, 0), mix(1, 2), mix(2, 1), mix(12), mix("a", "b"), mix("ab"), mix(-1)]
    assert len(set(seen)) == len(seen)
    assert all(0 <= value < 2**63 for value in seen)


def test_mix_refuses_other_types():
    with pytest.raises(TypeError, match="float"):
        mix(1.0)


def test_signed_keeps_the_low_bits():
    assert signed(2**64 - 1) == -1
    assert signed(2**63) == -(2**63)
    assert signed(5) == 5 and signed(-5) == -5


def chi_square(values, cells):
    """Standardised chi-square statistic of uniformity over `cells`."""
    counts = torch.bincount((values * cells).long(), minlength=cells).double()
    expected = len(values) / cells
    return float(((counts - expected) ** 2 / expected).sum() - (cells - 1)) / math.sqrt(2 * (cells - 1))


NEIGHBOURS = torch.arange(200_000)
HASHED = torch.tensor([mix(0, 1, g, s) for g in range(250) for s in range(8)])


@pytest.mark.parametrize("position", [0, 1, 77])
def test_neighbouring_keys_are_uniform_and_uncorrelated(position):
    values = uniform(NEIGHBOURS, position)
    assert abs(chi_square(values, 1000)) < 4
    for lag in (1, 2, 7):
        pairs = (values[:-lag] * 32).long() * 32 + (values[lag:] * 32).long()
        assert abs(chi_square(pairs.double() / 1024 + 1e-9, 1024)) < 4


@pytest.mark.parametrize("key", [0, 1, -1, 2**62, mix(3, 4)])
def test_positions_of_one_key_are_uniform_and_uncorrelated(key):
    values = uniform(torch.tensor([key]), torch.arange(200_000))
    assert abs(chi_square(values, 1000)) < 4
    pairs = (values[:-1] * 32).long() * 32 + (values[1:] * 32).long()
    assert abs(chi_square(pairs.double() / 1024 + 1e-9, 1024)) < 4


def test_streams_of_neighbouring_keys_are_not_shifted_copies():
    streams = uniform(torch.arange(64).unsqueeze(1), torch.arange(256))
    assert len(torch.unique(streams)) == streams.numel()
    centred = streams - 0.5
    correlation = (centred @ centred.T) * 12 / 256
    off_diagonal = correlation[~torch.eye(64, dtype=torch.bool)]
    assert off_diagonal.abs().max() < 5 / math.sqrt(256)


def test_a_draw_depends_on_its_key_and_position_alone():
    grid = uniform(HASHED.unsqueeze(1), torch.arange(40))
    order = torch.randperm(len(HASHED), generator=torch.Generator().manual_seed(0))
    for position in (0, 13, 39):
        assert torch.equal(uniform(HASHED[order], position), grid[order, position])
    assert torch.equal(uniform(HASHED[:3], torch.tensor([5, 6, 7])), grid[[0, 1, 2], [5, 6, 7]])


def test_values_lie_inside_the_open_interval():
    values = uniform(torch.arange(1_000_000), 3)
    assert values.dtype == torch.float64
    assert bool((values > 0).all() and (values < 1).all())
    assert values.min() < 1e-5 and values.max() > 1 - 1e-5
