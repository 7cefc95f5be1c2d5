"""Group baselines: worked numbers, relatives of GRPO, degenerate groups, invariances."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.credit.helpers_credit import batch_of

from gainstage.credit.group.group_relative import GroupRelative, PartsRelative, group_relative
from gainstage.registry import build

ONE = torch.zeros(4, dtype=torch.long)
REWARDS = st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=8)


def advantages(r: list[float], keys: list[int] | None = None, **settings) -> list[float]:
    return group_relative(torch.tensor(r), torch.tensor(keys or [0] * len(r)), **settings).tolist()


def near(values: list[float]):
    return pytest.approx(values, abs=2e-6)


def test_worked_numbers():
    assert advantages([1, 0, 0, 0.0]) == near([1.499997, -0.499999, -0.499999, -0.499999])
    assert advantages([1, 0, 0, 0.0], scale="population") == near([1.732047, -0.577349, -0.577349, -0.577349])
    assert advantages([1, 0, 0, 0.0], scale="population", eps=0) == near([1.732051, -0.577350, -0.577350, -0.577350])
    assert advantages([1, 0.0]) == near([0.707106, -0.707106])
    grpo = advantages([1, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0.0], [0] * 4 + [1] * 4 + [2] * 4)
    assert grpo == near([0.866024, -0.866024, 0.866024, -0.866024] + [0.0] * 8)
    assert advantages([10, 0.1, 0.2, 0.3], eps=1e-4) == near([1.499761, -0.520325, -0.499920, -0.479515])
    assert advantages([0, 0, 1, 0, 0, 0.0]) == near([-0.408247, -0.408247, 2.041236, -0.408247, -0.408247, -0.408247])


def test_reinforce_pp_baseline_subtracts_the_group_mean_only():
    r = [1, 0, 0, 0, 1, 1, 1, 0.0]
    want = [0.75, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, -0.75]
    assert advantages(r, [5] * 4 + [3] * 4, scale="none") == near(want)


def test_leave_one_out_is_the_mean_of_the_others_and_a_scaled_dr_grpo():
    assert advantages([1, 0, 0, 1.0], center="leave_one_out", scale="none") == near([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert advantages([1, 0, 0, 1.0], scale="none") == near([0.5, -0.5, -0.5, 0.5])
    r = [3.0, 0.0, 1.0, 4.0]
    loo = advantages(r, center="leave_one_out", scale="none")
    assert loo == near([x - (sum(r) - x) / 3 for x in r])
    assert loo == near([4 / 3 * a for a in advantages(r, scale="none")])


def test_greedy_takes_the_reward_of_the_greedy_row_which_gets_nothing():
    greedy = torch.tensor([False, False, True, False, True])
    got = advantages([1, 0, 0.25, 0.5, 1.0], [0, 0, 0, 1, 1], center="greedy", scale="none", greedy=greedy)
    assert got == near([0.75, -0.25, 0.0, -0.5, 0.0])
    # a solved group above a failed greedy answer keeps its advantage although its samples are equal
    same = advantages([1, 1, 0.0], center="greedy", scale="none", greedy=torch.tensor([False, False, True]))
    assert same == near([1.0, 1.0, 0.0])


def test_a_group_without_its_greedy_row_has_no_baseline_and_no_advantage():
    greedy = torch.tensor([False, True, False])
    assert advantages([1, 0, 1.0], [0, 0, 1], center="greedy", scale="none", greedy=greedy) == near([1.0, 0.0, 0.0])
    with pytest.raises(ValueError, match=r"select\.shuffle\.greedy=true"):
        advantages([1, 0.0], center="greedy", scale="none")


def test_greedy_rows_do_not_enter_the_mean_of_other_baselines():
    greedy = torch.tensor([False, False, True])
    assert advantages([1, 0, 1.0], scale="none", greedy=greedy) == near([0.5, -0.5, 0.0])


def test_no_baseline_keeps_raw_rewards_also_of_constant_groups():
    assert advantages([-1, -1, -1, -1.0], center="none", scale="none") == [-1.0] * 4


@pytest.mark.parametrize("center", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["none", "sample", "population"])
def test_equal_rewards_and_single_rows_get_exactly_zero(center, scale):
    r = [0.1 + 0.2, 0.3, 0.3, 5.0]
    assert advantages(r, [0, 0, 0, 1], center=center, scale=scale) == [0.0] * 4


@pytest.mark.parametrize("center", ["mean", "none"])
def test_scaling_an_equal_group_never_divides_by_its_zero_std(center):
    assert advantages([1, 1, 1.0], center=center) == [0.0] * 3


def test_several_rewards_are_summed_first():
    want = [0.4082, -0.8165, 1.2247, -0.8165]
    assert advantages([3, 0, 5, 0.0], eps=0) == pytest.approx(want, abs=1e-4)


def test_a_row_without_reward_leaves_mean_and_std():
    got = advantages([1, 0, math.nan, 1.0], eps=0)
    assert got == pytest.approx([0.5774, -1.1547, 0.0, 0.5774], abs=1e-4)


def test_an_infinite_reward_is_an_error_that_names_its_row():
    with pytest.raises(ValueError, match=r"row \[2\] is infinite"):
        advantages([0, 1, math.inf, 1.0])


def test_each_part_normalised_over_its_own_rows():
    nan = math.nan
    batch = batch_of([1] * 4, parts__a=[1, 0, 1, 0.0], parts__b=[2, nan, 4, nan])
    got = PartsRelative(weights={"a": 1.0, "b": 1.0}, eps=0.0).assign(batch)["advantage"]
    assert got.tolist() == pytest.approx([0.1589, -0.8660, 1.5731, -0.8660], abs=1e-4)


def test_the_floor_damps_groups_that_hardly_differ():
    r = [0.0, 0.001]
    assert abs(advantages(r)[0]) == pytest.approx(0.7071, abs=2e-3)
    assert abs(advantages(r, floor=0.1)[0]) == pytest.approx(0.005, abs=1e-5)


@given(REWARDS, st.floats(0.1, 10), st.floats(-5, 5), st.randoms())
def test_shift_scale_and_order_change_nothing(r: list[float], factor: float, shift: float, rng):
    assume(max(r) - min(r) > 0.05)
    base = advantages(r, eps=0)
    assert advantages([factor * x + shift for x in r], eps=0) == pytest.approx(base, abs=1e-3)
    order = list(range(len(r)))
    rng.shuffle(order)
    assert advantages([r[i] for i in order], eps=0) == pytest.approx([base[i] for i in order], abs=1e-5)
    assert sum(base) == pytest.approx(0.0, abs=1e-5)
    assert torch.tensor(base).std().item() == pytest.approx(1.0, abs=1e-4)


@given(REWARDS, REWARDS)
def test_groups_do_not_feel_each_other(a: list[float], b: list[float]):
    both = advantages(a + b, [7] * len(a) + [2] * len(b))
    assert both == pytest.approx(advantages(a) + advantages(b), abs=1e-6)


def test_unknown_settings_are_named():
    with pytest.raises(ValueError, match="center must be"):
        group_relative(torch.ones(4), ONE, center="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scale must be"):
        group_relative(torch.ones(4), ONE, scale="std")  # type: ignore[arg-type]


def test_the_component_reads_all_rewards_and_mutates_nothing():
    batch = batch_of([2, 2, 2, 2], [1, 0, 0, 0.0])
    before = {name: value.clone() for name, value in batch.columns.items()}
    entry = build("credit", "group_relative", {})
    assert isinstance(entry, GroupRelative)
    assert entry.assign(batch)["advantage"].tolist() == near([1.499997, -0.499999, -0.499999, -0.499999])
    assert set(batch.columns) == set(before)
    assert all(torch.equal(before[name], batch[name]) for name in before)


def test_keys_split_a_group():
    batch = batch_of([1] * 4, [1, 0, 3, 1.0], sample=[0, 0, 1, 1])
    got = GroupRelative(scale="none", keys=["group", "sample"]).assign(batch)["advantage"]
    assert got.tolist() == near([0.5, -0.5, 1.0, -1.0])


def test_statistics_count_what_carries_no_signal():
    batch = batch_of([1] * 5, [1, 0, 1, 1, 0.5], [0, 0, 1, 1, 2])
    assert GroupRelative().statistics(batch) == {"groups/single": 1.0, "groups/equal": 1.0}
    batch["greedy"] = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0])
    assert GroupRelative(center="greedy", scale="none").statistics(batch) == {"groups/no_baseline": 1.0}


def test_a_plan_of_single_samples_is_refused_where_a_group_is_needed():
    for entry in (GroupRelative(), GroupRelative(center="none"), GroupRelative(center="leave_one_out", scale="none")):
        with pytest.raises(ValueError, match="samples=1"):
            entry.check_plan(1)
        entry.check_plan(2)
    GroupRelative(center="greedy", scale="none").check_plan(1)
    GroupRelative(center="none", scale="none").check_plan(1)
