"""How terms become one number: worked numbers, split invariance, empty rows."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gainstage.update.objectives.policy.aggregation import aggregate, token_weights

HOWS = ("sequence_mean", "token_mean", "sequence_sum", "sequence_sum_over_constant")


def constant_for(how: str) -> float | None:
    return 7.0 if how == "sequence_sum_over_constant" else None


def plain(terms: list[list[float]], how: str, constant: float | None) -> float:
    """The definitions, a loop over rows."""
    filled = [row for row in terms if row]
    if not filled:
        return 0.0
    if how == "sequence_mean":
        return sum(sum(row) / len(row) for row in filled) / len(filled)
    if how == "token_mean":
        return sum(map(sum, filled)) / sum(map(len, filled))
    total = sum(map(sum, filled)) / len(filled)
    return total / constant if constant else total


ragged = st.lists(st.lists(st.floats(-5, 5, allow_nan=False, width=32), max_size=5), min_size=1, max_size=6)


def pad(terms: list[list[float]], extra: int = 0, fill: float = math.nan) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(1, max(map(len, terms))) + extra
    values = torch.full((len(terms), width), fill)
    mask = torch.zeros(len(terms), width, dtype=torch.bool)
    for i, row in enumerate(terms):
        values[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = True
    return values, mask


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=60, deadline=None)
@given(terms=ragged, extra=st.integers(0, 3))
def test_it_equals_the_definition_whatever_stands_in_the_padding(how, terms, extra):
    values, mask = pad(terms, extra)
    got = aggregate(values, mask, how, constant_for(how))
    assert float(got) == pytest.approx(plain(terms, how, constant_for(how)), abs=1e-4)


@pytest.mark.parametrize("how", HOWS)
def test_any_split_into_micro_batches_gives_the_same_sum(how):
    values, mask = pad([[0.3, -1.0, 2.0], [1.5], [], [0.2, 0.4], [-0.7, 0.1, 0.9]], fill=0.0)
    weights = token_weights(mask, how, constant_for(how))
    whole = float((weights * values).sum())
    for cuts in itertools.combinations(range(1, 5), 2):
        edges = (0, *cuts, 5)
        parts = sum(float((weights[a:b] * values[a:b]).sum()) for a, b in itertools.pairwise(edges))
        assert parts == pytest.approx(whole, abs=1e-6)


def test_a_row_without_decisions_counts_nowhere_and_a_zero_row_counts():
    values, mask = pad([[2.0, 2.0], [], [0.0, 0.0]], fill=0.0)
    assert float(aggregate(values, mask, "sequence_mean")) == pytest.approx(1.0)
    assert float(aggregate(values, mask, "token_mean")) == pytest.approx(1.0)
    kept = torch.tensor([True, True, False])
    assert float(aggregate(values, mask, "sequence_mean", kept=kept)) == pytest.approx(2.0)
    assert float(aggregate(values, mask, "token_mean", kept=kept)) == pytest.approx(2.0)


@pytest.mark.parametrize("how", HOWS)
def test_no_decision_at_all_is_zero_not_nan(how):
    mask = torch.zeros(3, 4, dtype=torch.bool)
    assert float(aggregate(torch.full((3, 4), math.nan), mask, how, constant_for(how))) == 0.0
    weights = token_weights(torch.ones(3, 4).bool(), how, constant_for(how), kept=torch.zeros(3).bool())
    assert float(weights.abs().sum()) == 0.0


def test_rows_spread_over_batches_share_one_denominator():
    values, mask = pad([[1.0, 3.0], [5.0], [2.0, 2.0]], fill=0.0)
    whole = float(aggregate(values, mask, "sequence_mean"))
    parts = sum(float(aggregate(values[a:b], mask[a:b], "sequence_mean", rows=3)) for a, b in ((0, 2), (2, 3)))
    assert parts == pytest.approx(whole)


def test_length_is_weighted_as_the_papers_say():
    """A long wrong answer: each of its tokens weighs less under sequence_mean, the same under the two others."""
    mask = pad([[1.0] * 4, [1.0]])[1]
    assert token_weights(mask, "sequence_mean")[:, 0].tolist() == pytest.approx([0.125, 0.5])
    assert token_weights(mask, "token_mean")[:, 0].tolist() == pytest.approx([0.2, 0.2])
    assert token_weights(mask, "sequence_sum_over_constant", constant=8)[:, 0].tolist() == pytest.approx([0.0625] * 2)


@pytest.mark.parametrize(
    ("how", "settings", "words"),
    [
        ("mean", {}, "agg must be one of sequence_mean"),
        ("sequence_sum_over_constant", {}, "needs a setting `constant`"),
        ("sequence_sum_over_constant", {"constant": 0.0}, "needs a setting `constant`"),
        ("token_mean", {"constant": 3.0}, "takes no `constant`"),
        ("token_mean", {"rows": 3}, "does not go with"),
        ("sequence_sum", {"rows": 0}, "does not go with"),
    ],
)
def test_wrong_settings_are_named(how, settings, words):
    with pytest.raises(ValueError, match=words):
        token_weights(torch.ones(2, 2).bool(), how, **settings)
