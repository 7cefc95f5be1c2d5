"""Likelihood, unlikelihood, preference pairs and distillation."""

from __future__ import annotations

import math

import pytest
import torch
from tests.update.helpers_update import call, gradient, mask_of, random_case, rows

from gainstage.registry import RecipeError, build
from gainstage.update.objectives.imitation.distillation import sampled_token_distillation, token_distillation
from gainstage.update.objectives.imitation.likelihood import likelihood, likelihood_terms, unlikelihood_terms
from gainstage.update.objectives.imitation.preference import LOSSES, Pairs, PreferenceLearner, preference_loss
from gainstage.update.objectives.policy.aggregation import aggregate
from gainstage.update.objectives.policy.policy_gradient import policy_gradient

# --- likelihood -----------------------------------------------------------------------------------------------------


def test_rejection_fine_tuning_counts_wrong_answers_in_the_denominator_only():
    values = [[0.5, 0.5], [0.25]]
    logp, mask = rows(values, fill=math.nan).log(), mask_of(values)
    weight = torch.tensor([[1.0], [0.0]])
    assert float(aggregate(likelihood_terms(logp, mask, weight), mask, "token_mean")) == pytest.approx(
        0.462098, abs=1e-6
    )


def test_weighted_likelihood_is_the_policy_gradient_of_non_negative_advantages():
    case = random_case()
    case["advantages"] = case["advantages"].clamp(min=0)
    weighted = build("objective", "weighted_likelihood")
    assert gradient(weighted, case)[0] == pytest.approx(gradient(policy_gradient, case)[0])
    torch.testing.assert_close(gradient(weighted, case)[1], gradient(policy_gradient, case)[1])
    case["advantages"][0, 0] = -0.5
    with pytest.raises(ValueError, match="use the objective policy_gradient"):
        call(weighted, case)


def test_a_weight_of_zero_excuses_what_the_policy_cannot_say():
    logp = torch.tensor([[-math.inf, -1.0]], requires_grad=True)
    terms = likelihood_terms(logp, torch.ones(1, 2).bool(), torch.tensor([[0.0, 1.0]]))
    terms.sum().backward()
    assert terms[0].tolist() == [0.0, 1.0] and logp.grad[0].tolist() == [0.0, -1.0]
    case = {**random_case(), "logprobs": logp.detach().expand(4, 2), "mask": torch.ones(4, 2).bool()}
    assert float(call(likelihood, case)[0][0, 0]) == math.inf


def test_unlikelihood_pushes_confident_tokens_hardest_and_exempts_none():
    logp = torch.tensor([[0.95, 0.6, 0.1, 0.9999999]], dtype=torch.float64).log().requires_grad_()
    terms = unlikelihood_terms(logp, torch.ones(1, 4).bool())
    assert terms[0].tolist() == pytest.approx([2.995732, 0.916291, 0.105361, 9.210340], abs=1e-5)
    terms.sum().backward()
    assert logp.grad[0].tolist() == pytest.approx([19, 1.5, 0.111111, 9999], rel=1e-5)


def test_a_step_down_the_unlikelihood_lowers_the_probability():
    theta = torch.zeros(1, 1, 3, requires_grad=True)
    logp = torch.log_softmax(theta, -1)[..., 0]
    unlikelihood_terms(logp, torch.ones(1, 1).bool()).sum().backward()
    after = torch.log_softmax(theta.detach() - 0.1 * theta.grad, -1)[..., 0]
    assert float(after) < float(logp.detach())


# --- distillation ---------------------------------------------------------------------------------------------------

TEACHER, STUDENT = rows([[-0.2, -1.0, -3.0, -0.5]]), rows([[-0.7, -0.8, -0.6, -0.5]])
DRIFT = rows([[1.5, 1.419355, 1.387097, 1.0]])


def test_sampled_token_distillation_with_prefix_weights():
    mask = torch.ones(1, 4).bool()
    loss = aggregate(sampled_token_distillation(STUDENT, STUDENT, TEACHER, mask, DRIFT), mask, "token_mean")
    assert float(loss) == pytest.approx(-0.424879, abs=1e-6)
    assert float(sampled_token_distillation(STUDENT, TEACHER, TEACHER, mask, DRIFT).abs().sum()) == 0.0


def test_sampled_token_distillation_ignores_padding_and_refuses_holes():
    mask = torch.tensor([[True, True, False, False]])
    teacher, student = TEACHER.clone(), STUDENT.clone()
    teacher[0, 2:], student[0, 2:] = -math.inf, -math.inf
    logp = STUDENT.clone().requires_grad_()
    terms = sampled_token_distillation(logp, student, teacher, mask)
    terms.sum().backward()
    assert bool(torch.isfinite(logp.grad).all()) and logp.grad[0].tolist() == pytest.approx([-0.5, 0.2, 0, 0])
    with pytest.raises(ValueError, match="2 decisions have no finite teacher log-prob"):
        sampled_token_distillation(logp, STUDENT, teacher, torch.ones(1, 4).bool())


def test_the_sampled_tokens_gradient_is_that_of_the_reverse_kl():
    """Expectation over the vocabulary at one prefix, weights of the student itself."""
    theta = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    teacher = torch.log_softmax(torch.tensor([0.1, 0.7, -0.4], dtype=torch.float64), 0)
    logp = torch.log_softmax(theta, 0)
    each = sampled_token_distillation(logp, logp.detach(), teacher, torch.ones(3).bool())
    sampled = torch.autograd.grad((logp.exp().detach() * each).sum(), theta, retain_graph=True)[0]
    exact = torch.autograd.grad((logp.exp() * (logp - teacher)).sum(), theta)[0]
    torch.testing.assert_close(sampled, exact)


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl", "jsd"])
def test_full_distillation_against_a_loop(divergence):
    student, teacher = torch.randn(2, 3, 5, dtype=torch.float64), torch.randn(2, 3, 5, dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    student[~mask], teacher[~mask] = math.nan, math.inf
    got = token_distillation(student, teacher, mask, divergence, beta=0.3, temperature=2.0)
    for i in range(2):
        for j in range(3):
            if not mask[i, j]:
                assert float(got[i, j]) == 0.0
                continue
            q = [math.exp(float(x) / 2) for x in student[i, j]]
            p = [math.exp(float(x) / 2) for x in teacher[i, j]]
            q, p = [x / sum(q) for x in q], [x / sum(p) for x in p]
            m = [0.3 * a + 0.7 * b for a, b in zip(p, q)]

            def kl(a, b):
                return sum(x * math.log(x / y) for x, y in zip(a, b))

            expected = {"forward_kl": kl(p, q), "reverse_kl": kl(q, p), "jsd": 0.3 * kl(p, m) + 0.7 * kl(q, m)}[
                divergence
            ]
            assert float(got[i, j]) == pytest.approx(expected, abs=1e-6)


def test_full_distillation_gradients_are_finite_and_reach_the_student_only():
    student = torch.full((1, 2, 3), math.nan)
    student[0, 0] = torch.tensor([0.0, 1.0, 2.0])
    student.requires_grad_()
    teacher = torch.randn(1, 2, 3, requires_grad=True)
    token_distillation(student, teacher, torch.tensor([[True, False]]), "jsd").sum().backward()
    assert bool(torch.isfinite(student.grad).all()) and teacher.grad is None


def test_full_distillation_refuses_what_cannot_be_compared():
    logits, mask = torch.zeros(1, 1, 3), torch.ones(1, 1).bool()
    with pytest.raises(ValueError, match="student 3, teacher 4"):
        token_distillation(logits, torch.zeros(1, 1, 4), mask)
    with pytest.raises(ValueError, match="divergence must be"):
        token_distillation(logits, logits, mask, "kl")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="temperature must be > 0"):
        token_distillation(logits, logits, mask, temperature=0.0)


# --- preference -----------------------------------------------------------------------------------------------------


def pairs(**changes):
    values = {
        "chosen": [-5.0, -3.0],
        "rejected": [-4.0, -7.0],
        "ref_chosen": [-6.0, -3.5],
        "ref_rejected": [-4.5, -6.0],
        "n_chosen": [4.0, 2.0],
        "n_rejected": [5.0, 6.0],
    } | changes
    return Pairs(**{k: None if v is None else torch.tensor(v, dtype=torch.float64) for k, v in values.items()})


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def odds(mean: float) -> float:
    return math.exp(mean) / (1 - math.exp(mean))


GAP = [(-5.0 + 6.0) - (-4.0 + 4.5), (-3.0 + 3.5) - (-7.0 + 6.0)]
MEANS = [(-5 / 4, -4 / 5), (-3 / 2, -7 / 6)]


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("dpo", {"beta": 0.3}, [-math.log(sigmoid(0.3 * g)) for g in GAP]),
        (
            "dpo",
            {"beta": 0.3, "label_smoothing": 0.2},
            [-0.8 * math.log(sigmoid(0.3 * g)) - 0.2 * math.log(sigmoid(-0.3 * g)) for g in GAP],
        ),
        (
            "robust_dpo",
            {"beta": 0.3, "label_smoothing": 0.2},
            [(-0.8 * math.log(sigmoid(0.3 * g)) + 0.2 * math.log(sigmoid(-0.3 * g))) / 0.6 for g in GAP],
        ),
        ("ipo", {"beta": 0.4}, [(g - 1.25) ** 2 for g in GAP]),
        ("hinge", {"beta": 0.5}, [max(0.0, 1 - 0.5 * g) for g in GAP]),
        ("slic", {"delta": 1.0, "likelihood": 0.1}, [max(0.0, 1 + 5 - 4) + 0.5, max(0.0, 1 + 3 - 7) + 0.3]),
        ("simpo", {"beta": 2.0, "gamma": 0.5}, [-math.log(sigmoid(2.0 * (w - l) - 0.5)) for w, l in MEANS]),
        ("orpo", {"weight": 0.2}, [-w - 0.2 * math.log(sigmoid(math.log(odds(w) / odds(l)))) for w, l in MEANS]),
    ],
)
def test_preference_losses_are_the_papers_formulas(name, settings, expected):
    losses, stats = preference_loss(name, pairs(), **settings)
    assert losses.tolist() == pytest.approx(expected, abs=1e-9)
    assert stats["preference/margin"].tolist() == pytest.approx(GAP)
    assert stats["preference/accuracy"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("dpo", {"beta": 0.1}, 0.598139),
        ("dpo", {"beta": 0.1, "label_smoothing": 0.1}, 0.618139),
        ("ipo", {"beta": 0.1}, 9.0),
        ("hinge", {"beta": 0.1}, 0.8),
        ("simpo", {"beta": 2.0, "gamma": 1.0}, 1.701413),
        ("orpo", {"weight": 0.1}, 2.085176),
    ],
)
def test_preference_losses_of_one_pair_by_hand(name, settings, expected):
    one = Pairs(*(torch.tensor([x], dtype=torch.float64) for x in (-10, -14, -11, -13, 5, 8)))
    assert preference_loss(name, one, **settings)[0].tolist() == pytest.approx([expected], abs=1e-6)


def test_the_gradient_of_dpo_weighs_by_how_wrong_the_implicit_reward_is():
    given = pairs()
    chosen = given.chosen.clone().requires_grad_()
    loss, _ = preference_loss("dpo", Pairs(chosen, given.rejected, given.ref_chosen, given.ref_rejected), beta=0.3)
    loss.sum().backward()
    assert chosen.grad.tolist() == pytest.approx([-0.3 * sigmoid(-0.3 * g) for g in GAP])


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_preference_gradients_equal_finite_differences(name):
    given = pairs()
    chosen, rejected = given.chosen.clone().requires_grad_(), given.rejected.clone().requires_grad_()

    def losses(w, l):
        return preference_loss(
            name, Pairs(w, l, given.ref_chosen, given.ref_rejected, given.n_chosen, given.n_rejected)
        )[0]

    assert torch.autograd.gradcheck(losses, (chosen, rejected))
    slope = torch.autograd.grad(losses(chosen, rejected).sum(), (chosen, rejected))
    assert bool((slope[0] <= 0).all()) and bool((slope[1] >= 0).all())  # never pushes the chosen answer down


def test_a_tie_counts_one_half():
    given = pairs(chosen=[-6.0, -3.5], rejected=[-4.5, -6.0])
    assert preference_loss("dpo", given)[1]["preference/accuracy"].tolist() == [0.5, 0.5]


def test_extreme_gaps_stay_finite():
    given = pairs(chosen=[-1e4, -1e-12], rejected=[-1e-12, -1e4])
    for name in LOSSES:
        assert bool(torch.isfinite(preference_loss(name, given)[0]).all()), name


def test_preference_refuses_what_it_cannot_use():
    with pytest.raises(ValueError, match="did you mean 'dpo'"):
        preference_loss("dpoo", pairs())
    with pytest.raises(ValueError, match="needs the reference"):
        preference_loss("ipo", pairs(ref_chosen=None, ref_rejected=None))
    with pytest.raises(ValueError, match="needs the lengths"):
        preference_loss("simpo", pairs(n_chosen=None))
    with pytest.raises(ValueError, match="label_smoothing"):
        preference_loss("dpo", pairs(), label_smoothing=0.5)
    with pytest.raises(RecipeError, match="no loss 'spo'"):
        PreferenceLearner(objective="spo")
    with pytest.raises(RecipeError, match="no setting 'betta'; did you mean 'beta'"):
        build("update", "preference", {"objective": {"dpo": {"betta": 1}}})
    assert PreferenceLearner(objective="simpo").needs == ("mask",)
    assert PreferenceLearner().needs == ("mask", "ref_logprobs")
