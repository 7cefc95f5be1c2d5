import itertools

import numpy as np
import pytest

from gainstage.measure.audits.pass_at_k import pass_at_k, saturation_curve


def test_published_numbers():
    assert [pass_at_k(16, 3, k) for k in (1, 4, 8)] == pytest.approx([0.1875, 0.607143, 0.9], abs=1e-6)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 3), (6, 1, 4), (4, 0, 2), (4, 4, 1), (6, 3, 6)])
def test_equals_the_share_of_subsets_with_a_right_answer(n, c, k):
    subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(np.mean([max(subset) for subset in subsets]))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 2, 5), (4, 5, 1), (4, -1, 1), (4, 1, 0)])
def test_refuses_what_cannot_be_estimated(n, c, k):
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


def test_large_n_does_not_overflow():
    assert 0.0 < pass_at_k(100_000, 1, 1000) == pytest.approx(0.01)


def test_saturation_curve():
    rows = [[1, 0, 0, 0, 0, 0], [0] * 6]
    assert saturation_curve(rows) == pytest.approx({1: 1 / 12, 2: 1 / 6, 4: 1 / 3, 6: 0.5})
    with pytest.raises(ValueError, match="same number"):
        saturation_curve([[1], [1, 0]])
