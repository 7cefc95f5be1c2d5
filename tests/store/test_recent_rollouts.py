"""The last rollouts: what is kept, what is drawn, and that a run with them goes on bit for bit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gainstage import checkpoint
from gainstage.ops.distributions import Categorical, Gaussian, MultiBernoulli, MultiCategorical, numbers_of, of_numbers
from gainstage.recipe import load
from gainstage.store.recent_rollouts import RecentRollouts
from gainstage.trainer import Trainer
from gainstage.types import Batch


def fragment(value: float, copies: int = 2, steps: int = 6) -> Batch:
    shape = (copies, steps)
    return Batch({
        "mask": torch.ones(shape).bool(), "actions": torch.zeros(shape, dtype=torch.int64),
        "rewards": torch.full(shape, value), "behaviour_logprobs": torch.zeros(shape),
    })  # fmt: skip


def context(iteration: int = 0, seed: int = 0) -> SimpleNamespace:
    policy = SimpleNamespace(distribution=lambda batch: Categorical(torch.zeros(*batch["mask"].shape, 3)))
    return SimpleNamespace(models={"policy": policy}, seed=seed, iteration=iteration)


def drawn(store: RecentRollouts, **where: int) -> Batch:
    return next(iter(store.rounds(None, context(**where))))


def test_the_newest_is_whole_and_older_ones_are_drawn_from_without_replacement():
    store = RecentRollouts(rollouts=3, share=0.5)
    for value in range(5):
        store.add(fragment(float(value)), context())
    batch = drawn(store)
    assert len(store) == 3 and batch["rewards"][:, 0].tolist() == [4, 4, 3, 3, 2, 2]
    assert batch["age"].tolist() == [0, 0, 1, 1, 2, 2] and batch["mu"].shape == (6, 6, 3)
    assert bool(batch["drawn"][:2].all()) and int(batch["drawn"][2:].sum()) == 6
    assert torch.equal(batch["drawn"], drawn(store)["drawn"])
    others = [drawn(store, iteration=1)["drawn"], drawn(store, seed=1)["drawn"]]
    assert all(not torch.equal(batch["drawn"], other) for other in others)


def test_there_are_never_more_than_there_are():
    store = RecentRollouts(rollouts=2, share=10.0)
    store.add(fragment(0.0), context())
    assert bool(drawn(store)["drawn"].all())
    store.add(fragment(1.0), context())
    assert bool(drawn(store)["drawn"].all())


def test_an_actor_without_log_probs_is_refused():
    rows = fragment(0.0)
    del rows.columns["behaviour_logprobs"]
    with pytest.raises(ValueError, match="recorded no log-probs of its actions"):
        RecentRollouts().add(rows, context())
    with pytest.raises(ValueError, match="rollouts must be at least 1"):
        RecentRollouts(rollouts=0)


@pytest.mark.parametrize(
    "dist",
    [
        Categorical(torch.randn(4, 2, 3)), MultiCategorical(torch.randn(4, 2, 5), (2, 3)),
        MultiBernoulli(torch.randn(4, 2, 3)), Gaussian(torch.randn(4, 2, 3), torch.randn(3)),
    ],
    ids=lambda dist: type(dist).__name__,
)  # fmt: skip
def test_a_distribution_that_was_stored_is_the_same_one(dist):
    again = of_numbers(dist, numbers_of(dist))
    assert float(dist.kl(again).abs().max()) < 1e-6
    action = dist.sample()
    assert torch.allclose(again.log_prob(action), dist.log_prob(action), atol=1e-6)


def test_a_run_that_was_cut_goes_on_bit_for_bit(tmp_path):
    recipe = load("entrpo", ["iterations=5", "rollout.env_steps.steps=24", "plan.epochs=2"])
    whole = Trainer(recipe)
    whole.run()
    cut = Trainer(recipe, on_mark=lambda t: setattr(t, "stop_requested", t.iteration == 3) or {})
    cut.run()
    checkpoint.save(tmp_path, cut.state_dict(), cut.models, fingerprint="")
    state, saved, _ = checkpoint.load(checkpoint.latest(tmp_path))
    again = Trainer(recipe)
    again.load_state_dict(state, saved)
    again.run()
    want = whole.models["policy"].module.state_dict()
    assert all(torch.equal(value, want[key]) for key, value in again.models["policy"].module.state_dict().items())
