"""Filters after the baseline: positive only, and rejection of constant groups."""

from __future__ import annotations

import math

import pytest
import torch
from tests.credit.helpers_credit import batch_of

from gainstage.credit.group.advantage_filter import PositiveOnly, RejectConstant, positive_only, reject_constant
from gainstage.credit.group.group_relative import group_relative

R = torch.tensor([1, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0.0])
KEYS = torch.tensor([0] * 4 + [1] * 4 + [2] * 4)


def test_positive_only_keeps_the_weight_of_rare_success():
    advantage = group_relative(torch.tensor([1, 0, 0, 0.0]), KEYS[:4])
    assert positive_only(advantage).tolist() == pytest.approx([1.499997, 0, 0, 0], abs=2e-6)
    batch = batch_of([1, 1], advantage=[0.5, -0.5])
    assert PositiveOnly().assign(batch)["advantage"].tolist() == [0.5, 0.0]
    assert batch["advantage"].tolist() == [0.5, -0.5]


@pytest.mark.parametrize(
    ("wrong", "right", "kept"),
    [(True, True, [0]), (True, False, [0, 1]), (False, True, [0, 2]), (False, False, [0, 1, 2])],
)
def test_the_ablation_chain(wrong: bool, right: bool, kept: list[int]):
    keep = reject_constant(R, KEYS, wrong, right)
    assert keep.tolist() == [key in kept for key in KEYS.tolist()]
    # the same story with rewards of +-1, where wrong answers push down
    assert reject_constant(2 * R - 1, KEYS, wrong, right).tolist() == keep.tolist()


def test_reinforce_rej_with_raw_and_with_centred_reward():
    raw = group_relative(R, KEYS, center="none", scale="none")
    keep = reject_constant(R, KEYS)
    assert (raw * keep).tolist() == [1, 0, 1, 0] + [0] * 8
    assert (group_relative(R, KEYS, scale="none") * keep).tolist() == [0.5, -0.5, 0.5, -0.5] + [0.0] * 8


def test_rounding_makes_no_group_mixed_and_single_rows_are_constant():
    r = torch.tensor([0.1 + 0.2, 0.3, 1.0, math.nan])
    assert reject_constant(r, torch.tensor([0, 0, 1, 2])).tolist() == [False] * 4


def make_batch():
    return batch_of([2] * 12, R.tolist(), KEYS.tolist(), advantage=R.clone())


def test_rejected_tokens_leave_the_denominator_or_stay():
    batch = make_batch()
    written = RejectConstant().assign(batch)
    assert written["mask"].sum(1).tolist() == [2] * 4 + [0] * 8
    assert written["advantage"].tolist() == [1, 0, 1, 0] + [0] * 8
    assert batch["mask"].all()
    entry = RejectConstant(denominator="batch")
    assert set(entry.assign(batch)) == {"advantage"} == set(entry.writes)
    assert entry.statistics(batch) == {"groups/keep_rate": pytest.approx(1 / 3)}


def test_everything_may_be_rejected():
    batch = batch_of([1, 1], [0.0, 0.0], advantage=[1.0, 1.0])
    written = RejectConstant().assign(batch)
    assert not written["mask"].any() and not written["advantage"].any()


def test_a_plan_of_single_samples_is_refused():
    with pytest.raises(ValueError, match="2 or more"):
        RejectConstant().check_plan(1)
