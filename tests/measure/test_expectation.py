import pytest

from gainstage.measure.expectation import AGAINST, AS_CLAIMED, EXPECTATIONS, UNDECIDED, outcome
from gainstage.measure.intervals import PairedDifference, paired_difference


def interval(low, high):
    return PairedDifference((low + high) / 2, low, high, 5)


@pytest.mark.parametrize(
    ("expected", "low", "high", "says"),
    [
        ("higher", 0.01, 0.04, AS_CLAIMED),
        ("higher", -0.01, 0.04, UNDECIDED),
        ("higher", -0.04, -0.01, AGAINST),
        ("lower", -0.04, -0.01, AS_CLAIMED),
        ("lower", 0.01, 0.04, AGAINST),
        ("not lower", -0.04, 0.2, AS_CLAIMED),  # not worse by more than the margin
        ("not lower", -0.06, 0.2, UNDECIDED),  # no difference shown is no proof of equality
        ("not lower", -0.2, -0.06, AGAINST),
        ("not lower", -0.04, -0.01, AS_CLAIMED),  # a loss, and too small to matter
        ("not higher", -0.2, 0.04, AS_CLAIMED),
        ("not higher", 0.06, 0.2, AGAINST),
        ("equal", -0.04, 0.04, AS_CLAIMED),
        ("equal", -0.04, 0.06, UNDECIDED),
        ("equal", 0.06, 0.08, AGAINST),
        ("equal", -0.08, -0.06, AGAINST),
        ("open", 0.5, 0.6, ""),
    ],
)
def test_what_an_interval_says_of_a_claim(expected, low, high, says):
    assert outcome(expected, interval(low, high), 0.05) == says


@pytest.mark.parametrize("expected", [e for e in EXPECTATIONS if e != "open"])
def test_without_an_interval_nothing_is_decided(expected):
    assert outcome(expected, None, 0.05) == UNDECIDED
    assert outcome(expected, paired_difference([0.9], [0.1]), 0.05) == UNDECIDED


@pytest.mark.parametrize("expected", [e for e in EXPECTATIONS if e != "open"])
def test_scores_alike_in_every_pair_bear_out_what_claims_no_difference(expected):
    says = UNDECIDED if expected in ("higher", "lower") else AS_CLAIMED
    assert outcome(expected, paired_difference([5.0, 3.0, 4.0], [5.0, 3.0, 4.0]), 0.05) == says
    assert outcome(expected, paired_difference([5.0, 3.0], [5.0, 3.0]), 0.05) == UNDECIDED


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="not lower"):
        outcome("better", interval(0, 1), 0.05)
    with pytest.raises(ValueError, match="margin"):
        outcome("equal", interval(0, 1), -0.1)
