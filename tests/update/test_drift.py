"""Drifts: the numbers of the closed form, the conditions of mirror learning, and what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.update.helpers_update import call, gradient, random_case

from gainstage.registry import RecipeError, build
from gainstage.update.objectives.policy import drift
from gainstage.update.objectives.policy.drift import check_drift, features, make_drift, standardised, unflatten

RATIO_ADV = [(1.0, 1.0), (1.5, 1.0), (2.0, 2.0), (0.5, 1.0), (0.5, -1.0), (0.2, -2.0), (1.5, -1.0)]
DRIFT = [0, 0.0101627, 0.4768117, 0, 0.2014566, 2.6189021, 0]
OBJECTIVE = [1, 1.4898373, 3.5231883, 0.5, -0.7014566, -3.0189021, -1.5]
SLOPE = [1, 0.9400148, 0.8399487, 1, 0.3431090, 7.9991245, -1]


def weights(width: int = 16, scale: float = 1.0, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return unflatten(scale * torch.randn(9 * width, generator=generator, dtype=torch.float64))


def test_the_closed_form_and_the_slope_of_its_objective():
    r = torch.tensor([x for x, _ in RATIO_ADV], dtype=torch.float64, requires_grad=True)
    a = torch.tensor([x for _, x in RATIO_ADV], dtype=torch.float64)
    value = drift.discovered(r, r.log(), a)
    objective = r * a - value
    (slope,) = torch.autograd.grad(objective.sum(), r)
    assert torch.allclose(value, torch.tensor(DRIFT, dtype=torch.float64), atol=5e-8)
    assert torch.allclose(objective, torch.tensor(OBJECTIVE, dtype=torch.float64), atol=5e-8)
    assert torch.allclose(slope, torch.tensor(SLOPE, dtype=torch.float64), atol=5e-7)
    # an action that fell too far is pushed up again although its advantage is negative
    assert slope[4] > 0 and slope[5] > 0


def test_the_clip_as_a_drift():
    r, a = torch.tensor([1.5, 0.5, 0.5]), torch.tensor([1.0, -1.0, 1.0])
    assert torch.allclose(drift.ppo_clip(r, r.log(), a), torch.tensor([0.3, 0.3, 0.0]))


@pytest.mark.parametrize("eps", [0.1, 0.2])
def test_ppo_clip_is_the_clipped_objective_in_value_and_gradient(eps: float):
    case = random_case(3)
    ours = build("objective", "drift", {"kind": {"ppo_clip": {"eps": eps}}})
    theirs = build("objective", "clipped", {"low": eps, "high": eps})
    assert torch.allclose(call(ours, case)[0], call(theirs, case)[0], atol=1e-6)
    (loss, grad), (other, other_grad) = gradient(ours, case), gradient(theirs, case)
    assert abs(loss - other) < 1e-6 and torch.allclose(grad, other_grad, atol=1e-6)


def test_features_of_the_learnt_drift():
    r = torch.tensor([1.5], dtype=torch.float64)
    wanted = torch.tensor([0.405465, 0.164402, -0.5, 0.25, 0.810930, 0.328804, -1, 0.5], dtype=torch.float64)
    assert torch.allclose(features(r, r.log(), torch.tensor([2.0]).double())[0], wanted, atol=1e-6)
    one = torch.ones(1)
    assert not features(one, one.log(), torch.tensor([7.0])).any()


@pytest.mark.parametrize("seed", range(5))
def test_a_learnt_drift_is_one_whatever_its_weights_are(seed: int):
    check_drift(partial(drift.learnt, params=weights(seed=seed, scale=0.2)))
    params = weights(seed=seed, scale=5.0)
    r = torch.ones(5, dtype=torch.float64, requires_grad=True)
    value = drift.learnt(r, r.log(), torch.linspace(-3, 3, 5).double(), params=params)
    (slope,) = torch.autograd.grad(value.sum(), r)
    assert not value.any() and not slope.any()
    far = torch.logspace(-1, 1, 50).double()
    assert (drift.learnt(far, far.log(), torch.full_like(far, -1.0), params=params) >= 0).all()


def test_a_learnt_drift_that_starts_at_the_clip():
    r = torch.tensor([0.5, 1.5, 1.1]).double()
    a = torch.tensor([-1.0, 1.0, 1.0]).double()
    zero = {name: torch.zeros_like(value) for name, value in weights().items()}
    near = drift.learnt(r, r.log(), a, params=zero, eps=0.2)
    assert torch.allclose(near, drift.ppo_clip(r, r.log(), a).sub(drift.SLACK).clamp(min=0))


@pytest.mark.parametrize("kind", ["discovered", "ppo_clip", "kl", "none", "learnt"])
def test_all_drifts_meet_the_conditions(kind: str):
    check_drift(make_drift(kind), kind)


def test_kl_drift_is_the_divergence_of_old_from_new():
    old, new = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.4, 0.4, 0.2])
    r = new / old
    assert torch.allclose((old * drift.kl(r, r.log(), torch.zeros(3))).sum(), (old * (old / new).log()).sum())


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda r, log, a: (r - 1) * a, "at least 0"),
        (lambda r, log, a: torch.ones_like(r), "must be 0 where"),
        (lambda r, log, a: (r - 1).abs(), "no slope"),
        (lambda r, log, a: torch.full_like(r, torch.nan), "at least 0"),
    ],
)
def test_what_is_no_drift_is_refused_with_the_place(function, said: str):
    with pytest.raises(ValueError, match=said) as error:
        check_drift(function, "mine")
    assert "ratio" in str(error.value) and "advantage" in str(error.value)


def test_a_function_of_the_users_own(tmp_path: Path):
    good = tmp_path / "mine.py"
    good.write_text(
        "def square(ratio, log_ratio, adv, weight=1.0):\n    return weight * log_ratio**2 * adv.abs()\n"
        "def kink(ratio, log_ratio, adv):\n    return (ratio - 1).abs()\n"
    )
    made = build("objective", "drift", {"kind": {f"{good}:square": {"weight": 0.5}}})
    assert call(made, random_case())[0].isfinite().all()
    with pytest.raises(RecipeError, match="no slope"):
        build("objective", "drift", {"kind": f"{good}:kink"})
    with pytest.raises(RecipeError, match="names no function"):
        make_drift(f"{good}:absent")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("discoverd", "did you mean 'discovered'"),
        ({"discovered": {"alpha": 0}}, "alpha and beta must be positive"),
        ({"discovered": {"beta": -1}}, "alpha and beta must be positive"),
        ({"discovered": {"gamma": 1}}, "no setting 'gamma'"),
        ({"ppo_clip": {"eps": 0}}, "eps must be positive"),
        ({"learnt": {"params": "absent.safetensors"}}, "cannot be read"),
        ({"discovered": {}, "kl": {}}, "one `name: settings` pair"),
    ],
)
def test_wrong_settings_say_what_to_change(kind, said: str):
    with pytest.raises(RecipeError, match=said):
        build("objective", "drift", {"kind": kind})


def test_foreign_weights_are_refused(tmp_path: Path):
    save_file({"hidden": torch.zeros(4, 7), "out": torch.zeros(4)}, tmp_path / "x.safetensors")
    with pytest.raises(RecipeError, match=r"must hold hidden \[H, 8\]"):
        make_drift({"learnt": {"params": str(tmp_path / "x.safetensors")}})
    with pytest.raises(ValueError, match="9 H weights"):
        unflatten(torch.zeros(10))


def test_equal_advantages_give_no_loss_and_no_gradient():
    case = random_case()
    case["advantages"] = torch.full_like(case["advantages"], 0.3) + 1e-9 * case["advantages"]
    loss, grad = gradient(build("objective", "drift", {"standardise": True}), case)
    assert loss == 0 and not grad.any()


def test_standardised_over_real_positions_by_the_population_std():
    x = torch.tensor([[1.0, 2.0, torch.nan], [3.0, 4.0, 9.0]])
    mask = torch.tensor([[True, True, False], [True, True, False]])
    wanted = torch.tensor([[-3.0, -1.0, 0.0], [1.0, 3.0, 0.0]]) / 5**0.5
    assert torch.allclose(standardised(x, mask), wanted)
    assert not standardised(torch.full((2, 2), 0.1)).any()


def test_small_advantages_leave_the_plain_policy_gradient():
    r, a = torch.tensor([1.3]).double(), torch.tensor([1e-3]).double()
    value = drift.discovered(r, r.log(), a)
    assert 0 <= value < 1e-10  # cubic in A


def test_an_action_that_had_probability_zero_has_a_bounded_ratio():
    case = random_case()
    case["behaviour_logprobs"] = torch.where(case["mask"], -80.0, 0.0).double()
    terms, stats = call(build("objective", "drift"), case)
    assert terms.isfinite().all() and stats["ratio/mean"].max() <= torch.tensor(10.0).exp() + 1
    case["behaviour_logprobs"][0, 0] = -torch.inf
    terms, stats = call(build("objective", "drift"), case)
    assert terms[0, 0] == 0 and stats["ratio/dropped"][0, 0] == 1


def test_no_drift_is_the_bare_surrogate_and_no_log_of_a_clip_is_taken():
    case = random_case()
    terms, _ = call(build("objective", "drift", {"kind": "none"}), case)
    ratio = (case["logprobs"] - case["behaviour_logprobs"]).exp()
    assert torch.allclose(terms, torch.where(case["mask"], -ratio * case["advantages"], 0.0))
