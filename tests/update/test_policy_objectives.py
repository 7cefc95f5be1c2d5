"""Ratio objectives, masks and regularizers: worked numbers, limit cases, gradients, padding."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from tests.update.helpers_update import call, gradient, mask_of, random_case, rows

from gainstage.registry import RecipeError, build, find, names
from gainstage.update.objectives.policy.aggregation import aggregate
from gainstage.update.objectives.policy.clipped import clipped, clipped_surrogate, truncated_importance
from gainstage.update.objectives.policy.importance import (
    cumulative_weight,
    importance,
    importance_weighted,
    log_ratio,
    shaped_weight,
    truncated_weight,
)
from gainstage.update.objectives.policy.policy_gradient import log_likelihood_terms, policy_gradient
from gainstage.update.objectives.policy.ratio_masks import (
    one_side,
    one_side_keep,
    prefix_divergence,
    prefix_divergence_keep,
    ratio_terms,
    ring_keep,
    two_side_keep,
    uniform_divergence,
    uniform_divergence_keep,
)
from gainstage.update.objectives.policy.regularizers import entropy_bonus, reference_kl, reference_kl_terms

INF = math.inf
ALL = [
    ("policy_gradient", {}),
    ("clipped", {}),
    ("clipped", {"low": INF, "high": INF}),
    ("clipped", {"dual": 3.0, "high": 0.28}),
    ("clipped", {"level": "sequence", "low": 0.1, "high": 0.1}),
    ("clipped", {"level": "sequence_token", "low": 0.1, "high": 0.1}),
    ("clipped", {"denominator": "old_logprobs"}),
    ("truncated_importance", {}),
    ("importance_weighted", {}),
    ("importance_weighted", {"kind": "cumulative"}),
    ("uniform_divergence", {}),
    ("prefix_divergence", {}),
    ("one_side", {}),
    ("two_side", {"importance": False}),
    ("ring", {}),
    ("reference_kl", {"weight": 0.3}),
    ("reference_kl", {"kind": "k2", "weight": 0.3}),
    ("likelihood", {}),
    ("unlikelihood", {}),
    ("entropy_bonus", {}),
]
made = pytest.mark.parametrize(("name", "chosen"), ALL, ids=[f"{n}-{'-'.join(map(str, s.values()))}" for n, s in ALL])


def one(values: list[float]) -> torch.Tensor:
    return rows([values])


# --- worked numbers -------------------------------------------------------------------------------------------------


def test_policy_gradient_with_kl_of_one_answer():
    logp, ref, mask = one([0.5, 0.25]).log().requires_grad_(), one([0.4, 0.3]).log(), torch.ones(1, 2).bool()
    policy = aggregate(log_likelihood_terms(logp, torch.full((1, 2), 1.5), mask), mask, "sequence_mean")
    assert float(policy.detach()) == pytest.approx(1.559581, abs=1e-6)
    policy.backward()
    assert logp.grad.tolist() == [[-0.75, -0.75]]
    kl = reference_kl_terms(logp, ref, mask, "k3")
    assert kl[0].tolist() == pytest.approx([0.023144, 0.017678], abs=1e-6)
    assert float((policy + 0.04 * kl.mean()).detach()) == pytest.approx(1.560398, abs=1e-6)


def test_two_answers_under_two_aggregations():
    values = [[0.5, 0.8], [0.4]]
    logp, mask = rows(values, fill=1.0).log(), mask_of(values)
    advantages = torch.tensor([[0.707106], [-0.707106]], dtype=torch.float64).expand(2, 2)
    terms = log_likelihood_terms(logp, advantages, mask)
    assert float(aggregate(terms, mask, "sequence_mean")) == pytest.approx(-0.161979, abs=1e-6)
    assert float(aggregate(terms, mask, "token_mean")) == pytest.approx(0.0, abs=1e-6)


def test_policy_gradient_shows_how_far_its_data_have_drifted():
    values = [[math.log(0.6), math.log(0.2)], [math.log(0.5)]]
    mask = mask_of(values)
    case = {
        "logprobs": rows(values),
        "mask": mask,
        "advantages": torch.ones(2, 2, dtype=torch.float64),
        "behaviour_logprobs": torch.full((2, 2), math.log(0.4), dtype=torch.float64),
        "entropy": torch.zeros(2, 2),
    }
    assert call(policy_gradient, case)[1]["ratio/mean"][mask].tolist() == pytest.approx([1.5, 0.5, 1.25])
    del case["behaviour_logprobs"]
    assert "ratio/mean" not in call(policy_gradient, case)[1]


def test_clipped_surrogate_of_positive_rewards():
    ratio = one([0.7, 1.1, 1.5]).log().requires_grad_()
    terms, stats = clipped_surrogate(ratio, torch.zeros(1, 3), torch.ones(1, 3), torch.ones(1, 3).bool())
    assert (-terms)[0].tolist() == pytest.approx([0.7, 1.1, 1.2])
    terms.sum().backward()
    assert (ratio.grad[0] != 0).tolist() == [True, True, False]
    assert stats["ratio/clipped_high"].tolist() == [[0.0, 0.0, 1.0]]
    assert stats["ratio/clipped_low"].sum() == 0


def test_prefix_divergence_drops_by_budget():
    new, old = one([0.52, 0.62, 0.40, 0.55, 0.30]).log(), one([0.5, 0.5, 0.26, 0.6, 0.2]).log()
    advantages, mask = torch.ones(1, 5), torch.ones(1, 5).bool()
    keep, stats = prefix_divergence_keep(new, old, advantages, mask)
    assert stats["tv/mean"][0].tolist() == pytest.approx([0.02, 0.12, 0.14, 0.05, 0.10])
    assert keep.tolist() == [[True, True, False, True, False]]
    assert stats["ratio/masked_budget"].tolist() == [[0, 0, 1, 0, 1]]
    assert stats["ratio/masked_threshold"].sum() == 0
    loss = aggregate(ratio_terms(new, old, advantages, mask, keep), mask, "token_mean")
    assert float(loss) == pytest.approx(-0.639333, abs=1e-6)
    assert bool(uniform_divergence_keep(new, old, advantages, mask, 0.15).all())


def test_masks_of_group_relative_reinforce():
    ratio = one([1.5, 0.75, 0.3, 1.0, 3.2])
    good, bad = torch.full((1, 5), 0.75), torch.full((1, 5), -0.25)
    expected = [
        (one_side_keep, good, [0, 1, 1, 1, 0]),
        (two_side_keep, good, [0, 0, 0, 1, 0]),
        (ring_keep, good, [0, 0, 1, 1, 0]),
        (one_side_keep, bad, [1, 0, 0, 1, 1]),
        (two_side_keep, bad, [0, 0, 0, 1, 0]),
        (ring_keep, bad, [0, 0, 0, 1, 1]),
    ]
    for keep, advantages, wanted in expected:
        assert keep(ratio, advantages)[0].int().tolist() == wanted


@pytest.mark.parametrize(
    ("name", "loss"),
    [("policy_gradient", 0.712703), ("one_side", 0.569136), ("two_side", 0.103972), ("ring", 0.388540)],
)
def test_losses_of_group_relative_reinforce(name, loss):
    old = one([0.4, 0.4, 0.5, 0.5, 0.2])
    case = {
        "mask": torch.ones(1, 5).bool(),
        "advantages": torch.full((1, 5), 0.75, dtype=torch.float64),
        "behaviour_logprobs": old.log(),
        "logprobs": (old * one([1.5, 0.75, 0.3, 1.0, 3.2])).log(),
        "entropy": torch.zeros(1, 5),
    }
    settings = {} if name == "policy_gradient" else {"importance": False}
    assert gradient(build("objective", name, settings), case)[0] == pytest.approx(loss, abs=1e-6)
    if name == "one_side":
        _, slope = gradient(build("objective", name, {"importance": True}), case)
        assert slope[0].tolist() == pytest.approx([0, -0.1125, -0.045, -0.15, 0], abs=1e-7)


# --- slow references and limit cases --------------------------------------------------------------------------------


def test_sequence_ratio_equals_the_papers_formula():
    case = random_case()
    objective = functools.partial(clipped, level="sequence", low=0.05, high=0.08)
    loss, _ = gradient(objective, {**case, "advantages": case["advantages"][:, :1].expand(-1, 5)}, "sequence_mean")
    total, size = 0.0, case["mask"].shape[0]
    for i in range(size):
        length = int(case["mask"][i].sum())
        gap = case["logprobs"][i, :length] - case["behaviour_logprobs"][i, :length]
        ratio, advantage = math.exp(float(gap.sum()) / length), float(case["advantages"][i, 0])
        total += min(ratio * advantage, min(max(ratio, 0.95), 1.08) * advantage)
    assert loss == pytest.approx(-total / size, abs=1e-6)


def test_sequence_token_has_the_value_and_gradient_of_sequence_where_advantages_are_shared():
    case = random_case(3)
    case["advantages"] = case["advantages"][:, :1].expand(-1, 5)
    whole = gradient(functools.partial(clipped, level="sequence"), case, "sequence_mean")
    token = gradient(functools.partial(clipped, level="sequence_token"), case, "sequence_mean")
    assert token[0] == pytest.approx(whole[0])
    torch.testing.assert_close(token[1], whole[1])


def test_sequence_level_with_answers_of_one_token_is_the_token_level():
    case = random_case(1, lengths=(1, 1, 1, 1))
    token = gradient(clipped, case, "sequence_mean")
    sequence = gradient(functools.partial(clipped, level="sequence"), case, "sequence_mean")
    assert token[0] == sequence[0]
    assert torch.equal(token[1], sequence[1])


def test_infinite_bounds_are_the_plain_ratio():
    case = random_case(2)
    terms, stats = call(functools.partial(clipped, low=INF, high=INF), case)
    ratio = (case["logprobs"] - case["behaviour_logprobs"]).exp()
    expected = torch.where(case["mask"], -ratio * case["advantages"], 0.0)
    torch.testing.assert_close(terms, expected)
    assert stats["ratio/clipped_low"].sum() + stats["ratio/clipped_high"].sum() == 0


def test_at_the_sampling_weights_ratio_and_likelihood_have_one_gradient_and_two_values():
    case = random_case(4)
    case["logprobs"] = case["behaviour_logprobs"].clone()
    case["advantages"] = case["advantages"] - case["advantages"][case["mask"]].mean()
    others = [policy_gradient, one_side, uniform_divergence, prefix_divergence, importance_weighted]
    value, slope = gradient(clipped, case)
    assert value == pytest.approx(0.0, abs=1e-6)
    for objective in others:
        torch.testing.assert_close(gradient(objective, case)[1], slope)
    assert abs(gradient(policy_gradient, case)[0]) > 1e-3


def test_one_side_mask_has_the_gradient_of_the_clip():
    case = random_case(5)
    torch.testing.assert_close(gradient(one_side, case)[1], gradient(clipped, case)[1])


def test_prefix_divergence_without_weights_and_with_a_huge_budget_is_uniform():
    for seed in range(5):
        case = random_case(seed)
        prefix = functools.partial(prefix_divergence, w_min=1.0, d=1e30, delta=0.05)
        loss, slope = gradient(prefix, case)
        expected = gradient(functools.partial(uniform_divergence, delta=0.05), case)
        assert loss == expected[0]
        assert torch.equal(slope, expected[1])


def test_prefix_divergence_is_stricter_early():
    """The same change at every place, away from the sampler: what is dropped is dropped at the front."""
    old, new = torch.full((1, 6), 0.30).log(), torch.full((1, 6), 0.46).log()
    keep, _ = prefix_divergence_keep(new, old, torch.ones(1, 6), torch.ones(1, 6).bool(), delta=0.15, d=10.0)
    assert keep.tolist() == [[False, False, True, True, True, True]]  # 0.16, 0.1536, 0.1472, ...


def test_dual_clip_bounds_what_a_huge_ratio_may_weigh():
    logp, mask = torch.tensor([[math.log(50.0), math.log(2.0)]]), torch.ones(1, 2).bool()
    terms, stats = clipped_surrogate(logp, torch.zeros(1, 2), -torch.ones(1, 2), mask, dual=3.0)
    assert terms[0].tolist() == pytest.approx([3.0, 2.0])
    assert stats["ratio/clipped_dual"].tolist() == [[1.0, 0.0]]
    positive, _ = clipped_surrogate(logp, torch.zeros(1, 2), torch.ones(1, 2), mask, dual=3.0)
    assert positive[0].tolist() == pytest.approx([-1.2, -1.2])


def test_asymmetric_bounds_act_on_their_own_side():
    ratio = torch.tensor([[1.25, 0.75]]).log()
    advantages, mask = torch.tensor([[1.0, -1.0]]), torch.ones(1, 2).bool()
    terms, stats = clipped_surrogate(ratio, torch.zeros(1, 2), advantages, mask, low=0.1, high=0.28)
    assert terms[0].tolist() == pytest.approx([-1.25, 0.9])
    assert stats["ratio/clipped_high"].tolist() == [[0.0, 0.0]]
    assert stats["ratio/clipped_low"].tolist() == [[0.0, 1.0]]


def test_importance_weights():
    logp, other, mask = (
        torch.tensor([[0.0, math.log(4.0), -1.0]]),
        torch.zeros(1, 3),
        torch.tensor([[True, True, False]]),
    )
    assert truncated_weight(logp, other, mask, cap=2.0).tolist() == [[1.0, 2.0, 0.0]]
    assert cumulative_weight(logp + math.log(0.5), other, mask, cap=9.0)[0].tolist() == pytest.approx([0.5, 1.0, 0.0])
    assert shaped_weight(logp, other, mask, shape=1.0)[0].tolist() == pytest.approx([0.5, 0.8, 0.0])
    assert importance(logp, other, mask, "clipped", low=0.5, high=1.0).tolist() == [[1.0, 2.0, 0.0]]
    with pytest.raises(ValueError, match="importance kind must be one of truncated"):
        importance(logp, other, mask, "plain")


def test_truncated_importance_without_a_gap_is_the_clip():
    case = random_case(6)
    case["old_logprobs"] = case["behaviour_logprobs"].clone()
    assert torch.equal(gradient(truncated_importance, case)[1], gradient(clipped, case)[1])


# --- regularizers ---------------------------------------------------------------------------------------------------


def test_k2_gradient_is_that_of_the_reverse_kl_and_k1_has_none():
    """Exact expectation over a small vocabulary, samples from the policy itself."""
    theta = torch.tensor([0.3, -0.2, 0.9, 0.0], dtype=torch.float64, requires_grad=True)
    ref = torch.log_softmax(torch.tensor([0.0, 0.4, -0.5, 0.2], dtype=torch.float64), 0)

    def slope(of):
        return torch.autograd.grad(of(torch.log_softmax(theta, 0)), theta)[0]

    exact = slope(lambda logp: (logp.exp() * (logp - ref)).sum())
    weight = torch.log_softmax(theta, 0).exp().detach()
    k2 = slope(lambda logp: (weight * reference_kl_terms(logp, ref, torch.ones(4).bool(), "k2")).sum())
    k1 = slope(lambda logp: (weight * (logp - ref)).sum())
    torch.testing.assert_close(k2, exact)
    assert float(k1.abs().max()) < 1e-12
    k3 = (weight * reference_kl_terms(torch.log_softmax(theta, 0), ref, torch.ones(4).bool(), "k3")).sum()
    assert float(k3.detach()) == pytest.approx(float((weight * (weight.log() - ref)).sum()), abs=1e-12)


def test_k1_is_refused_when_the_recipe_is_read():
    with pytest.raises(RecipeError, match="k1 cannot be a loss"):
        build("objective", "reference_kl", {"kind": "k1"})
    with pytest.raises(ValueError, match="put k1 into the reward"):
        reference_kl_terms(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1).bool(), "k1")


def test_entropy_bonus_pays_for_entropy():
    case = random_case()
    terms, stats = call(functools.partial(entropy_bonus, weight=0.5), case)
    torch.testing.assert_close(terms, torch.where(case["mask"], -0.5 * case["entropy"], 0.0))
    assert torch.equal(stats["entropy/mean"], torch.where(case["mask"], case["entropy"], 0.0))
    case["entropy"] = None
    with pytest.raises(ValueError, match="reports no entropy"):
        call(entropy_bonus, case)


@pytest.mark.parametrize("pad", [0, 3, 8])
def test_metrics_do_not_see_padding(pad):
    """Two real log-probs; the summed negative log-prob and the KL are the same for any amount of filler."""
    logp = torch.cat((torch.tensor([[-0.5, -1.5]]), torch.ones(1, pad)), 1)
    mask = torch.tensor([[True, True] + [False] * pad])
    terms, stats = clipped_surrogate(logp, logp - 0.1, torch.ones_like(logp), mask)
    assert float(log_likelihood_terms(logp, torch.ones_like(logp), mask).sum()) == pytest.approx(2.0)
    assert float(stats["kl/behaviour"].sum()) == pytest.approx(2 * (math.exp(0.1) - 1.1), abs=1e-6)
    assert float(terms.sum()) == pytest.approx(-2 * math.exp(0.1), abs=1e-5)
    assert float(reference_kl_terms(logp, logp - 1.0, mask, "k2").sum()) == pytest.approx(1.0)


# --- every objective ------------------------------------------------------------------------------------------------


DETACHED = ("importance_weighted", "one_side", "two_side", "ring")  # a weight without gradient: see the limit cases
WITH_PLAIN_GRADIENT = [
    (n, s) for n, s in ALL if n not in (*DETACHED, "entropy_bonus") and s.get("level") != "sequence_token"
]


@pytest.mark.parametrize(("name", "chosen"), WITH_PLAIN_GRADIENT)
def test_gradient_equals_finite_differences(name, chosen):
    case, objective = random_case(7), build("objective", name, chosen)
    logprobs = case["logprobs"].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: call(objective, case, x)[0], (logprobs,), eps=1e-7, atol=1e-5)


@made
def test_padding_reaches_nothing(name, chosen):
    """NaN and infinities where the mask is false change neither terms nor gradient, and more padding neither."""
    objective, case = build("objective", name, chosen), random_case(8)
    clean = call(objective, case)[0]
    wide = {}
    for key, value in case.items():
        wide[key] = torch.nn.functional.pad(value, (0, 2))
        if key != "mask":
            wide[key] = wide[key].masked_fill(~wide["mask"], INF if key == "advantages" else math.nan)
    logprobs = wide["logprobs"].clone().requires_grad_()
    terms, stats = call(objective, wide, logprobs)
    torch.testing.assert_close(terms[:, :5], clean, rtol=0, atol=0)
    assert torch.equal(terms[:, 5:], torch.zeros_like(terms[:, 5:]))
    for value in stats.values():
        assert bool(torch.isfinite(value[wide["mask"]]).all())
    if terms.requires_grad:
        terms.sum().backward()
        assert bool(torch.isfinite(logprobs.grad).all())
        assert float(logprobs.grad[~wide["mask"]].abs().max()) == 0.0


@made
def test_rows_do_not_see_each_other(name, chosen):
    """A row's terms are the same alone and in company: what makes micro-batches exact."""
    objective, case = build("objective", name, chosen), random_case(9)
    together = call(objective, case)[0]
    for i in range(4):
        alone = call(objective, {k: v[i : i + 1] for k, v in case.items()})[0]
        torch.testing.assert_close(alone, together[i : i + 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", ["sequence_mean", "token_mean", "sequence_sum"])
@made
def test_any_micro_batch_split_gives_the_same_gradient(name, chosen, how):
    from gainstage.update.objectives.policy.aggregation import token_weights

    objective, case = build("objective", name, chosen), random_case(10, dtype=torch.float32)
    theta = torch.zeros(5, requires_grad=True)
    weights = token_weights(case["mask"], how)

    def slope(parts):
        for part in parts:
            piece = {k: v[part] for k, v in case.items()}
            piece["entropy"] = piece["entropy"] * (1 + theta)
            terms = call(objective, piece, piece["logprobs"] + theta)[0]
            (terms * weights[part]).sum().backward()
        found, theta.grad = theta.grad.clone(), None
        return found

    whole = slope([[0, 1, 2, 3]])
    for parts in ([[0], [1], [2], [3]], [[3, 1], [0, 2]], [[0, 1, 3], [2]]):
        torch.testing.assert_close(slope(parts), whole, rtol=1e-6, atol=1e-6)


RATIO_FAMILY = [
    n
    for n in names("objective")
    if any("logprobs" in c or c == "{denominator}" for c in getattr(find("objective", n).make, "needs", ()))
]
"""Objectives that compare two log-probs of the same decision."""


@pytest.mark.parametrize("name", [n for n in RATIO_FAMILY if n not in ("policy_gradient", "reference_kl")])
@pytest.mark.parametrize("value", [math.nan, -INF])
def test_a_decision_whose_sampler_log_prob_is_missing_is_dropped_and_counted(name, value):
    case = random_case(11)
    case["behaviour_logprobs"][0, 1] = value
    terms, stats = call(build("objective", name), case)
    assert float(terms[0, 1]) == 0.0
    assert stats["ratio/dropped"].sum() == 1 and stats["ratio/dropped"][0, 1] == 1
    assert bool(torch.isfinite(gradient(build("objective", name), case)[1]).all())


def test_a_nan_log_prob_of_the_policy_is_dropped_and_counted():
    case = random_case(12)
    case["logprobs"][1, 0] = math.nan
    for name in RATIO_FAMILY:
        terms, stats = call(build("objective", name), case)
        assert bool(torch.isfinite(terms).all()), name
        counted = stats.get("ratio/dropped", stats.get("kl/ref_dropped"))
        assert float(counted.sum()) == 1.0, name


def test_extreme_log_ratios_stay_finite():
    logp = torch.tensor([[-0.01, -900.0]], requires_grad=True)
    terms, _ = clipped_surrogate(logp, torch.tensor([[-900.0, -0.01]]), -torch.ones(1, 2), torch.ones(1, 2).bool())
    terms.sum().backward()
    assert bool(torch.isfinite(terms).all()) and bool(torch.isfinite(logp.grad).all())
    ratio, usable = log_ratio(logp, torch.zeros(1, 2), torch.ones(1, 2).bool())
    assert float(ratio.detach().min()) == -20.0 and bool(usable.all())


@pytest.mark.parametrize(
    ("name", "chosen", "words"),
    [
        ("clipped", {"low": -0.1}, "low.*greater than or equal to 0"),
        ("clipped", {"dual": 1.0}, "dual.*greater than 1"),
        ("clipped", {"level": "word"}, "level"),
        ("clipped", {"denominator": "ref_logprobs"}, "denominator"),
        ("prefix_divergence", {"w_min": 1.5}, "w_min"),
        ("prefix_divergence", {"d": INF}, "objective.prefix_divergence.d: Input should be a finite number"),
        ("uniform_divergence", {"delta": 0}, "delta"),
        ("importance_weighted", {"cap": 0}, "cap"),
        ("reference_kl", {"weight": -1}, "weight"),
    ],
)
def test_wrong_settings_are_refused_when_the_recipe_is_read(name, chosen, words):
    with pytest.raises(RecipeError, match=words):
        build("objective", name, chosen)


def test_infinite_bounds_can_be_written_in_a_recipe():
    assert build("objective", "clipped", {"high": INF}).keywords == {"high": INF}
    assert reference_kl.needs == ("mask", "ref_logprobs")
