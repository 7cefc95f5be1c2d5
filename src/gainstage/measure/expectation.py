"""Whether a measured difference bears a claim out: superiority by the interval, equality by a margin."""

from __future__ import annotations

from gainstage.measure.intervals import PairedDifference

AS_CLAIMED, AGAINST, UNDECIDED = "as claimed", "against the claim", "undecided"
OUTCOMES = (AS_CLAIMED, AGAINST, UNDECIDED)
OPEN = "open"
EXPECTATIONS = ("higher", "lower", "not lower", "not higher", "equal", OPEN)


def outcome(expected: str, difference: PairedDifference | None, margin: float) -> str:
    """What an interval says of a claim; empty where the claim says nothing.

    `higher` and `lower` need an interval beyond zero on that side. `not lower`, `not higher` and `equal` need an
    interval that stays within `margin` on the side, or sides, where it must (a test of non-inferiority, of
    equivalence); failing to find a difference is not enough. An interval beyond zero on the wrong side, and for the
    last three beyond the margin, speaks against the claim. Scores that are alike in every one of at least three pairs
    have no spread to make an interval of, and bear these three out. All else, one run included, is undecided.

    Args:
        expected: one of `EXPECTATIONS`.
        difference: of the method less the baseline; None where they are not comparable.
        margin: largest difference that counts as equal, in units of the metric.

    Raises:
        ValueError: an unknown expectation or a negative margin.

    Source: Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15 (1987), with the two-sided interval, which is
    stricter than the two one-sided tests at the same level.
    """
    if expected not in EXPECTATIONS:
        raise ValueError(f"expect must be one of {', '.join(EXPECTATIONS)}, got {expected!r}")
    if margin < 0:
        raise ValueError(f"margin must not be negative, got {margin}")
    if expected == OPEN:
        return ""
    if difference is None:
        return UNDECIDED
    if difference.low is None or difference.high is None:
        pairs = difference.differences
        alike = len(pairs) >= 3 and not any(pairs) and expected in ("not lower", "not higher", "equal")
        return AS_CLAIMED if alike else UNDECIDED
    low, high = difference.low, difference.high
    if expected in ("lower", "not higher"):  # the mirror image
        expected, low, high = {"lower": "higher", "not higher": "not lower"}[expected], -high, -low
    if expected == "higher":
        return AS_CLAIMED if low > 0 else AGAINST if high < 0 else UNDECIDED
    if expected == "not lower":
        return AS_CLAIMED if low >= -margin else AGAINST if high < -margin else UNDECIDED
    inside = low >= -margin and high <= margin
    return AS_CLAIMED if inside else AGAINST if high < -margin or low > margin else UNDECIDED
