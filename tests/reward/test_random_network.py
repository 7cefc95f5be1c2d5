"""Random network distillation: the filter along time, the bonus of what is new, and what a restart keeps."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gainstage.checkpoint import pack, unpack
from gainstage.ops.filters import forward_filter
from gainstage.ops.meters import NoMeter
from gainstage.ops.moments import RunningMoments
from gainstage.recipe import load
from gainstage.registry import RecipeError, build
from gainstage.reward.intrinsic.random_network import FIRST, NoveltyBonus, prediction_error
from gainstage.tasks.control.classic import CartPole
from gainstage.trainer import Trainer
from gainstage.types import Batch
from gainstage.types.spaces import Box, Discrete

RAW = torch.tensor([[0.8, 0.2, 0.4], [0.1, 0.3, 0.6]], dtype=torch.float64)


@dataclass
class Seen:
    observation_space: Any
    action_space: Any = None


def context(space: Any, fresh: Any = ()) -> Any:
    return SimpleNamespace(
        task=Seen(space), device=torch.device("cpu"), meter=NoMeter(), log=lambda *a: None, fresh=fresh
    )


def fragment(next_obs: Tensor) -> Batch:
    flags = torch.ones(next_obs.shape[:2], dtype=torch.bool)
    return Batch({"mask": flags, "next_obs": next_obs})


def started(width: int = 6, seed: int = 0, **settings: Any) -> NoveltyBonus:
    bonus = NoveltyBonus(warmup=0, **settings)
    torch.manual_seed(seed)
    bonus.start(context(Box.of(-10, 10, (width,))))
    return bonus


def test_the_filter_runs_along_time_and_its_variance_divides():
    sums, carry = forward_filter(RAW, None, 0.99)
    want = torch.tensor([[0.8, 0.992, 1.38208], [0.1, 0.399, 0.99501]], dtype=torch.float64)
    assert torch.allclose(sums, want) and torch.allclose(carry, want[:, -1])
    moments = RunningMoments(prior=FIRST)
    moments.update(sums)
    assert abs(float(moments.count) - 6.0001) < 1e-9
    assert abs(float(moments.mean) - 0.778002) < 1e-6 and abs(float(moments.std) ** 2 - 0.176959) < 1e-6
    scaled = torch.tensor([[1.901751, 0.475438, 0.950876], [0.237719, 0.713157, 1.426313]], dtype=torch.float64)
    assert torch.allclose(RAW / moments.std, scaled, atol=2e-6)


def test_the_filter_does_not_mix_copies_and_goes_on_over_fragments():
    whole, _ = forward_filter(RAW, None, 0.9)
    first, carry = forward_filter(RAW[:, :1], None, 0.9)
    second, _ = forward_filter(RAW[:, 1:], carry, 0.9)
    assert torch.allclose(torch.cat((first, second), 1), whole)
    alone, _ = forward_filter(RAW[1:], None, 0.9)
    assert torch.allclose(alone, whole[1:])
    idle = torch.tensor([[True, False, True], [True, True, True]])
    skipped, _ = forward_filter(RAW, None, 0.9, idle)
    assert torch.isclose(skipped[0, 2], torch.tensor(0.9 * 0.8 + 0.4).double())


def test_the_error_is_a_mean_over_features():
    f, g = torch.tensor([[1.0, 2.0, -1.0, 0.5]]), torch.tensor([[0.5, 2.5, -1.0, 0.0]])
    assert float(prediction_error(f, g)) == 0.1875


def test_what_was_seen_loses_its_bonus_and_what_was_not_keeps_it():
    bonus = started(8)
    places = torch.eye(8)
    visited = places[torch.randint(6, (16, 32))]
    known, unknown = places[:6].unsqueeze(1), places[6:].unsqueeze(1)
    bonus.seen.update(visited.flatten(0, 1))
    before = float(bonus.raw(known).mean())
    for _ in range(30):
        bonus.fit(context(None, fragment(visited)))
    after, fresh = float(bonus.raw(known).mean()), float(bonus.raw(unknown).mean())
    assert after < before / 5 and fresh > 3 * after


def test_a_screen_of_noise_loses_its_bonus_but_stays_a_riddle_to_a_forward_model():
    """Half of the copies walk on a ring of four places, the others see one of 16 patterns a step, by chance."""
    torch.manual_seed(0)
    ring, noise = torch.randn(4, 20), torch.randn(16, 20)

    def look() -> Batch:
        actions = torch.randint(2, (16, 32))
        place = (torch.cat((torch.randint(4, (8, 1)), actions[:8] * 2 - 1), 1)).cumsum(1) % 4
        obs = torch.cat((ring[place], noise[torch.randint(16, (8, 33))]))
        flags = torch.ones(16, 32, dtype=torch.bool)
        return Batch({"mask": flags, "obs": obs, "next_obs": obs[:, 1:], "actions": actions})

    space, kept, first = Box.of(-10, 10, (20,)), {}, {}
    settings = {"novelty_bonus": {"warmup": 0}, "curiosity_bonus": {"features": 16, "hidden": [32], "lr": 1e-3}}
    for name, given in settings.items():
        bonus = build("reward", name, given)
        ctx = context(space)
        ctx.task.action_space = Discrete(2)
        bonus.start(ctx)
        for _ in range(21):
            batch = look()
            paid = bonus.shape(batch, ctx)
            kept[name] = float(paid[:8].mean()), float(paid[8:].mean())
            first.setdefault(name, kept[name])
            ctx.fresh = batch
            bonus.fit(ctx)
    assert kept["novelty_bonus"][1] < first["novelty_bonus"][1] / 50
    assert kept["curiosity_bonus"][0] < first["curiosity_bonus"][0] / 1000
    assert kept["curiosity_bonus"][1] > 100 * kept["curiosity_bonus"][0]


def test_the_next_observation_counts_and_masked_steps_get_nothing():
    bonus = started(3)
    batch = fragment(torch.randn(2, 4, 3))
    batch.columns["obs"] = torch.full((2, 5, 3), torch.nan)
    batch.columns["mask"][1, 2] = False
    bonus.observe(batch, context(None))
    paid = bonus.shape(batch, context(None))
    assert paid[1, 2] == 0 and bool((paid[batch["mask"]] > 0).all())
    assert torch.allclose(paid[0], bonus.raw(batch["next_obs"])[0] / bonus.scale)


def test_degenerate_cases():
    zero = started(2)
    zero.raw = lambda next_obs: torch.zeros(next_obs.shape[:2])  # type: ignore[method-assign]
    flat = fragment(torch.ones(2, 50, 2))
    for _ in range(200):
        zero.observe(flat, context(None))
    assert torch.equal(zero.shape(flat, context(None)), torch.zeros(2, 50))
    constant = started(2)
    for _ in range(3):
        constant.fit(context(None, flat))
    assert torch.isfinite(constant.standardised(torch.tensor([[1.0, 5.0]]))).all()
    assert float(constant.standardised(torch.tensor([[1.0, 5.0]])).abs().max()) <= 5
    nothing = started(2)
    before = [p.clone() for p in nothing.predictor.parameters()]
    x = torch.ones(4, 2)
    assert nothing._learn(x, torch.ones(4, 32), torch.zeros(4)) == 0.0
    assert all(torch.equal(a, b) for a, b in zip(before, nothing.predictor.parameters()))


def test_a_bonus_that_is_no_number_names_the_copy():
    bonus = started(2)
    batch = fragment(torch.zeros(3, 2, 2))
    batch["next_obs"][1, 0] = torch.nan
    with pytest.raises(FloatingPointError, match="copy 1 at step 0"):
        bonus.observe(batch, context(None))


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"gamma": 2.0}, "gamma"), ({"lr": 0.0}, "lr > 0"), ({"share": 0.0}, "share"), ({"epochs": 0}, "epochs"),
     ({"hidden": []}, "hidden needs")],
)  # fmt: skip
def test_wrong_settings(settings, said):
    with pytest.raises(RecipeError, match=said):
        build("reward", "novelty_bonus", settings)


SMALL = ["iterations=3", "rollout.env_steps.copies=4", "rollout.env_steps.steps=16", "plan.minibatch=16",
         "evaluate.problems=2", "reward.novelty_bonus.warmup=64"]  # fmt: skip


def test_a_restart_keeps_nets_moments_and_filter():
    """Three iterations in one go, and two, a checkpoint's file, one more: bit for bit."""
    whole = Trainer(load("rnd", SMALL))
    whole.run()
    first = Trainer(load("rnd", ["iterations=3", *SMALL[1:]]))
    first.enter()
    for _ in range(2):
        first.iterate()
        first.schedule.advance()
    tensors: dict[str, Tensor] = {}
    saved = unpack(pack(first.state_dict(), tensors), tensors)
    weights = {"policy": first.models["policy"].module.state_dict()}
    second = Trainer(load("rnd", SMALL))
    second.load_state_dict(saved, weights)
    second.run()
    for name, value in whole.models["policy"].module.state_dict().items():
        assert torch.equal(value, second.models["policy"].module.state_dict()[name]), name
    a, b = (t.chain.reward[0].it for t in (whole, second))
    for name, value in a.predictor.state_dict().items():
        assert torch.equal(value, b.predictor.state_dict()[name])
    assert torch.equal(a.carry, b.carry) and torch.equal(a.sums.std, b.sums.std)
    assert torch.equal(a.seen.mean, b.seen.mean) and torch.equal(a.seen.std, b.seen.std)
    assert all(torch.equal(x, y) for x, y in zip(a.target.parameters(), b.target.parameters()))


def test_without_weight_on_the_bonus_it_is_ppo():
    """The bonus is there and its predictor learns, but the policy goes PPO's way."""
    common = ["iterations=2", *SMALL[1:5], "task=four_rooms"]
    plain = Trainer(load("ppo", [*common, "credit.gae.gamma=0.999", "update.policy.schedule=constant",
                                 "plan.epochs=4"]))  # fmt: skip
    bonus = Trainer(load("rnd", [*common, "reward.novelty_bonus.warmup=64", "credit.mix.weights=[1.0,0.0]",
                                 "update.policy.objectives.value_error.weight=[0.5,0.0]"]))  # fmt: skip
    ours, theirs = (t.models["policy"].module.state_dict() for t in (bonus, plain))
    with torch.no_grad():
        for name, value in theirs.items():
            ours[name][: len(value)] = value
    plain.run()
    bonus.run()
    for name, value in plain.models["policy"].module.state_dict().items():
        mine = bonus.models["policy"].module.state_dict()[name][: len(value)]
        assert torch.allclose(mine, value, atol=5e-6), name  # a step is 1e-3: what is left is rounding
    assert bonus.chain.reward[0].it.opt.state


def test_the_warm_up_is_paid_for():
    trainer = Trainer(load("rnd", [*SMALL, "task=cart_pole"]))
    trainer.enter()
    assert trainer.meter.total("env_steps") == 64
    assert float(trainer.chain.reward[0].it.seen.count) > 64
    assert CartPole().observation_space.shape == trainer.chain.reward[0].it.seen.shape
