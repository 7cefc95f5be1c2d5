"""Hindsight relabelling: the worked numbers, every strategy's range, ends, edges, and that k = 0 changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gainstage.credit.returns.td_targets import td_target
from gainstage.recipe import load
from gainstage.registry import RecipeError, build
from gainstage.select.replay.hindsight import Hindsight, new_goal_steps, reward_of
from gainstage.store.episodes import EpisodeReplay
from gainstage.tasks.control.goals import BitFlip, Reach
from gainstage.trainer import Trainer
from gainstage.types import Batch, Ctx, Index

REACHED = torch.tensor([[0.0, 0], [0.3, 0], [0.6, 0], [0.6, 0.4], [0.62, 0.43]])


def context(store, task) -> Ctx:
    return Ctx(models=None, task=task, store=store, meter=None)


def fragment(task, reached: torch.Tensor, goal: torch.Tensor, ends: str = "cut", copies: int = 1) -> Batch:
    """An episode `"T+1 D"` that reaches the given places, the same in every copy."""
    steps, dims = len(reached) - 1, reached.shape[1]
    own = torch.zeros(steps + 1, task.observation_space.shape[0] - 2 * dims)
    obs = torch.cat((own, reached, goal.expand(steps + 1, dims)), 1).expand(copies, -1, -1)
    done = torch.zeros(copies, steps, dtype=torch.bool)
    done[:, -1] = ends in ("cut", "terminated")
    none = torch.zeros_like(done)
    return Batch({
        "obs": obs.clone(), "next_obs": obs[:, 1:].clone(), "actions": torch.zeros(copies, steps, dims),
        "rewards": task.compute_reward(obs[:, 1:, -2 * dims : -dims], obs[:, 1:, -dims:]),
        "terminated": done if ends == "terminated" else none, "cut": done if ends == "cut" else none,
        "mask": torch.ones_like(done),
    })  # fmt: skip


def stored(task, *fragments: Batch, capacity: int = 1000) -> EpisodeReplay:
    store = EpisodeReplay(capacity=capacity)
    for one in fragments:
        store.add(one, context(store, task))
    return store


def test_rewards_of_the_worked_example():
    task = Reach()
    asked = {(0, 3): -1.0, (1, 2): 0.0, (2, 3): 0.0, (2, 4): 0.0, (3, 4): 0.0}
    for (t, later), reward in asked.items():
        assert reward_of(task, REACHED[t + 1 : t + 2], REACHED[later : later + 1]).item() == reward
    assert torch.dist(REACHED[3], REACHED[4]).item() == pytest.approx(0.0360555, abs=1e-6)


@pytest.mark.parametrize(
    ("steps", "zero", "mixed"), [(4, 0.520833, 0.416667), (5, 0.456667, None), (10, 0.292897, 0.234317)]
)
def test_share_of_zero_rewards_under_future(steps: int, zero: float, mixed: float | None):
    """All achieved goals differ; the goal that was asked for is never reached."""
    task = Reach(dims=1, tolerance=0.01)
    store = stored(task, fragment(task, torch.linspace(-0.9, 0.0, steps + 1).unsqueeze(1), torch.tensor([0.9])))
    torch.manual_seed(1)
    count = 200_000
    batch = store.draw(store.uniform(count))
    ctx = context(store, task)
    for k, share in ((1e9, zero), (4.0, mixed)):
        if share is not None:
            out = Hindsight(k=k).relabel(batch, ctx)
            found = float((out["rewards"] == 0).float().mean())
            assert found == pytest.approx(share, abs=4 * (share * (1 - share) / count) ** 0.5)


@pytest.mark.parametrize(("reward", "after", "target"), [(-1.0, -10.0, -10.8), (-1.0, -60.0, -50.0), (0.0, 2.0, 0.0)])
def test_target_clip(reward: float, after: float, target: float):
    made = td_target(torch.tensor([reward]), torch.tensor([False]), torch.tensor([after]), 0.98, (-50.0, 0.0))
    assert made.item() == pytest.approx(target, abs=1e-5)


def test_each_strategy_takes_goals_from_where_it_says():
    step, first, last = torch.full((5000,), 12), torch.full((5000,), 10), torch.full((5000,), 14)
    chance = torch.rand(5000)
    place, start = new_goal_steps(step, first, last, "future", chance)
    assert set(place.tolist()) == {12, 13, 14} and not start.any()
    assert torch.bincount(place - 12).float().std() / 5000 < 0.02
    assert (new_goal_steps(step, first, last, "final", chance)[0] == 14).all()
    place, start = new_goal_steps(step, first, last, "episode", chance)
    assert set(place[~start].tolist()) == {10, 11, 12, 13, 14}
    assert float(start.float().mean()) == pytest.approx(1 / 6, abs=0.03)
    place, _ = new_goal_steps(step, step, step, "future", torch.full((5000,), 0.9999999))
    assert (place == 12).all(), "an episode of one step has one outcome"


@pytest.mark.parametrize(
    ("gamma", "left", "shares"),
    [
        (0.9, 3, [0.369004, 0.332103, 0.298893]),
        (0.99, 4, [0.253781, 0.251244, 0.248731, 0.246244]),
        (1.0, 2, [0.5, 0.5]),
        (0.5, 1, [1.0]),
    ],
)
def test_geometric_goals_are_rarer_the_further_they_are(gamma: float, left: int, shares: list[float]):
    """An even grid of chances gives each outcome its share of the truncated geometric law, to a cell of the grid."""
    chance = (torch.arange(100_000) + 0.5) / 100_000
    step = torch.full((100_000,), 7)
    place, start = new_goal_steps(step, step - 3, step + left - 1, "geometric", chance, gamma)
    found = torch.bincount(place - 7, minlength=left) / 100_000
    assert not start.any() and found.tolist() == pytest.approx(shares, abs=2e-5)


@pytest.mark.parametrize("strategy", ["future", "final", "episode", "random", "geometric"])
def test_goals_are_outcomes_and_rewards_are_those_of_the_goals(strategy: str):
    task = Reach()
    store = stored(task, fragment(task, REACHED, torch.tensor([0.9, 0.9]), copies=3))
    batch = store.draw(store.uniform(500))
    before = batch["obs"].clone()
    out = Hindsight(k=4, strategy=strategy).relabel(batch, context(store, task))
    assert torch.equal(batch["obs"], before), "the draw itself is as it was"
    changed = out["relabelled"]
    assert 0.7 < float(changed.float().mean()) < 0.9
    goals = out["obs"][:, :, -2:]
    assert torch.equal(goals[:, 0], goals[:, 1])
    assert torch.equal(out["obs"][:, :, :-2], before[:, :, :-2])
    assert torch.equal(out["obs"][~changed], before[~changed])
    outcomes = REACHED if strategy == "episode" else REACHED[1:]
    assert all((outcomes == goal).all(1).any() for goal in goals[changed, 0])
    assert torch.equal(out["rewards"][:, 0], task.compute_reward(out["obs"][:, 1, -4:-2], goals[:, 1]))
    assert (out["terminated"] == 0).all(), "a time limit is no end"


def test_ends_are_made_anew_and_other_ends_stay():
    task = BitFlip(bits=3)
    path = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]])
    store = stored(task, fragment(task, path, torch.tensor([1.0, 1, 1]), ends="terminated"))
    step = torch.tensor([0, 1, 2])
    batch = store.draw(Index(torch.zeros(3, dtype=torch.long), step))
    assert batch["terminated"][:, 0].tolist() == [False, False, True]
    out = Hindsight(k=1e9, strategy="final").relabel(batch, context(store, task))
    assert out["terminated"][:, 0].tolist() == [False, False, True]
    goals = path[1:].clone()
    hit = Hindsight()._written(batch, torch.ones(3, dtype=torch.bool), goals, context(store, task))
    assert hit["terminated"][:, 0].tolist() == [True, True, True] and (hit["rewards"] == 0).all()
    other = path[:1].expand(3, 3).clone()  # a goal that no step reaches: the old end was that goal's alone
    missed = Hindsight()._written(batch, torch.ones(3, dtype=torch.bool), other, context(store, task))
    assert not missed["terminated"].any()
    fallen = Batch(batch.columns | {"terminated": torch.tensor([[True], [False], [False]])}, origin=batch.origin)
    kept = Hindsight()._written(fallen, torch.ones(3, dtype=torch.bool), other, context(store, task))
    assert kept["terminated"][:, 0].tolist() == [True, False, False], "it ended for another reason"


def test_says_how_much_teaches_nothing():
    task = Reach()
    logged: dict[str, float] = {}
    store = stored(task, fragment(task, torch.zeros(5, 2), torch.tensor([0.9, 0.9])))
    ctx = replace(context(store, task), log=logged.__setitem__)
    Hindsight(k=1e9).relabel(store.draw(store.uniform(64)), ctx)
    assert logged == {"her/relabelled": 1.0, "her/trivial_frac": 1.0}


@pytest.mark.parametrize("name", ["her", "sac_her"])
def test_without_relabelling_it_is_the_plain_learner_bit_for_bit(name: str):
    small = ["budget.env_steps=800", "plan.minibatch=32", "plan.updates=4", "seed=3"]
    small += ["store.episodes.least=100", "rollout.uniform_warmup.steps=100"] if name == "sac_her" else []
    off = Trainer(load(name, [*small, "select.hindsight.k=0"]))
    recipe = load(name, small)
    without = Trainer(recipe.model_copy(update={"select": []}))
    on = Trainer(recipe)
    for trainer in (off, without, on):
        trainer.run()
    for key, value in off.models["policy"].module.state_dict().items():
        assert torch.equal(value, without.models["policy"].module.state_dict()[key]), key
    assert any(
        not torch.equal(value, on.models["policy"].module.state_dict()[key])
        for key, value in off.models["policy"].module.state_dict().items()
    )


def test_what_does_not_fit_is_named():
    with pytest.raises(RecipeError, match="k must be at least 0"):
        build("select", "hindsight", {"k": -1})
    with pytest.raises(RecipeError, match="gamma must lie in"):
        build("select", "hindsight", {"gamma": 0.0})
    with pytest.raises(RecipeError, match="needs a task that offers 'goal'"):
        Trainer(load("sac_her", ["task=pendulum"]))
    with pytest.raises(RecipeError, match="needs whole episodes"):
        Trainer(load("sac_her", []).model_copy(update={"store": {"replay": {"capacity": 1000}}})).enter()
    with pytest.raises(RecipeError, match="set n_step to 1"):
        Trainer(load("sac_her", ["store.episodes.n_step=3"])).enter()


class Silent(Reach):
    def compute_reward(self, achieved, goal):
        return super().compute_reward(achieved, goal).mean()


class Hidden(Reach):
    def compute_reward(self, achieved, goal):
        return super().compute_reward(achieved, goal) - 0.5


def test_a_task_whose_rewards_do_not_follow_from_goals_is_refused():
    fresh = fragment(Reach(), REACHED, torch.tensor([0.9, 0.9]))
    with pytest.raises(RecipeError, match="must accept batched goals"):
        Hindsight().observe(fresh, context(None, Silent()))
    with pytest.raises(RecipeError, match="not goal-computable"):
        Hindsight().observe(fresh, context(None, Hidden()))
    fresh["next_obs"][0, 2, -4] = float("nan")
    with pytest.raises(FloatingPointError, match="copy 0 is not finite at step 2"):
        Hindsight().observe(fresh, context(None, Reach()))
