"""Optimizers by name, schedules, and the guard before a step."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from gainstage import registry
from gainstage.registry import RecipeError
from gainstage.update.optimizers.build import NonFinite, build_optimizer, clip_and_check, scheduled_lr

KINDS = ["adamw", "sgd", "rmsprop", "muon", "adam_mini"]


class Net(nn.Module):
    """An embedding, two hidden layers with a norm and a head of that name."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.hidden = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8))
        self.lm_head = nn.Linear(8, 7, bias=False)

    def forward(self, ids):
        return self.lm_head(self.hidden(self.embed(ids)))


def loss_of(net, seed=0):
    ids = torch.randint(0, 7, (16,), generator=torch.Generator().manual_seed(seed))
    return nn.functional.cross_entropy(net(ids), (ids + 1) % 7)


def train(net, optimizer, steps, start=0):
    for step in range(start, start + steps):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_learns_and_resumes_to_the_bit(kind):
    settings = {"momentum": 0.9} if kind == "sgd" else {}

    def fresh():
        torch.manual_seed(0)
        net = Net()
        return net, build_optimizer(net.named_parameters(), kind, lr=0.02, weight_decay=0.01, module=net, **settings)

    net, optimizer = fresh()
    before = float(loss_of(net).detach())
    train(net, optimizer, 5)
    weights, state = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(net, optimizer, 5, start=5)
    assert float(loss_of(net).detach()) < before
    other, again = fresh()
    other.load_state_dict(weights)
    again.load_state_dict(state)
    train(other, again, 5, start=5)
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), other.state_dict().values()))
    train(other, again, 1, start=10)  # the loaded state is the optimizer's own, and goes on


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "rmsprop"])
def test_decay_spares_norms_biases_and_vectors(kind):
    net = Net()
    optimizer = build_optimizer(net.named_parameters(), kind, lr=0.1, weight_decay=0.5, module=net)
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in net.named_parameters():
        factor = 1.0 if parameter.dim() < 2 else 0.95
        torch.testing.assert_close(parameter.detach(), before[name] * factor, rtol=1e-5, atol=1e-6)


def test_rmsprop_decays_matrices_only():
    net = Net()
    optimizer = build_optimizer(net.named_parameters(), "rmsprop", weight_decay=0.5, module=net)
    assert {p.dim(): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]} == {2: 0.5, 1: 0.0}


def test_norm_weights_with_several_axes_are_spared_too():
    net = nn.Sequential(nn.LayerNorm((2, 3)))
    optimizer = build_optimizer(net.named_parameters(), "adamw", lr=0.1, weight_decay=0.5, module=net)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.0]


def test_muon_takes_hidden_matrices_and_adamw_the_rest():
    net = Net()
    optimizer = build_optimizer(
        [("policy." + n, p) for n, p in net.named_parameters()], "muon", module=net, lr_scale=3.0
    )
    names = {id(p): n for n, p in net.named_parameters()}
    first, *rest = [[names[id(p)] for p in g["params"]] for g in optimizer.param_groups]
    assert first == ["hidden.0.weight", "hidden.3.weight"]
    assert {n for group in rest for n in group} == set(names.values()) - set(first)
    assert optimizer.param_groups[0]["lr_scale"] == 3.0
    train(net, optimizer, 1)
    matrix = net.hidden[0].weight
    assert set(optimizer.state[matrix]) == {"momentum_buffer"}
    assert "exp_avg_sq" in optimizer.state[net.embed.weight]


def test_muon_steps_are_nearly_orthogonal_and_follow_the_rate_of_the_group():
    net = Net()
    optimizer = build_optimizer(net.named_parameters(), "muon", lr=1.0, module=net)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    before = net.hidden[0].weight.detach().clone()
    train(net, optimizer, 1)
    values = torch.linalg.svdvals(net.hidden[0].weight.detach() - before) / (0.01 * 0.2 * math.sqrt(8))
    assert float(values.median()) > 0.6 and float(values.max()) < 1.4


@pytest.mark.parametrize("kind", KINDS)
def test_a_closure_is_called_and_its_loss_returned(kind):
    net = Net()
    optimizer = build_optimizer(net.named_parameters(), kind, lr=0.01, module=net)
    before, first = net.hidden[0].weight.detach().clone(), float(loss_of(net).detach())

    def closure():
        with torch.enable_grad():
            loss = loss_of(net)
            loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == pytest.approx(first)
    assert not torch.equal(before, net.hidden[0].weight)


def test_tied_weights_are_stepped_once():
    net = Net()
    net.lm_head.weight = net.embed.weight
    named = list(net.named_parameters(remove_duplicate=False))
    assert len(named) == len(list(net.parameters())) + 1
    optimizer = build_optimizer(named, "sgd", lr=1.0, module=net)
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(net.parameters()))


@pytest.mark.parametrize(
    ("kind", "settings", "error", "words"),
    [
        ("adamx", {}, RecipeError, "did you mean 'adam' or 'adamw'"),
        ("sgd", {"momentun": 0.9}, RecipeError, "did you mean 'momentum'"),
        ("adamw", {"lr": -1.0}, ValueError, "lr and weight_decay must be >= 0"),
        ("adamw", {"weight_decay": -1.0}, ValueError, "lr and weight_decay must be >= 0"),
        ("adamw", {"betas": (0.9, 1.0)}, ValueError, "betas must lie in"),
        ("muon", {"eps": -1.0}, ValueError, "eps must be >= 0"),
        ("muon", {"ns_steps": 100}, RecipeError, "ns_steps"),
        ("muon", {"momentum": 1.0}, RecipeError, "momentum"),
    ],
)
def test_wrong_settings_are_named(kind, settings, error, words):
    with pytest.raises(error, match=words):
        build_optimizer(Net().named_parameters(), kind, **settings)


def test_no_parameters_is_an_error():
    with pytest.raises(ValueError, match="no parameters to train"):
        build_optimizer([])


# --- schedule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.0, 1.0, 2.0, 2.0, 2.0]),
        ("linear", [0.0, 1.0, 2.0, 1.0, 0.0]),
        ("cosine", [0.0, 1.0, 2.0, 1.0, 0.0]),
    ],
)
def test_schedules_at_their_corners(schedule, expected):
    got = [scheduled_lr(2.0, p, schedule, warmup=0.2) for p in (0.0, 0.1, 0.2, 0.6, 1.0)]
    assert got == pytest.approx(expected, abs=1e-12)


def test_cosine_stays_above_the_line_first_and_below_it_later():
    line, cosine = ([scheduled_lr(1.0, p, s) for p in (0.25, 0.75)] for s in ("linear", "cosine"))
    assert cosine[0] > line[0] and cosine[1] < line[1]
    assert cosine[0] == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_schedule_edges():
    assert scheduled_lr(1.0, 1.5, "linear") == 0.0
    assert scheduled_lr(1.0, 0.5, "cosine", warmup=1.0) == 0.5
    assert scheduled_lr(1.0, 1.0, "linear", warmup=1.0) == 1.0
    with pytest.raises(ValueError, match="schedule must be"):
        scheduled_lr(1.0, 0.5, "step")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="warmup is a share"):
        scheduled_lr(1.0, 0.5, "linear", warmup=20)


# --- guard ----------------------------------------------------------------------------------------------------------


def graded(*gradients):
    named = []
    for i, gradient in enumerate(gradients):
        parameter = nn.Parameter(torch.ones(2))
        parameter.grad = None if gradient is None else torch.tensor(gradient)
        named.append((f"layer{i}", parameter))
    return named


def test_clipping_scales_the_joint_norm_and_returns_the_one_before():
    named = graded([3.0, 0.0], None, [0.0, 4.0])
    assert clip_and_check(named, 1.0) == pytest.approx(5.0)
    assert torch.cat([p.grad for _, p in named if p.grad is not None]).tolist() == pytest.approx([0.6, 0, 0, 0.8])
    assert clip_and_check(named, 2.0) == pytest.approx(1.0)
    assert named[0][1].grad.tolist() == pytest.approx([0.6, 0.0])


@pytest.mark.parametrize("off", [0, None, math.inf])
def test_no_bound_only_measures(off):
    named = graded([30.0, 40.0])
    assert clip_and_check(named, off) == pytest.approx(50.0)
    assert named[0][1].grad.tolist() == [30.0, 40.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("bound", [1.0, 0])
def test_the_first_bad_parameter_is_named_and_nothing_moves(bad, bound):
    named = graded([1.0, 2.0], None, [1.0, bad], [bad, bad])
    with pytest.raises(NonFinite, match=r"layer2 is not finite \(1 of 2 entries\)"):
        clip_and_check(named, bound)
    assert named[0][1].grad.tolist() == [1.0, 2.0]
    assert all(p.detach().tolist() == [1.0, 1.0] for _, p in named)


def test_huge_finite_gradients_are_clipped_not_refused():
    named = graded([3e30, 0.0], [0.0, 4e30])
    assert clip_and_check(named, 1.0) == pytest.approx(5e30)
    assert torch.cat([p.grad for _, p in named]).tolist() == pytest.approx([0.6, 0, 0, 0.8])


def test_no_gradient_at_all_has_norm_zero():
    assert clip_and_check(graded(None, None), 1.0) == 0.0


@pytest.mark.parametrize("learner", ["policy", "value", "preference"])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer": "adamv"}, "did you mean 'adam' or 'adamw'"),
        ({"betas": [0.9, 1.5]}, "betas must lie in"),
        ({"optimizer": {"sgd": {"momentum": -1}}}, "momentum"),
        ({"optimizer": {"adamw": {"lr": 1.0}}}, "set the learner's own `lr`"),
    ],
)
def test_a_learner_refuses_its_optimizer_when_it_is_built(learner, settings, words):
    with pytest.raises(RecipeError, match=words):
        registry.build("update", learner, settings)


def test_muon_on_an_old_torch_is_said_when_the_recipe_is_built(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(RecipeError, match=r"muon needs torch 2\.9 or later.*pip install"):
        registry.build("update", "policy", {"optimizer": "muon"})
