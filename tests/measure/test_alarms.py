"""Guards between the reward that is trained on and the truth."""

import random

import pytest
from scipy import stats

from gainstage.measure.audits.alarms import AlignmentGuard, proxy_gap, rank_correlation


def test_rank_correlation_is_spearmans():
    rng = random.Random(0)
    for _ in range(20):
        a = [rng.randint(0, 5) for _ in range(15)]
        b = [rng.randint(0, 5) for _ in range(15)]
        assert rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert rank_correlation([1, 2, 3], [10, 20, 400]) == pytest.approx(1)
    assert rank_correlation([1, 1], [1, 2]) is None
    with pytest.raises(ValueError, match="values"):
        rank_correlation([1], [1, 2])


def test_the_guard_halves_what_does_not_rank_as_the_truth_does():
    guard = AlignmentGuard(window=10)
    seen = [guard.see(float(i), float(i)) for i in range(10)]
    assert seen[-1] == pytest.approx(1) and guard.weight == 1 and seen[:9] == [None] * 9
    for i in range(10):
        guard.see(float(i), -float(i))
    assert guard.weight == 0.5
    for _ in range(10):
        guard.see(1.0, 0.0)
    assert guard.weight == 0.25, "a reward that does not vary ranks nothing"


def test_the_guard_goes_on_from_its_state():
    a, b = AlignmentGuard(window=6), AlignmentGuard(window=6)
    for i in range(4):
        a.see(i, -i)
    b.load_state_dict(a.state_dict())
    for i in range(4, 6):
        assert a.see(i, -i) == b.see(i, -i)
    assert a.weight == b.weight == 0.5
    with pytest.raises(ValueError, match="window"):
        AlignmentGuard(window=1)


@pytest.mark.parametrize(
    ("proxy", "truth", "want"),
    [([0.1, 0.2, 0.4], [0.5, 0.5, 0.5], True), ([0.1, 0.2, 0.4], [0.5, 0.6, 0.7], False),
     ([0.4, 0.4, 0.4], [0.5, 0.5, 0.4], False), ([0.1, 0.4], [0.5, 0.4], False),
     ([0.1, 0.2, 0.4], [0.5, 0.9, 0.3], True)],
)  # fmt: skip
def test_a_proxy_that_rises_alone(proxy, truth, want):
    assert proxy_gap(proxy, truth) is want


def test_proxy_gap_wants_pairs():
    with pytest.raises(ValueError, match="proxy_gap"):
        proxy_gap([1.0], [1.0, 2.0])
