"""Reward to go over decisions: tool tokens neither cut nor discount; a slow reference beside it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.helpers_credit import batch_of

from gainstage.credit.returns.discounted import Discounted, discounted_return
from gainstage.credit.tokens.whiten import Whiten

ROWS = st.lists(st.tuples(st.floats(-2, 2, width=32), st.booleans()), min_size=1, max_size=9)


def returns(r: list[float], mask: list[int], gamma: float = 1.0) -> list[float]:
    return discounted_return(torch.tensor([r]), torch.tensor([mask]).bool(), gamma)[0].tolist()


def slow_returns(r: list[float], mask: list[bool], gamma: float) -> list[float]:
    """For each decision: every later reward, discounted once for each decision that lies between."""
    decisions = [t for t, m in enumerate(mask) if m]
    owner = [max((d for d in decisions if d <= t), default=min(decisions, default=-1)) for t in range(len(r))]
    out = [0.0] * len(r)
    for start in decisions:
        for t, value in enumerate(r):
            if owner[t] >= start:
                out[start] += gamma ** sum(start < d <= owner[t] for d in decisions) * value
    return out


@given(ROWS, st.floats(0, 1))
def test_agrees_with_the_slow_reference(row: list[tuple[float, bool]], gamma: float):
    r, mask = [x for x, _ in row], [m for _, m in row]
    assert returns(r, mask, gamma) == pytest.approx(slow_returns(r, mask, gamma), abs=1e-4)


def test_a_tool_s_tokens_neither_cut_nor_discount():
    assert returns([0, 0, 1.0], [1, 0, 1]) == [1.0, 0.0, 1.0]
    assert returns([0, 0, 1.0], [1, 0, 1], gamma=0.5) == [0.5, 0.0, 1.0]
    assert returns([0, 0, 0, 0, 1.0], [1, 0, 0, 0, 1], gamma=0.5) == [0.5, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_a_reward_on_a_masked_last_token_reaches_the_last_decision(gamma: float):
    assert returns([0, 0, 1.0], [1, 1, 0], gamma) == [gamma, 1.0, 0.0]


def test_the_component_does_not_lose_a_reward_on_a_masked_token():
    made = batch_of([3], rewards=[[0.0, 0.0, 1.0]])
    made["mask"] = torch.tensor([[True, True, False]])
    assert Discounted(gamma=0.0).assign(made)["returns"].tolist() == [[0.0, 1.0, 0.0]]
    assert made.rewards_at("row").tolist() == [1.0]
    made["rewards"] = torch.tensor([[2.0, 1.0, math.nan]])
    assert Discounted().assign(made)["returns"].tolist() == [[3.0, 1.0, 0.0]]


def test_padding_cuts_and_may_hold_nan():
    r = torch.tensor([[1.0, math.nan, math.nan], [1.0, 2.0, 4.0]])
    mask = torch.tensor([[True, False, False], [True, True, True]])
    assert discounted_return(r, mask, 0.5).tolist() == [[1.0, 0.0, 0.0], [3.0, 4.0, 4.0]]


def test_a_row_without_decisions_is_zero():
    assert returns([1.0, 1.0], [0, 0]) == [0.0, 0.0]


def test_reinforce_pp_returns_and_whitening():
    batch = batch_of([3, 2], [1.0, 0.0], rewards=[[-0.02, 0.01, -0.03], [-0.01, -0.04, 0.0]])
    written = Discounted().assign(batch)
    assert written["advantages"].flatten().tolist() == pytest.approx([0.96, 0.98, 0.97, -0.05, -0.04, 0.0], abs=1e-6)
    batch["advantages"] = written["advantages"]
    whitened = Whiten().assign(batch)["advantages"].flatten().tolist()
    assert whitened == pytest.approx([0.796305, 0.836523, 0.816414, -1.234675, -1.214567, 0.0], abs=1e-5)


@pytest.mark.parametrize(("gamma", "want"), [(1.0, [1, 1, 0.75, 0.5]), (0.9, [0.792, 0.88, 0.7, 0.5])])
def test_rewards_of_turns_flow_back_over_earlier_turns(gamma: float, want: list[float]):
    """One decision a turn, dense rewards that sum to 1 (arXiv 2510.01132)."""
    assert returns([0, 0.25, 0.25, 0.5], [1, 1, 1, 1], gamma) == pytest.approx(want, abs=1e-6)


def test_the_row_s_advantage_can_be_what_is_discounted():
    batch = batch_of([3, 2], [9.0, 9.0], advantage=[0.75, -0.25])
    got = Discounted(gamma=0.5, source="advantage").assign(batch)
    assert got["returns"].tolist() == [[0.1875, 0.375, 0.75], [-0.125, -0.25, 0.0]]
    assert Discounted(source="advantage").needs == ("advantage", "mask")


def test_turn_rewards_stand_on_the_last_decision_of_their_turn():
    batch = batch_of(
        [4], turn=[[0, 0, 1, 1]], turn_rewards=[[1.0, 2.0]], turn_mask=[[True, True]], author=[[1, 1, 1, 1]]
    )
    assert Discounted(gamma=0.5).assign(batch)["returns"][0].tolist() == [0.75, 1.5, 1.0, 2.0]


def test_gamma_outside_the_unit_interval_is_named():
    with pytest.raises(ValueError, match=r"discounted\.gamma"):
        Discounted(gamma=1.5)


def test_returns_end_with_the_episode_and_open_ones_are_left_out():
    batch = batch_of([6], rewards=[[1.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    batch["terminated"] = torch.tensor([[False, True, False, False, False, False]])
    batch["cut"] = torch.tensor([[False, False, False, True, False, False]])
    got = Discounted(gamma=0.5).assign(batch)
    assert got["returns"].tolist() == [[1.5, 1.0, 1.5, 1.0, 1.5, 1.0]]
    assert got["mask"].tolist() == [[True, True, True, True, False, False]]
    assert "mask" not in Discounted(whole=False).assign(batch)
