"""Beta beliefs with two forgetting rates, information scores, and the sampler that uses them."""

from __future__ import annotations

import pytest
import torch
from tests.select.helpers_select import context, problems_of, trajectory

from gainstage.select.curriculum.thompson import BetaDifficulty, Thompson, ThompsonSelector, information
from gainstage.types import Problem


def test_worked_numbers_of_a_belief():
    belief = BetaDifficulty(1, lam_g=0.9, lam_l=0.5)
    belief.alpha, belief.beta = torch.tensor([3.0], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64)
    belief.decay()
    assert (belief.alpha.item(), belief.beta.item()) == (pytest.approx(2.8), 1.0)
    belief.observe(torch.tensor([0]), torch.tensor([1.0]), torch.tensor([4.0]))
    assert (belief.alpha.item(), belief.beta.item()) == (pytest.approx(2.9), 4.0)
    a, b, mean = belief.alpha, belief.beta, belief.mean()
    assert mean.item() == pytest.approx(0.420290, abs=1e-6)
    assert (a * b / ((a + b) * (a + b + 1))).item() == pytest.approx(0.212805, abs=1e-6)
    assert belief.std().item() == pytest.approx(torch.distributions.Beta(a, b).stddev.item())


def test_information_of_the_worked_draws():
    theta = torch.tensor([0.95, 0.55, 0.10, 0.35])
    assert information(theta).tolist() == pytest.approx([0.0475, 0.2475, 0.09, 0.2275])
    mixed = information(theta, "mixed", 8)
    assert mixed.tolist() == pytest.approx([0.336580, 0.989945, 0.569533, 0.967910], abs=1e-6)
    assert torch.argsort(information(theta), descending=True).tolist() == [1, 3, 2, 0]
    assert torch.argsort(mixed, descending=True).tolist() == [1, 3, 2, 0]
    assert information(torch.tensor([0.0, 1.0]), "mixed").tolist() == [0.0, 0.0]
    assert information(torch.tensor([0.25, 0.5]), "mixed", 4).tolist() == pytest.approx([0.679688, 0.875], abs=1e-6)


def test_visits_of_one_problem_in_one_batch_are_merged_before_the_decay():
    merged, once = BetaDifficulty(2), BetaDifficulty(2)
    for belief in (merged, once):
        belief.observe(torch.tensor([1]), torch.tensor([2.0]), torch.tensor([2.0]))
    merged.observe(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]), torch.tensor([4.0, 4.0]))
    once.observe(torch.tensor([1]), torch.tensor([3.0]), torch.tensor([8.0]))
    assert torch.equal(merged.alpha, once.alpha) and torch.equal(merged.beta, once.beta)
    assert merged.alpha[0] == 1.0
    with pytest.raises(ValueError, match="between 0 and trials"):
        merged.observe(torch.tensor([0]), torch.tensor([3.0]), torch.tensor([2.0]))


def test_decay_brings_every_belief_back_to_its_prior():
    belief = BetaDifficulty(1, 2.0, 3.0, lam_g=0.5)
    belief.alpha += 8
    for _ in range(60):
        belief.decay()
    assert belief.mean().item() == pytest.approx(0.4)


def test_the_selector_prefers_even_odds_and_explores_what_is_unknown():
    belief = BetaDifficulty(30)
    belief.alpha[:10], belief.beta[:10] = 200.0, 1.0
    belief.alpha[10:20], belief.beta[10:20] = 100.0, 100.0
    counts = torch.zeros(30)
    for _ in range(20):
        counts[ThompsonSelector(belief).select(10)] += 1
    solved, even, unknown = counts.view(3, 10).sum(1).tolist()
    assert even > unknown > solved
    assert unknown > 0 and solved <= 2


def test_each_problem_comes_once_before_any_comes_twice():
    selector = ThompsonSelector(BetaDifficulty(4))
    picks = selector.select(9)
    assert sorted(picks[:4]) == [0, 1, 2, 3] and picks[4:8] == picks[:4]
    assert len(set(ThompsonSelector(BetaDifficulty(50), pool=3).select(5))) == 5


def test_a_uniform_share_keeps_the_solved_in_sight():
    belief = BetaDifficulty(40)
    belief.alpha[:20], belief.beta[:20] = 1000.0, 1.0
    picks = [i for _ in range(10) for i in ThompsonSelector(belief, uniform_mix=0.5).select(10)]
    assert 10 < sum(i < 20 for i in picks) < 50
    assert len(picks) == 100


def rows(problem, successes: int, total: int = 4, group: int = 0):
    return [trajectory(float(k < successes), group, problem, k) for k in range(total)]


def test_the_component_learns_from_what_training_asks_anyway():
    problems = problems_of(3)
    ctx, sampler = context(problems), Thompson(samples=4)
    requests = sampler.next(2, ctx)
    assert [r.samples for r in requests] == [4, 4] and [r.group for r in requests] == [0, 1]
    sampler.observe(rows(problems[0], 1) + rows(problems[1], 4, group=1), ctx)
    state = sampler.state_dict()
    assert state["ids"] == ["p0", "p1", "p2"]
    assert state["alpha"].tolist() == [2.0, 5.0, 1.0] and state["beta"].tolist() == [4.0, 1.0, 1.0]
    assert ctx.logged["thompson/effective_ratio"] == 0.5
    assert ctx.logged["thompson/mean"] == pytest.approx((2 / 6 + 5 / 6 + 0.5) / 3)


def test_global_decay_counts_passes_not_steps():
    problems = problems_of(8)
    for calls, n in ((1, 8), (4, 2)):
        ctx, sampler = context(problems), Thompson(per_pass=0.5)
        sampler.next(1, ctx)
        sampler.observe(rows(problems[0], 4), ctx)
        before = sampler.state_dict()["alpha"][0].item() - 1
        for _ in range(calls):
            sampler.next(n, ctx)
        assert sampler.state_dict()["alpha"][0].item() - 1 == pytest.approx(0.5 * before)


def test_beliefs_follow_the_problem_id_through_reordered_data():
    problems = problems_of(3)
    ctx, first = context(problems), Thompson(per_pass=1.0)
    first.next(1, ctx)
    first.observe(rows(problems[2], 4), ctx)
    second = Thompson(per_pass=1.0)
    second.load_state_dict(first.state_dict())
    second.next(1, context([problems[2], *problems_of(2, start=7)]))
    state = second.state_dict()
    assert state["ids"] == ["p2", "p7", "p8"] and state["alpha"].tolist() == [5.0, 1.0, 1.0]


def test_resume_draws_the_same_problems():
    problems = problems_of(20)
    ctx, first = context(problems), Thompson()
    first.next(4, ctx)
    first.observe(rows(problems[3], 2), ctx)
    second = Thompson()
    second.load_state_dict(first.state_dict())
    drawn = []
    for sampler in (first, second):
        torch.manual_seed(7)
        drawn.append([r.problem.id for r in sampler.next(6, ctx)])
    assert drawn[0] == drawn[1]


def test_degenerate_evidence():
    problems = problems_of(2)
    ctx, sampler = context(problems), Thompson(success_at=None)
    sampler.next(1, ctx)
    sampler.observe([trajectory(None, 0, problems[0]), trajectory(0.25, 1, problems[1])], ctx)
    assert ctx.logged["failures/thompson"] == 1.0
    assert sampler.state_dict()["alpha"].tolist() == [1.0, 1.25]
    assert sampler.state_dict()["beta"].tolist() == [1.0, 1.75]
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\], got -1; name another with thompson\.signal"):
        sampler.observe([trajectory(-1.0, 0, problems[0])], ctx)
    sampler.observe([trajectory(1.0, 0, None), trajectory(1.0, 0, problems_of(1, 99)[0])], ctx)
    assert sampler.state_dict()["alpha"].tolist() == [1.0, 1.25]


def test_more_groups_than_problems_and_bad_settings():
    ctx = context(problems_of(2))
    with pytest.warns(UserWarning, match="come twice"):
        assert len(Thompson().next(3, ctx)) == 3
    with pytest.warns(UserWarning, match="forgets most"):
        Thompson(per_pass=0.2)
    twice = Thompson()
    twice.next(1, context([*problems_of(1), *problems_of(1)]))
    assert len(twice.state_dict()["alpha"]) == 1, "a problem that stands twice in the data has one belief"
    for settings in (
        {"samples": 0},
        {"per_pass": 0.0},
        {"uniform_mix": 2.0},
        {"prior": (0.0, 1.0)},
        {"per_visit": 2.0},
    ):
        with pytest.raises(ValueError):
            Thompson(**settings)


def test_the_share_of_mixed_groups_rises_above_uniform():
    """Fixed success rates: 40 % solved, 40 % out of reach; the sampler finds the rest within three passes."""
    generator = torch.Generator().manual_seed(0)
    problems = problems_of(100)
    truth = torch.cat((torch.ones(40), torch.zeros(40), torch.full((20,), 0.5)))
    ctx, sampler, mixed = context(problems), Thompson(samples=8), []
    for step in range(30):
        found = []
        for g, request in enumerate(sampler.next(10, ctx)):
            p = truth[int(request.problem.id[1:])]
            won = int((torch.rand(8, generator=generator) < p).sum())
            found += rows(request.problem, won, 8, g)
            mixed.append((step, 0 < won < 8))
        sampler.observe(found, ctx)
    late = [m for step, m in mixed if step >= 10]
    assert sum(late) / len(late) > 2 * 0.2


def rated(*rates: object) -> list[Problem]:
    return [Problem(f"p{i}", "?", meta={} if rate is None else {"rate": rate}) for i, rate in enumerate(rates)]


def test_a_known_pass_rate_is_the_first_evidence():
    """alpha = 1 + 2 p and beta = 1 + 2 (1 - p); what nothing is known of starts at the prior."""
    sampler = Thompson(warm_start="rate", per_pass=1.0)
    sampler.next(1, context(rated(0.0, 0.25, 1, None)))
    state = sampler.state_dict()
    assert state["alpha"].tolist() == [1.0, 1.5, 3.0, 1.0] and state["beta"].tolist() == [3.0, 2.5, 1.0, 1.0]
    heavy = Thompson(warm_start="rate", warm_weight=200.0, per_pass=1.0)
    torch.manual_seed(0)
    picks = [r.problem.id for r in heavy.next(2, context(rated(0.0, 0.5, 1.0, 0.5, 0.0)))]
    assert set(picks) == {"p1", "p3"}


@pytest.mark.parametrize("rate", [1.5, -0.1, "often", float("nan")])
def test_a_wrong_pass_rate_names_the_problem(rate: object):
    with pytest.raises(ValueError, match=r"warm_start: 'rate' must hold pass rates in \[0, 1\], problem p1"):
        Thompson(warm_start="rate").next(1, context(rated(0.5, rate)))


def test_a_warm_start_from_a_column_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="no problem has a number in the column 'rate'"):
        Thompson(warm_start="rate").next(1, context(problems_of(3)))
    with pytest.raises(ValueError, match="warm_weight"):
        Thompson(warm_weight=-1)


def test_picks_are_logged_by_believed_success_and_spread():
    ctx = context(rated(0.0, 0.0, 1.0, 1.0))
    sampler = Thompson(warm_start="rate", warm_weight=98.0, per_pass=1.0)
    sampler.next(4, ctx)  # beliefs 0.01 and 0.99
    shares = [ctx.logged[f"thompson/picks/{lower}"] for lower in ("0.0", "0.2", "0.4", "0.6", "0.8")]
    assert shares == [0.5, 0.0, 0.0, 0.0, 0.5]
    assert ctx.logged["thompson/coverage"] == 1 and ctx.logged["thompson/most_picks"] == 1
    again = Thompson(warm_start="rate", warm_weight=98.0, per_pass=1.0)
    again.load_state_dict(sampler.state_dict())
    fresh = context(rated(0.0, 0.0, 1.0, 1.0))
    again.next(4, fresh)
    assert fresh.logged["thompson/most_picks"] == 2
