"""Evolution strategies: what a generation is, which way it moves, and that it goes on from a saved state."""

from __future__ import annotations

import pytest
import torch

from gainstage.update.optimizers.evolution import PGPE, OpenES, shaped


def test_fitness_in_units_of_its_own():
    assert torch.allclose(shaped(torch.tensor([1.0, 3.0])), torch.tensor([-1.0, 1.0]).double())
    assert torch.allclose(shaped(torch.tensor([5.0, 1.0, 9.0]), "rank"), torch.tensor([0.0, -0.5, 0.5]).double())
    assert torch.allclose(shaped(torch.tensor([2.0, 2.0, 9.0]), "rank"), torch.tensor([-0.25, -0.25, 0.5]).double())
    assert not shaped(torch.full((4,), 0.1)).any()


def test_a_member_without_a_number_is_the_worst():
    f = shaped(torch.tensor([1.0, torch.nan, 3.0, torch.inf]))
    assert f[1] == f[0] == f[3] == f.min()
    with pytest.raises(ValueError, match="no member"):
        shaped(torch.full((2,), torch.nan))


def test_a_generation_is_mirrored_and_repeats():
    es = OpenES(torch.tensor([1.0, 2.0, 3.0]), population=6, std=0.5)
    members = es.ask()
    assert members.shape == (6, 3)
    assert torch.allclose(members[:3] + members[3:], 2 * es.mean.expand(3, 3))
    assert torch.equal(members, es.ask())
    es.tell(torch.arange(6.0))
    assert not torch.equal(members - members.mean(0), es.ask() - es.ask().mean(0))


def test_the_first_step_is_adams_along_the_estimated_gradient():
    es = OpenES(torch.zeros(4), population=8, std=0.1, lr=0.01)
    z = es.directions()
    fitness = es.ask() @ torch.tensor([1.0, -1.0, 0.5, 0.0])
    plus, minus = shaped(fitness).float().chunk(2)
    gradient = ((plus - minus) @ z) / (8 * 0.1)
    es.tell(fitness)
    assert torch.allclose(es.mean, 0.01 * gradient.sign(), atol=1e-5)


def test_equal_fitness_moves_nothing():
    for kind in (OpenES, PGPE):
        es = kind(torch.ones(3), population=4)
        es.tell(torch.full((4,), 7.0))
        assert torch.equal(es.mean, torch.ones(3)) and torch.equal(es.std, torch.full((3,), 0.05))


@pytest.mark.parametrize("kind", [OpenES, PGPE])
@pytest.mark.parametrize("fitness", ["z", "rank"])
def test_finds_the_top_of_a_hill(kind, fitness):
    top = torch.tensor([1.0, -2.0, 0.5])
    es = kind(torch.zeros(3), population=16, std=0.2, lr=0.1, fitness=fitness)
    for _ in range(150):
        es.tell(-(es.ask() - top).square().sum(1))
    assert (es.mean - top).norm() < 0.15


def test_pgpe_narrows_where_it_is_steep():
    es = PGPE(torch.zeros(2), population=64, std=1.0, lr=1e-4, std_lr=0.3)
    for _ in range(40):
        es.tell(-(es.ask()[:, 0] * 10).square())
    assert es.std[0] < 0.5 * es.std[1]


@pytest.mark.parametrize("kind", [OpenES, PGPE])
def test_goes_on_bit_for_bit(kind):
    def worth(x: torch.Tensor) -> torch.Tensor:
        return -x.square().sum(1)

    whole, first = kind(torch.ones(5)), kind(torch.ones(5))
    for _ in range(3):
        whole.tell(worth(whole.ask()))
        first.tell(worth(first.ask()))
    second = kind(torch.zeros(5))
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        whole.tell(worth(whole.ask()))
        second.tell(worth(second.ask()))
    assert torch.equal(whole.mean, second.mean) and torch.equal(whole.std, second.std)


@pytest.mark.parametrize("settings", [{"population": 5}, {"population": 0}, {"std": 0.0}, {"lr": -1.0}])
def test_wrong_settings_are_refused(settings):
    with pytest.raises(ValueError, match="evolution"):
        OpenES(torch.zeros(2), **settings)
    with pytest.raises(ValueError, match="as many numbers"):
        OpenES(torch.zeros(2)).tell(torch.zeros(3))
