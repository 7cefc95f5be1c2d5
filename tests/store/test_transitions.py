"""The store of recorded episodes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gainstage.registry import RecipeError
from gainstage.store.transitions import Offline
from gainstage.types import Index
from gainstage.types.episodes import Episode, EpisodeSet


def episode(length, mark, *, end="terminated"):
    """Observations `mark, mark + .01, ..`; the action of a step is its number, the reward 1."""
    flags = torch.zeros(2, length, dtype=torch.bool)
    if end:
        flags[("terminated", "truncated").index(end), -1] = True
    obs = mark + 0.01 * torch.arange(length + 1).float().unsqueeze(1)
    info = {"cost": torch.full((length,), float(mark))}
    return Episode(obs, torch.arange(length), torch.ones(length), flags[0], flags[1], info)


EPISODES = EpisodeSet.join([episode(3, 0), episode(1, 1, end="truncated"), episode(4, 2, end="")])


def store(data=EPISODES, models=None, **settings):
    made = Offline(**settings)
    made.start(context(data, models))
    return made


def context(data=EPISODES, models=None, choose=None, iteration=0):
    task = SimpleNamespace(transitions=lambda: data)
    meter = SimpleNamespace(charge=lambda *spent: None)
    return SimpleNamespace(task=task, models=models or {}, seed=0, iteration=iteration, choose=choose, meter=meter)


PLAN = SimpleNamespace(updates=3, minibatch=500)


def test_a_row_is_a_transition_with_the_true_next_observation():
    made = store()
    assert (len(made), made.lengths.tolist(), made.offsets.tolist()) == (8, [3, 1, 4], [0, 3, 4])
    batch = made.draw(made.index(torch.arange(8)))
    assert [row.tolist() for row in batch.origin] == [[0, 0, 0, 1, 2, 2, 2, 2], [0, 1, 2, 0, 0, 1, 2, 3]]
    before, after = batch["obs"][:, 0, 0], batch["obs"][:, 1, 0]
    mark, step = batch.origin[0].float(), batch.origin[1].float()
    assert torch.allclose(before, mark + 0.01 * step) and torch.allclose(after, before + 0.01)
    assert batch["actions"][:, 0].tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert batch["terminated"][:, 0].tolist() == [False, False, True] + [False] * 5
    # cut off, or the end of the record: a value follows
    assert batch["cut"][:, 0].tolist() == [False] * 3 + [True] + [False] * 3 + [True]
    assert batch["info/cost"][:, 0].tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert bool(batch["mask"].all()) and batch["rewards"].shape == (8, 1)
    assert made.partial == 1  # the third episode's record stops before it does


def test_draws_are_uniform_and_repeat():
    made = store()
    rounds = list(made.rounds(PLAN, context()))
    assert len(rounds) == 3 and all(len(batch) == 500 for batch in rounds)
    counts = torch.bincount(torch.cat([made.offsets[b.origin[0]] + b.origin[1] for b in rounds]), minlength=8)
    assert counts.min() > 130 and counts.max() < 250  # 187.5 each, 13 standard deviation
    again = list(made.rounds(PLAN, context()))
    assert all(torch.equal(a["obs"], b["obs"]) for a, b in zip(rounds, again, strict=True))
    other = next(made.rounds(PLAN, context(iteration=1)))
    assert not torch.equal(other["obs"], rounds[0]["obs"])
    assert not torch.equal(rounds[0]["obs"], rounds[1]["obs"])


def test_select_may_choose():
    made = store()
    index = Index(torch.tensor([2, 0]), torch.tensor([3, 1]), torch.tensor([0.5, 2.0]))
    batch = next(made.rounds(PLAN, context(choose=lambda n: index)))
    assert batch["obs"][:, 0, 0].tolist() == pytest.approx([2.03, 0.01]) and batch["weight_draw"].tolist() == [0.5, 2]


def test_segments_stay_in_their_episode():
    made = store()
    batch = made.segments(Index(torch.tensor([0, 1, 2]), torch.tensor([1, 0, 0])), 3)
    assert batch["mask"].tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    assert batch["actions"].tolist() == [[1, 2, 0], [0, 0, 0], [0, 1, 2]]
    assert batch["obs"].shape == (3, 4, 1)
    assert batch["obs"][0, :, 0].tolist() == pytest.approx([0.01, 0.02, 0.03, 0.03])
    assert batch["obs"][2, :, 0].tolist() == pytest.approx([2, 2.01, 2.02, 2.03])
    one = made.segments(made.index(torch.arange(8)), 1)
    flat = made.draw(made.index(torch.arange(8)))
    assert all(torch.equal(one[name], flat[name]) for name in flat.columns)


def test_returns_of_episodes():
    assert store().returns().tolist() == [3, 1, 4]
    assert store().returns(0.5).tolist() == [1.75, 1, 1.875]


def test_actions_are_brought_to_where_the_policy_acts():
    taken, never = torch.tensor([[0.0, 4], [2, -4]]), torch.zeros(2, dtype=torch.bool)
    data = EpisodeSet.join([Episode(torch.zeros(3, 2), taken, torch.ones(2), never, never)])
    assert store(data).column("actions").tolist() == [[0, 4], [2, -4]]
    policy = SimpleNamespace(from_env=lambda action: action / 4)
    assert store(data, {"policy": policy}).column("actions").tolist() == [[0, 1], [0.5, -1]]
    assert store(data, {"policy": policy}, role="other").column("actions").tolist() == [[0, 4], [2, -4]]


def test_the_way_back_from_an_environments_actions():
    from gainstage.policies.control.actors import BoundedHandle
    from gainstage.types.spaces import Box

    actor = BoundedHandle(torch.nn.Linear(1, 1), "policy", None, torch.device("cpu"), {})
    actor.bound(Box(torch.tensor([[-2.0, 0.0]]), torch.tensor([[2.0, 1.0]])))
    drawn = torch.tensor([[-1.0, 1.0], [0.25, -0.5]])
    assert torch.allclose(actor.from_env(actor.to_env(drawn)), drawn)


def test_a_run_is_not_resumed_on_other_data():
    made = store()
    made.load_state_dict(store().state_dict())
    other = EpisodeSet.join([episode(3, 0), episode(1, 1), episode(3, 2)])
    with pytest.raises(RecipeError, match=r"changed since the run began \(8 transitions then, 7 now\)"):
        store(other).load_state_dict(made.state_dict())


def test_what_cannot_be_read_is_said():
    def broken():
        raise ValueError("the file is cut")

    made = Offline()
    with pytest.raises(RecipeError, match=r"store.offline: the file is cut"):
        made.start(SimpleNamespace(task=SimpleNamespace(transitions=broken), models={}))


def test_episodes_end_to_end_are_views_of_themselves():
    assert len(EPISODES) == 3 and len(EPISODES[2]) == 4
    assert torch.equal(EPISODES[-1].obs, episode(4, 2).obs)
    with pytest.raises(IndexError):
        EPISODES[3]
    with pytest.raises(ValueError, match="same facts"):
        EpisodeSet.join([episode(2, 0), replace(EPISODES[0], info={})])
