"""Several streams of rewards: two passes of GAE, their mix, and the value heads that learn them."""

from __future__ import annotations

import pytest
import torch
from tests.credit.helpers_credit import context
from tests.update.helpers_update import random_case

from gainstage.credit.returns.gae import Gae, gae
from gainstage.credit.tokens.mix import Mix, mix_advantages
from gainstage.ops.meters import NoMeter
from gainstage.policies.control.actor_critic import ActorCritic
from gainstage.registry import RecipeError, build
from gainstage.tasks.control.classic import CartPole
from gainstage.types import Batch, PolicyOut
from gainstage.update.objectives.value.value import value_error


def worked_batch() -> Batch:
    """Three steps of one copy, an episode ending with the second; the stream `bonus` runs on."""
    d = torch.float64
    return Batch({
        "mask": torch.ones(1, 3, dtype=torch.bool),
        "rewards": torch.tensor([[0.0, 1.0, 0.0]], dtype=d),
        "bonus": torch.tensor([[1.901751, 0.475438, 0.950876]], dtype=d),
        "values": torch.tensor([[[0.5, 0.4], [0.6, 0.3], [0.1, 0.2]]], dtype=d),
        "next_values": torch.tensor([[[0.6, 0.3], [9.0, 0.2], [0.2, 0.1]]], dtype=d),
        "terminated": torch.tensor([[False, True, False]]),
        "cut": torch.zeros(1, 3, dtype=torch.bool),
    })  # fmt: skip


SETTINGS = {"streams": ["rewards", "bonus"], "gamma": [0.999, 0.99], "episodic": [True, False], "lam": 0.95}


def test_two_streams_one_of_which_ignores_the_end():
    batch = worked_batch()
    found = Gae(**SETTINGS).estimate(batch, context())
    want = torch.tensor([[0.479020, 0.400000, 0.099800], [2.901719, 1.172746, 0.849876]], dtype=torch.float64)
    assert torch.allclose(found["stream_advantages"][0].T, want, atol=2e-6)
    returns = torch.tensor([[0.979020, 1.0, 0.199800], [3.301719, 1.472746, 1.049876]], dtype=torch.float64)
    assert torch.allclose(found["returns"][0].T, returns, atol=2e-6)
    batch["stream_advantages"] = found["stream_advantages"]
    mixed = Mix([2.0, 1.0]).assign(batch)["advantages"]
    assert torch.allclose(mixed, torch.tensor([[3.859759, 1.972746, 1.049476]], dtype=torch.float64), atol=4e-6)


def test_a_stream_that_runs_on_uses_the_next_row_not_the_cut_off_observation():
    one, no = torch.ones(1, 2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.bool)
    cut = torch.tensor([[True, False]])
    values = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    after = torch.tensor([[50.0, 3.0]], dtype=torch.float64)
    runs, _ = gae(one, values, after, no, cut, 0.9, 0.5, episodic=False)
    free, _ = gae(one, values, torch.tensor([[2.0, 3.0]], dtype=torch.float64), no, no, 0.9, 0.5)
    assert torch.allclose(runs, free)


def test_a_column_with_an_axis_of_its_own_brings_several_streams():
    batch = worked_batch()
    batch.columns["channel_rewards"] = torch.stack((batch["rewards"], batch["bonus"]), -1)
    named = Gae(streams=["channel_rewards"], gamma=0.9).estimate(batch, context())
    apart = Gae(streams=["rewards", "bonus"], gamma=0.9).estimate(batch, context())
    assert torch.equal(named["stream_advantages"], apart["stream_advantages"])


def test_weights_and_normalisation_of_the_mix():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, 4, 6, generator=generator) * torch.tensor([1.0, 100.0]).reshape(2, 1, 1)
    mask = torch.rand(4, 6, generator=generator) > 0.2
    assert torch.allclose(mix_advantages(a, [1.0, 0.0], mask), torch.where(mask, a[0], 0.0))
    each = mix_advantages(a, [1.0, 1.0], mask, "each")
    assert torch.allclose(each, mix_advantages(a * torch.tensor([7.0, 0.1]).reshape(2, 1, 1), [1.0, 1.0], mask, "each"),
                          atol=1e-5)  # fmt: skip
    assert not each[~mask].any()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"streams": ["rewards", "bonus"], "gamma": [0.9]}, "1 numbers for 2 streams"),
        ({"gamma": [0.9, 0.9]}, "2 numbers for 0 streams"),
        ({"streams": []}, "names no column"),
        ({"streams": ["rewards"], "gamma": [1.5]}, r"must lie in \[0, 1\]"),
    ],
)
def test_settings_that_do_not_fit(settings, said):
    with pytest.raises(RecipeError, match=said):
        build("credit", "gae", settings)


def test_streams_and_value_heads_have_to_agree():
    batch = worked_batch()
    with pytest.raises(ValueError, match=r"models.policy.streams=1"):
        Gae().estimate(batch, context())
    with pytest.raises(ValueError, match=r"3 streams of rewards and 2 values"):
        Gae(streams=["rewards", "bonus", "bonus"]).estimate(batch, context())
    with pytest.raises(RecipeError, match="one of them not 0"):
        build("credit", "mix", {"weights": [0.0, 0.0]})
    batch["stream_advantages"] = torch.zeros(1, 3, 2)
    with pytest.raises(ValueError, match="3 weights for 2 streams"):
        Mix([1.0, 1.0, 1.0]).assign(batch)


def test_the_errors_of_all_value_heads_are_added():
    case = random_case()
    mask = case["mask"]
    values, returns = (torch.randn(*mask.shape, 2, dtype=torch.float64) for _ in range(2))
    terms, _ = value_error(PolicyOut(case["logprobs"], values=values), Batch({"mask": mask, "returns": returns}))
    assert torch.allclose(terms, torch.where(mask, 0.5 * (values - returns).square().sum(-1), 0.0))
    first, _ = value_error(PolicyOut(case["logprobs"], values=values), Batch({"mask": mask, "returns": returns}),
                           weight=[0.5, 0.0])  # fmt: skip
    assert torch.allclose(first, torch.where(mask, 0.5 * (values - returns)[..., 0].square(), 0.0))
    with pytest.raises(RecipeError, match="3 weights for 2 streams"):
        value_error(PolicyOut(case["logprobs"], values=values), Batch({"mask": mask, "returns": returns}),
                    weight=[1.0, 1.0, 1.0])  # fmt: skip


def test_the_value_after_a_real_end_at_the_rows_border_is_the_successors():
    """Streams that run on need the next episode's first observation there; a time limit keeps the true last one."""
    policy = ActorCritic(streams=2).make(
        role="policy", meter=NoMeter(), device=torch.device("cpu"), trained=True, task=CartPole()
    )
    obs, after = torch.randn(2, 4, 4), torch.randn(2, 3, 4)
    flags = torch.zeros(2, 3, dtype=torch.bool)
    ends, cut = flags.clone(), flags.clone()
    ends[0, 2], cut[1, 2] = True, True
    batch = Batch({"mask": ~flags, "obs": obs, "actions": torch.zeros(2, 3, dtype=torch.int64), "next_obs": after,
                   "terminated": ends, "cut": cut})  # fmt: skip
    found = policy.evaluate(batch, want=("values", "next_values")).extras["next_values"]
    assert found.shape == (2, 3, 2)
    assert torch.allclose(found[0, 2], policy.module.values(obs[0, 3:])[0])
    assert torch.allclose(found[1, 2], policy.module.values(after[1, 2:])[0])
    assert torch.allclose(found[0, 0], policy.module.values(obs[0, 1:2])[0])
