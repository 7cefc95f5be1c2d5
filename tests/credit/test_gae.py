"""GAE: ends of episodes, gaps between decisions, streams, limits; a slow reference beside it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.helpers_credit import Scorer, batch_of, context
from torch import Tensor

from gainstage.credit.returns.discounted import discounted_return
from gainstage.credit.returns.gae import Gae, gae


def slow_gae(r, v, next_v, terminated, truncated, gamma, lam) -> list[float]:
    """The sum of equation 16, term by term, for one row without gaps."""
    steps = len(r)
    delta = [r[t] + gamma * (0.0 if terminated[t] else next_v[t]) - v[t] for t in range(steps)]
    out = []
    for t in range(steps):
        total, factor = 0.0, 1.0
        for k in range(t, steps):
            total += factor * delta[k]
            if terminated[k] or truncated[k]:
                break
            factor *= gamma * lam
        out.append(total)
    return out


def row(values, dtype=torch.float64) -> Tensor:
    return torch.tensor([values], dtype=dtype)


STEP = st.tuples(*(st.floats(-3, 3) for _ in range(3)), st.booleans(), st.booleans())


@given(st.lists(STEP, min_size=1, max_size=7), st.floats(0, 1), st.floats(0, 1))
def test_agrees_with_the_slow_reference(steps, gamma: float, lam: float):
    r, v, next_v, terminated, truncated = zip(*steps, strict=True)
    advantages, returns = gae(
        row(r), row(v), row(next_v), row(terminated, torch.bool), row(truncated, torch.bool), gamma, lam
    )
    want = slow_gae(r, v, next_v, terminated, truncated, gamma, lam)
    assert advantages[0].tolist() == pytest.approx(want, abs=1e-9)
    assert returns[0].tolist() == pytest.approx([a + x for a, x in zip(want, v, strict=True)], abs=1e-9)


@pytest.mark.parametrize(
    ("terminated", "truncated", "want"),
    [
        ([0, 0, 1], [0, 0, 0], [1.01715, 0.0395, -1]),
        ([0, 0, 0], [0, 0, 1], [2.76854, 1.90169, 0.98]),
        ([0, 0, 1], [0, 0, 1], [1.01715, 0.0395, -1]),
        ([0, 1, 0], [0, 0, 0], [0.0395, -1, 0.98]),
        ([0, 0, 0], [0, 1, 0], [1.90169, 0.98, 0.98]),
        ([0, 1, 0], [0, 1, 1], [0.0395, -1, 0.98]),
    ],
)
def test_the_end_of_an_episode(terminated, truncated, want):
    advantages, _ = gae(
        row([1, 1, 1]),
        row([2, 2, 2]),
        row([2, 2, 2]),
        row(terminated, torch.bool),
        row(truncated, torch.bool),
        0.99,
        0.95,
    )
    assert advantages[0].tolist() == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("filler", [100.0, -7.0, math.nan])
def test_values_at_masked_positions_change_nothing(filler: float):
    mask = torch.tensor([[True, True, False]])
    advantages, returns = gae(row([0, 1, 0]), row([0, 0, filler]), gamma=1.0, lam=0.95, mask=mask)
    assert advantages[0].tolist() == pytest.approx([0.95, 1.0, 0.0])
    assert returns[0].tolist() == pytest.approx([0.95, 1.0, 0.0])


def test_a_gap_is_as_if_it_were_not_there():
    close = gae(row([0.5, 1, 2]), row([0.1, 0.2, 0.3]), gamma=0.9, lam=0.8)
    mask = torch.tensor([[False, True, False, False, True, True, False]])
    apart = gae(row([0, 0.5, 0, 0, 1, 2, 0]), row([9, 0.1, 9, 9, 0.2, 0.3, 9]), gamma=0.9, lam=0.8, mask=mask)
    for a, b in zip(close, apart, strict=True):
        assert b[mask].tolist() == pytest.approx(a[0].tolist())
        assert not b[~mask].any()


def test_a_reward_on_a_masked_last_token_reaches_the_last_decision():
    mask = torch.tensor([[True, True, False]])
    advantages, _ = gae(row([0, 0, 1]), row([0, 0, 0]), gamma=0.0, lam=0.5, mask=mask)
    assert advantages[0].tolist() == [0.0, 1.0, 0.0]


def test_an_end_marked_between_two_decisions_still_ends_the_episode():
    mask = torch.tensor([[True, False, True]])
    ended = torch.tensor([[False, True, False]])
    advantages, _ = gae(row([0, 0, 5]), row([1, 1, 1]), row([1, 1, 1]), ended, None, 1.0, 1.0, mask)
    assert advantages[0].tolist() == [-1.0, 0.0, 5.0]


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=6), st.floats(0, 1))
def test_lambda_one_with_zero_values_is_reward_to_go(r: list[float], gamma: float):
    zeros = torch.zeros(1, len(r), dtype=torch.float64)
    advantages, returns = gae(row(r), zeros, gamma=gamma, lam=1.0)
    want = discounted_return(row(r), torch.ones(1, len(r), dtype=torch.bool), gamma)
    torch.testing.assert_close(advantages, want)
    torch.testing.assert_close(returns, want)


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=2, max_size=6), st.floats(0, 1))
def test_lambda_zero_is_the_one_step_error(steps, gamma: float):
    r, v = (row(column) for column in zip(*steps, strict=True))
    following = torch.cat((v[:, 1:], torch.zeros_like(v[:, :1])), 1)
    torch.testing.assert_close(gae(r, v, gamma=gamma, lam=0.0)[0], r + gamma * following - v)


def test_rows_of_different_length_do_not_touch():
    r = torch.tensor([[1.0, 2.0, 3.0], [4.0, math.nan, math.nan]])
    v = torch.tensor([[0.5, 0.5, 0.5], [1.0, math.nan, math.nan]])
    mask = torch.tensor([[True] * 3, [True, False, False]])
    both, _ = gae(r, v, gamma=0.9, lam=0.9, mask=mask)
    alone, _ = gae(r[:1], v[:1], gamma=0.9, lam=0.9)
    assert both[0].tolist() == alone[0].tolist()
    assert both[1].tolist() == [3.0, 0.0, 0.0]


def test_streams_have_their_own_discount_and_may_run_through_ends():
    r = torch.tensor([[[1.0, 1.0, 1.0]], [[1.0, 1.0, 1.0]]], dtype=torch.float64)
    v = torch.full_like(r, 2.0)
    ended = torch.tensor([[False, True, False]])
    advantages, returns = gae(r, v, v, ended, None, [0.99, 0.9], [0.95, 0.8], episodic=[True, False])
    assert advantages.shape == returns.shape == (2, 1, 3)
    assert advantages[0, 0].tolist() == pytest.approx([0.0395, -1, 0.98])
    want = slow_gae([1] * 3, [2] * 3, [2] * 3, [False] * 3, [False] * 3, 0.9, 0.8)
    assert advantages[1, 0].tolist() == pytest.approx(want)


def test_a_cut_inside_a_row_needs_the_value_after_it():
    cut = torch.tensor([[True, False]])
    with pytest.raises(ValueError, match="next_values"):
        gae(row([1, 1]), row([0, 0]), truncated=cut)
    gae(row([1, 1]), row([0, 0]), truncated=torch.tensor([[False, True]]))


def test_the_component_scores_the_value_role_once_and_without_gradient():
    batch = batch_of([2, 1], [1.0, 0.0])
    values = torch.tensor([[0.5, 0.25], [0.5, 0.0]], requires_grad=True)
    role = Scorer(torch.zeros(2, 2), values)
    entry = Gae(lam=1.0, role="critic")
    written = entry.estimate(batch, context(critic=role))
    assert set(written) == {c for c in entry.writes if not c.endswith("?")} and entry.uses == ("critic",)
    assert written["advantages"].tolist() == [[0.5, 0.75], [-0.5, 0.0]]
    assert written["returns"].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert not any(column.requires_grad for column in written.values())
    batch["values"] = values.detach()
    entry.estimate(batch, context(critic=role))
    assert role.calls == 1


def test_recorded_control_columns_are_used():
    batch = batch_of([3], rewards=[[1.0, 1.0, 1.0]], values=[[2.0] * 3], next_values=[[2.0] * 3])
    batch["terminated"] = torch.tensor([[False, True, False]])
    batch["cut"] = torch.tensor([[False, False, True]])
    got = Gae(gamma=0.99).estimate(batch, context())
    assert got["advantages"][0].tolist() == pytest.approx([0.0395, -1, 0.98])


def test_what_is_missing_or_wrong_is_named():
    with pytest.raises(ValueError, match="no value head"):
        Gae(role="policy").estimate(batch_of([1], [1.0]), context(policy=Scorer(torch.zeros(1, 1))))
    with pytest.raises(ValueError, match=r"gae\.role"):
        Gae().estimate(batch_of([1], [1.0]), context())
    for settings in ({"gamma": 1.1}, {"lam": -0.1}):
        with pytest.raises(ValueError, match="must lie in"):
            Gae(**settings)
