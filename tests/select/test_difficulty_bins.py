"""Bins of pass rates, sample budgets, and the sampler that draws from bins."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tests.select.helpers_select import context, problems_of, trajectory

from gainstage.select.curriculum.difficulty_bins import (
    DifficultyBins,
    difficulty_bins,
    draw_from_bins,
    rollout_budget,
)


def test_edges_belong_to_the_outer_bins():
    rates = torch.tensor([0.0, 0.25, 0.26, 0.5, 0.74, 0.75, 1.0])
    assert difficulty_bins(rates, [0.25, 0.75]).tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert difficulty_bins(torch.tensor([0.0, 1 / 3, 1.0]), [0.0, 1.0]).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="must ascend"):
        difficulty_bins(rates, [0.75, 0.25])


def test_sample_budgets_of_the_worked_example():
    assert [rollout_budget(p, 8) for p in (0, 0.5, 0.6, 0.7, 0.8, 0.9, 1)] == [8, 8, 8, 6, 4, 2, 2]
    with pytest.raises(ValueError, match="least number of samples"):
        rollout_budget(0.5, 8, n_min=1)


def observe(sampler: DifficultyBins, rates: list[float], problems, ctx, samples: int = 4) -> None:
    rows = [
        trajectory(float(k < round(rate * samples)), g, problem, k)
        for g, (rate, problem) in enumerate(zip(rates, problems, strict=True))
        for k in range(samples)
    ]
    sampler.observe(rows, ctx)


def test_a_bin_of_weight_zero_is_left_out_and_the_others_share():
    problems = problems_of(6)
    ctx = context(problems)
    sampler = DifficultyBins(weights=[0.0, 1.0, 0.0], unseen=0.0)
    observe(sampler, [0, 0, 0.5, 0.5, 1, 1], problems, ctx)
    assert {r.problem.id for r in sampler.next(4, ctx)} == {"p2", "p3"}
    assert (ctx.logged["difficulty_bins/0"], ctx.logged["difficulty_bins/1"]) == (2.0, 2.0)


def test_shares_follow_the_weights():
    bins = torch.tensor([0] * 200 + [1] * 200 + [2] * 200)
    counts = Counter(int(bins[i]) for i in draw_from_bins(bins, [1.0, 2.0, 0.0], 180))
    assert counts[2] == 0
    assert counts[1] / 180 == pytest.approx(2 / 3, abs=0.12)


def test_no_problem_comes_twice_before_all_have_come():
    picks = draw_from_bins(torch.tensor([0, 0, 1, 1, 1]), [1.0, 1.0], 10)
    assert sorted(picks[:5]) == sorted(picks[5:]) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="weight 0"):
        draw_from_bins(torch.tensor([0]), [0.0, 1.0], 1)


def test_unseen_problems_are_a_bin_of_their_own():
    problems = problems_of(4)
    ctx = context(problems)
    sampler = DifficultyBins(weights=[0.0, 0.0, 0.0], unseen=1.0)
    observe(sampler, [0.5], problems[:1], ctx)
    assert {r.problem.id for r in sampler.next(3, ctx)} == {"p1", "p2", "p3"}


def test_pass_rates_follow_the_last_visits_and_survive_a_checkpoint():
    problems = problems_of(1)
    ctx, sampler = context(problems), DifficultyBins(memory=0.5)
    observe(sampler, [1.0], problems, ctx)
    observe(sampler, [0.0], problems, ctx)
    assert sampler.state_dict() == {"rates": {"p0": 0.5}}
    resumed = DifficultyBins(memory=0.5)
    resumed.load_state_dict(sampler.state_dict())
    observe(resumed, [1.0], problems, ctx)
    assert resumed.state_dict() == {"rates": {"p0": 0.75}}


def test_solved_problems_may_get_fewer_samples():
    problems = problems_of(2)
    ctx, sampler = context(problems), DifficultyBins(samples=8, min_samples=2)
    observe(sampler, [1.0, 0.0], problems, ctx)
    assert {r.problem.id: r.samples for r in sampler.next(2, ctx)} == {"p0": 2, "p1": 8}


@pytest.mark.parametrize(
    "settings",
    [{"weights": [1.0]}, {"memory": 1.0}, {"samples": 0}, {"unseen": -1.0}, {"edges": [0.7, 0.2]}, {"min_samples": 1}],
)
def test_wrong_settings_are_refused(settings: dict):
    with pytest.raises(ValueError):
        DifficultyBins(**settings)
