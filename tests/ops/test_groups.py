"""Statistics per group against a plain loop, and what counts as equal."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gainstage.ops.groups import finite_or_absent, group_rows

ROWS = st.lists(st.tuples(st.integers(0, 3), st.floats(-10, 10, width=32), st.booleans()), min_size=1, max_size=14)


@given(ROWS)
def test_agrees_with_a_plain_loop(rows: list[tuple[int, float, bool]]):
    keys, r = torch.tensor([row[0] * 7 for row in rows]), torch.tensor([row[1] for row in rows])
    member = torch.tensor([row[2] for row in rows])
    groups = group_rows(keys, member)
    for i, (key, _, _) in enumerate(rows):
        inside = torch.tensor([x for k, x, m in rows if k == key and m], dtype=torch.float64)
        g = groups.index[i]
        assert groups.size()[g] == len(inside)
        assert groups.mean(r)[g].item() == pytest.approx(inside.mean().item() if len(inside) else 0.0, abs=1e-6)
        assert groups.std(r)[g].item() == pytest.approx(inside.std().item() if len(inside) > 1 else 0.0, abs=1e-6)
        population = inside.std(unbiased=False).item() if len(inside) else 0.0
        assert groups.std(r, 0)[g].item() == pytest.approx(population, abs=1e-6)
        if len(inside):
            assert groups.extreme(r, "amax")[g] == inside.max()
            assert groups.extreme(r, "amin")[g] == inside.min()


def test_several_keys_make_smaller_groups():
    keys = torch.tensor([[0, 0], [0, 1], [0, 0], [1, 0]])
    groups = group_rows(keys)
    assert groups.count == 3
    assert groups.index[0] == groups.index[2] != groups.index[1]


def test_rounding_is_no_difference_and_a_real_one_is():
    keys = torch.tensor([0, 0, 1, 1, 2, 2, 3])
    r = torch.tensor([0.1 + 0.2, 0.3, 100.0, 100.00001, 0.3, 0.30001, 5.0])
    assert group_rows(keys).constant(r).tolist() == [True, True, False, True]


def test_nan_is_absent_and_infinity_is_an_error_that_names_the_row():
    assert finite_or_absent(torch.tensor([1.0, math.nan]), "here").tolist() == [True, False]
    with pytest.raises(ValueError, match=r"here: the reward of row \[1\] is infinite"):
        finite_or_absent(torch.tensor([1.0, math.inf]), "here")
