"""Nets of action values: streams, noise, distributions, channels, groups; what they refuse."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import huber_loss

from gainstage.credit.returns.value_mapping import mapped_target
from gainstage.models.noisy import NoisyLinear
from gainstage.ops.value_maps import Identity, inverse
from gainstage.registry import RecipeError, build
from gainstage.types.spaces import Box, Discrete

OBS = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
TASK = SimpleNamespace(observation_space=Box.of(-1, 1, (4,)), action_space=Discrete(3))
NETS = ("q_network", "categorical_q", "quantile_q", "categorical_ensemble", "channel_q")


def make(name, task=TASK, seed=0, **settings):
    torch.manual_seed(seed)
    return build("net", name, {"hidden": [16, 8], **settings}).make(
        role="policy", meter=None, device=torch.device("cpu"), trained=True, task=task
    )


@pytest.mark.parametrize("name", NETS)
def test_every_net_acts_is_saved_and_refuses_what_is_no_choice(name, tmp_path):
    role = make(name)
    act = role.act(OBS, explore=False)
    assert act.action.shape == (6,) and act.action.dtype == torch.int64
    assert torch.equal(role.to_env(act.action), act.action)
    role.save(tmp_path)
    other = make(name, seed=1)
    assert not torch.equal(next(other.module.parameters()), next(role.module.parameters()))
    other.load(tmp_path)
    assert torch.equal(other.act(OBS, explore=False).action, act.action)
    with pytest.raises(RecipeError, match=r"Box\(2\).*sac, td3, ppo"):
        make(name, SimpleNamespace(observation_space=TASK.observation_space, action_space=Box.of(-1, 1, (2,))))


@pytest.mark.parametrize("name", ["q_network", "categorical_q", "quantile_q", "channel_q"])
def test_saved_weights_can_be_the_start(name, tmp_path):
    role = make(name)
    role.save(tmp_path)
    again = make(name, seed=1, weights=str(tmp_path))
    assert all(torch.equal(a, b) for a, b in zip(role.module.parameters(), again.module.parameters(), strict=True))


def test_the_values_of_duelling_streams_are_the_states_value_and_centred_advantages():
    role = make("q_network", dueling=True)
    features = role.module.trunk(OBS)
    advantage, value = role.module.advantage(features, False), role.module.value(features, False)
    q = role.q(OBS)
    assert torch.allclose(q.mean(1, keepdim=True), value, atol=1e-6)
    assert torch.allclose(q - q.mean(1, keepdim=True), advantage - advantage.mean(1, keepdim=True), atol=1e-6)
    atoms = make("categorical_q", dueling=True, atoms=5).logits(OBS)
    assert atoms.shape == (6, 3, 5)


def test_noise_is_that_of_the_formula_one_draw_a_call():
    torch.manual_seed(0)
    layer = NoisyLinear(4, 3, std=0.5)
    assert torch.allclose(layer.weight_std, torch.full((3, 4), 0.25)) and layer.weight.abs().max() <= 0.5
    torch.manual_seed(7)
    out = layer(OBS)
    torch.manual_seed(7)
    into, onto = (e.sign() * e.abs().sqrt() for e in (torch.randn(4), torch.randn(3)))
    weight = layer.weight + layer.weight_std * torch.outer(onto, into)
    assert torch.allclose(out, OBS @ weight.T + layer.bias + layer.bias_std * onto, atol=1e-6)
    assert torch.equal(layer(OBS, noisy=False), OBS @ layer.weight.T + layer.bias)
    assert not torch.equal(layer(OBS), layer(OBS))
    with pytest.raises(ValueError, match="std"):
        NoisyLinear(2, 2, std=-1.0)


def test_noise_has_the_variance_it_says():
    torch.manual_seed(0)
    layer = NoisyLinear(4, 2, std=0.5)
    x = torch.ones(1, 4)
    drawn = torch.stack([layer(x)[0] for _ in range(20_000)])
    # a factor f(e) has the variance E|e| = sqrt(2 / pi): a weight's noise has two of them, a bias's one
    wanted = 0.25**2 * (4 * 2 / torch.pi + (2 / torch.pi) ** 0.5)
    assert torch.allclose(drawn.var(0), torch.full((2,), wanted), rtol=0.06)
    assert torch.allclose(drawn.mean(0), layer(x, noisy=False)[0], atol=0.01)


@pytest.mark.parametrize("name", ["q_network", "categorical_q", "quantile_q"])
def test_a_noisy_net_explores_by_itself_and_is_judged_without_noise(name):
    role = make(name, noisy=True, noise_std=3.0)
    still = [role.act(OBS, explore=False).action for _ in range(5)]
    assert all(torch.equal(a, still[0]) for a in still)
    moved = torch.stack([role.act(OBS, explore=True).action for _ in range(40)])
    assert (moved != still[0]).any()
    role.q(OBS).sum().backward()
    assert role.module.advantage.last.weight_std.grad.abs().sum() > 0


def test_a_distributions_mean_is_its_value():
    role = make("categorical_q", atoms=11, low=-1.0, high=4.0)
    probs = role.probs(OBS)
    assert torch.allclose(probs.sum(-1), torch.ones(6, 3)) and role.support.tolist()[::5] == [-1.0, 1.5, 4.0]
    assert torch.allclose(role.q(OBS), probs @ role.support)
    quantiles = make("quantile_q", quantiles=7)
    assert torch.allclose(quantiles.q(OBS), quantiles.quantiles(OBS).mean(-1))
    for settings, said in (({"atoms": 1}, "atoms"), ({"low": 1.0, "high": 1.0}, "low must lie below high")):
        with pytest.raises(RecipeError, match=said):
            make("categorical_q", **settings)
        with pytest.raises(RecipeError, match=said):
            make("categorical_ensemble", **settings)
    with pytest.raises(RecipeError, match="quantiles"):
        make("quantile_q", quantiles=0)
    with pytest.raises(RecipeError, match="hidden"):
        make("q_network", hidden=[])


# -- the group ---------------------------------------------------------------------------------------------------------


def test_members_differ_share_nothing_and_read_their_own_blocks():
    role = make("categorical_ensemble", members=3, atoms=7)
    every = role.probs(OBS)
    assert every.shape == (3, 6, 3, 7) and not torch.allclose(every[0], every[1])
    own = role.own_logits(OBS).softmax(-1)
    assert torch.allclose(own, every[role.member_of(6), torch.arange(6)], atol=1e-6)
    role.own_logits(OBS)[2:4].square().sum().backward()  # the second member's rows
    for weight in (*role.module.nets.weights, *role.module.nets.biases):
        assert float(weight.grad[0].abs().sum()) == 0 == float(weight.grad[2].abs().sum())
        assert float(weight.grad[1].abs().sum()) > 0
    with pytest.raises(RecipeError, match="7 rows are no 3 equal blocks"):
        role.own_logits(torch.zeros(7, 4))


def test_who_acts_and_who_is_judged():
    own = make("categorical_ensemble", members=3, judged="in_turn")
    values = own.probs(OBS) @ own.support
    rows = torch.arange(6)
    assert torch.equal(own.act(OBS).action, values[own.member_of(6), rows].argmax(-1))
    assert torch.equal(own.act(OBS, explore=False).action, values[rows % 3, rows].argmax(-1))
    joint = make("categorical_ensemble", members=3, acts="joint")
    together = values.mean(0).argmax(-1)
    assert torch.equal(joint.act(OBS).action, together) and torch.equal(joint.act(OBS, explore=False).action, together)
    assert torch.equal(joint.act(OBS[:2], explore=False).action, together[:2])  # any number of rows


def test_one_member_is_a_categorical_net():
    group, single = make("categorical_ensemble", members=1, atoms=5), make("categorical_q", atoms=5)
    linear = [m for m in single.module.modules() if isinstance(m, torch.nn.Linear)]
    with torch.no_grad():
        for weight, bias, layer in zip(group.module.nets.weights, group.module.nets.biases, linear, strict=True):
            layer.weight.copy_(weight[0].T)
            layer.bias.copy_(bias[0, 0])
    assert torch.allclose(group.probs(OBS)[0], single.probs(OBS), atol=1e-6)
    assert torch.allclose(group.own_logits(OBS), single.logits(OBS), atol=1e-6)


def test_a_group_reads_no_pictures():
    seen = Box.of(0, 255, (8, 8, 3), dtype=torch.uint8)
    with pytest.raises(RecipeError, match="no pictures"):
        make("categorical_ensemble", SimpleNamespace(observation_space=seen, action_space=Discrete(2)))


# -- channels ----------------------------------------------------------------------------------------------------------


def test_heads_are_in_float64_and_act_by_their_weighted_sum():
    role = make("channel_q")
    mapped = role.mapped(OBS)
    assert mapped.shape == (2, 6, 3) and mapped.dtype == torch.float64
    values = inverse(role.maps, mapped)
    assert torch.allclose(role.q(OBS), values[0] - values[1])
    assert torch.equal(role.act(OBS).action, (values[0] - values[1]).argmax(-1)) and role.bound == pytest.approx(25)
    lagging = role.snapshot("policy_target")
    assert torch.equal(lagging.q(OBS), role.q(OBS)) and lagging.maps is role.maps


def test_the_head_of_bad_starts_at_its_least_value_where_asked():
    role = make("channel_q", asymmetric=True)
    bad = role.channel_values(OBS)[1]
    assert torch.allclose(bad.log(), bad.log().mean().expand_as(bad), atol=2.0)  # only its bias is left
    assert bool((role.module.heads[1].weight == 0).all()) and not bool((role.module.heads[0].weight == 0).any())


def test_the_trunks_gradient_is_scaled_where_asked():
    plain, scaled = (make("channel_q", scale_trunk=asked) for asked in (False, True))
    for role in (plain, scaled):
        role.mapped(OBS).sum().backward()
    for a, b in zip(plain.module.trunk.parameters(), scaled.module.trunk.parameters(), strict=True):
        assert torch.allclose(a.grad / 2**0.5, b.grad, atol=1e-6)
    heads = zip(plain.module.heads.parameters(), scaled.module.heads.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in heads)


def test_maps_and_channels_must_fit_each_other():
    for settings, said in (
        ({"scheme": "stacked", "maps": ["loglin"] * 3}, "names 3 maps, scheme stacked has 8 channels"),
        ({"gamma": 0.0}, "gamma must be > 0"), ({"gamma": 0.1, "steps": 400}, "fewer steps"),
        ({"scheme": "whole"}, "only the map identity"), ({"maps": "cube"}, "no map 'cube'"),
        ({"maps": [{"log": {"c": 0.0}}, "log"]}, "c must be positive"), ({"hidden": [0]}, "hidden"),
    ):  # fmt: skip
        with pytest.raises(RecipeError, match=said):
            make("channel_q", **settings)


def test_one_channel_of_ordinary_values_learns_as_dqn_does():
    """The whole reward, the identity, full steps, no bounds: the loss and its gradient are DQN's."""
    channel = make("channel_q", scheme="whole", maps="identity", gamma=0.9)
    after = channel.q(torch.randn(6, 4, generator=torch.Generator().manual_seed(9))).detach()
    rewards, ends = torch.randn(6, generator=torch.Generator().manual_seed(8)).double(), torch.arange(6) < 2
    plain = rewards + 0.9 * (~ends) * after.amax(-1)
    now = channel.channel_values(OBS)[:, :, 0]
    target = mapped_target(rewards.unsqueeze(0), ends, after.amax(-1).unsqueeze(0), now, [Identity()], 0.9, beta=1.0)
    assert torch.allclose(target[0], plain, atol=1e-12)
    twin = copy.deepcopy(channel)
    huber_loss(channel.mapped(OBS)[0, :, 0], target[0].detach()).backward()
    huber_loss(twin.q(OBS)[:, 0], plain).backward()
    for a, b in zip(channel.module.parameters(), twin.module.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-9)
