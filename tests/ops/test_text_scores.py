"""Agreement of texts."""

import pytest

from gainstage.ops.text_scores import longest_common_subsequence, rouge_l


def test_rouge_l_of_two_sentences():
    candidate, reference = "the sum of primes is odd", "the sum of two primes is even"
    found = rouge_l(candidate.split(), reference.split())
    assert (found.precision, found.recall, found.f1) == pytest.approx((0.833333, 0.714286, 0.769231), abs=1e-6)


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [("abcbdab", "bdcaba", 4), ("abc", "abc", 3), ("abc", "xyz", 0), ("", "abc", 0), ("ace", "abcde", 3)],
)
def test_longest_common_subsequence(a, b, want):
    assert longest_common_subsequence(a, b) == longest_common_subsequence(b, a) == want


def test_limits_of_rouge_l():
    assert rouge_l([1, 2, 3], [1, 2, 3]).f1 == 1
    assert rouge_l([3, 2, 1], [1, 2, 3]).f1 == pytest.approx(1 / 3), "order counts"
    assert rouge_l([], []).f1 == 1 and rouge_l([], [1]).f1 == 0 == rouge_l([1], []).f1
    assert rouge_l([1, 1, 1, 1], [1]).precision == 0.25
