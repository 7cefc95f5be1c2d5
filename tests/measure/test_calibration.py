"""Calibration, abstention and the gate, against worked numbers."""

import numpy as np
import pytest

from gainstage.measure.audits.calibration import (
    Gate,
    brier,
    calibration,
    calibration_error,
    majority,
    risk_coverage,
    shared_attempts,
)

CONFIDENCE = [0.95, 0.9, 0.85, 0.6, 0.55, 0.3]
CORRECT = [True, False, True, True, False, False]


def test_worked_numbers():
    assert calibration_error(CONFIDENCE, CORRECT) == pytest.approx(0.375)
    assert brier(CONFIDENCE, CORRECT) == pytest.approx(0.231250)
    risks = [0, 0.5, 1 / 3, 0.25, 0.4, 0.5]
    assert risk_coverage(CONFIDENCE, CORRECT) == pytest.approx(risks)
    found = calibration(CONFIDENCE, CORRECT)
    assert (found.ece, found.brier, found.aurc) == pytest.approx((0.375, 0.23125, 0.330556), abs=1e-6)
    assert found.hallucination == 0.5 and found.abstention == 0 and found.attempt_rate == 1


def test_bins_are_closed_on_the_left():
    """0.9 falls into the last bin together with 0.95; closed on the right it would not, and give 0.208333."""
    assert calibration_error([0.9, 0.95], [False, True]) == pytest.approx(abs(0.5 - 0.925))
    assert calibration_error([0.3, 0.1 * 3], [True, False]) == pytest.approx(0.2)  # 0.30000000000000004 is 0.3
    assert calibration_error([1.0, 0.0], [True, False]) == 0.0


def test_a_calibrated_source_has_a_small_error_and_the_order_does_not_matter():
    rng = np.random.default_rng(0)
    conf = rng.uniform(size=20_000)
    right = rng.uniform(size=20_000) < conf
    assert calibration_error(conf, right) < 0.02
    assert calibration_error(np.full(20_000, 0.99), right) == pytest.approx(0.99 - right.mean())
    turn = rng.permutation(20_000)
    assert calibration_error(conf[turn], right[turn]) == pytest.approx(calibration_error(conf, right))


def test_risk_falls_where_confidence_ranks_well_and_ties_keep_their_order():
    assert risk_coverage([0.9, 0.8, 0.1], [True, True, False]) == pytest.approx([0, 0, 1 / 3])
    assert risk_coverage([0.5, 0.5], [False, True]) == pytest.approx([1, 0.5])
    assert risk_coverage([0.5, 0.5], [True, False]) == pytest.approx([0, 0.5])


def test_abstentions_are_left_out_of_the_error_but_counted():
    found = calibration([0.9, 0.2, 0.7, 9.0], [True, False, False, False], [True, True, False, False])
    assert found.answers == 4 and found.attempts == 2 and found.abstention == 0.5 and found.hallucination == 0.5
    assert found.ece == pytest.approx((0.1 + 0.2) / 2)


def test_without_an_attempt_there_is_no_error_to_speak_of():
    found = calibration([0.5, 0.5], [False, False], [False, False])
    assert found.ece is found.brier is found.aurc is found.hallucination is None
    assert found.abstention == 1


def test_shared_attempts_compare_on_the_same_problems():
    """The second model looks calibrated only because it declines what it would get wrong."""
    bold = ([0.9, 0.9, 0.9, 0.9], [True, True, False, False], [True] * 4)
    shy = ([0.9, 0.9, 0.9, 0.9], [True, True, False, False], [True, True, False, False])
    assert calibration(*bold).ece == pytest.approx(0.4) and calibration(*shy).ece == pytest.approx(0.1)
    left, right = shared_attempts(bold, shy)
    assert left.ece == right.ece == pytest.approx(0.1) and left.answers == 2
    with pytest.raises(ValueError, match="no problem that both"):
        shared_attempts(([0.9], [True], [True]), ([0.9], [True], [False]))
    with pytest.raises(ValueError, match="same ones"):
        shared_attempts(([0.9], [True], [True]), ([], [], []))


@pytest.mark.parametrize(
    ("answers", "want"),
    [
        (["7", "7", "8", None], ("7", 0.5)),
        (["8", "7", "7", "8"], ("8", 0.5)),
        ([None, None], (None, 0.0)),
        ([], (None, 0.0)),
        (["x"], ("x", 1.0)),
    ],
)
def test_majority_share(answers, want):
    assert majority(answers) == want


@pytest.mark.parametrize(
    ("conf", "right"), [([0.5], [True, False]), ([], []), ([1.2], [True]), ([-0.1], [True]), ([float("nan")], [True])]
)
def test_what_is_no_confidence_is_refused(conf, right):
    for function in (calibration_error, brier, risk_coverage, calibration):
        with pytest.raises(ValueError):
            function(conf, right)


def test_the_gate_needs_both_a_worse_error_and_no_gain():
    gate = Gate()
    start = (0.50, 0.10)
    assert not gate.closed([start])
    assert gate.closed([start, (0.505, 0.16)])
    assert not gate.closed([start, (0.52, 0.16)]), "accuracy still rises"
    assert not gate.closed([start, (0.40, 0.15)]), "the error rose by no more than the tolerance"
    assert gate.closed([start, (0.60, 0.30), (0.60, 0.30)]), "the gain is counted from the look before"
    assert gate.closed([start, (0.60, 0.11), (0.60, 0.16)]), "the error is counted from the start"


def test_the_gate_keeps_the_best_of_accuracy_and_error():
    looks = [(0.5, 0.1), (0.7, 0.2), (0.75, 0.3)]
    assert Gate().best(looks) == 1 and Gate(weight=0).best(looks) == 2 and Gate(weight=5).best(looks) == 0
    assert Gate().best([(0.5, 0.1), (0.5, 0.1)]) == 0
    with pytest.raises(ValueError, match="no look"):
        Gate().best([])
    with pytest.raises(ValueError, match="tolerance must be"):
        Gate(tolerance=-1)
