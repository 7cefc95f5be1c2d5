"""Credit from recorded episodes, and which episodes of a fragment are imitated."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gainstage.credit.returns.episode_weights import EpisodeSuccess
from gainstage.credit.returns.recorded import ActionAdvantage, RecordedReturns, StateAdvantage, ValueTarget
from gainstage.ops.reward_to_go import reward_to_go
from gainstage.types import Batch


def test_reward_to_go_stays_within_episodes():
    rewards = torch.tensor([1.0, 2, 4, 10, 20])
    out = reward_to_go(rewards, torch.tensor([3, 2]), 0.5)
    assert out.tolist() == [3.0, 4.0, 4.0, 20.0, 20.0]
    assert reward_to_go(rewards, torch.tensor([3, 2]), 0.0).tolist() == rewards.tolist()
    assert reward_to_go(torch.zeros(0), torch.zeros(0, dtype=torch.int64), 1.0).tolist() == []


def role(**answers):
    """Something that answers its questions from fixed numbers."""

    def told(value):
        return lambda *asked: value

    return SimpleNamespace(**{name: told(value) for name, value in answers.items()})


def transitions(n, **more):
    base = {"obs": torch.zeros(n, 2, 1), "actions": torch.zeros(n, 1, 1), "mask": torch.ones(n, 1) > 0}
    return Batch(base | more)


def test_value_target_ends_where_the_episode_does():
    batch = transitions(2, rewards=torch.ones(2, 1), terminated=torch.tensor([[False], [True]]))
    ctx = SimpleNamespace(models={"value": role(v=torch.tensor([10.0, float("nan")]))})
    assert ValueTarget(gamma=0.9).estimate(batch, ctx)["returns"].squeeze(1).tolist() == [10.0, 1.0]


def test_advantages():
    models = {
        "critic_target": role(q=torch.tensor([[3.0, 1.0], [2.0, 5.0]])),
        "value": role(v=torch.tensor([1.0, 1.0])),
    }
    ctx = SimpleNamespace(models=models)
    assert ActionAdvantage().estimate(transitions(2), ctx)["advantage"].tolist() == [1.0, 0.0]
    batch = transitions(2, returns=torch.tensor([[2.0], [4.0]]))
    assert StateAdvantage(scale=False).estimate(batch, ctx)["advantage"].tolist() == [1.0, 3.0]
    scaled = StateAdvantage().estimate(batch, ctx)["advantage"]
    assert float(scaled.sum()) == pytest.approx(0) and float(scaled.std()) == pytest.approx(1)


def test_recorded_returns_are_those_of_the_drawn_steps():
    store = SimpleNamespace(
        lengths=torch.tensor([3, 2]),
        offsets=torch.tensor([0, 3]),
        column=lambda name: torch.tensor([1.0, 2, 4, 10, 20]),
    )
    batch = transitions(3)
    batch.origin = (torch.tensor([1, 0, 0]), torch.tensor([0, 2, 0]))
    found = RecordedReturns(gamma=0.5).estimate(batch, SimpleNamespace(store=store))
    assert found["returns"].squeeze(1).tolist() == [20.0, 4.0, 3.0]


# -- episodes of a fragment --------------------------------------------------------------------------------------------


def fragment():
    """Row 0: the end of an episode, a whole success of two steps, the begin of another. Row 1: two whole episodes."""
    start = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]]).bool()
    ends = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1]]).bool()
    success = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 1]])
    rewards = torch.tensor([[5.0, 1, 1, 9], [0, 1, 2, 2]])
    return Batch({
        "start": start, "terminated": ends & torch.tensor([[True], [False]]),
        "cut": ends & torch.tensor([[False], [True]]),
        "info/success": success, "rewards": rewards, "mask": torch.ones(2, 4).bool(),
    })  # fmt: skip


def test_only_whole_successes_are_imitated():
    part = EpisodeSuccess()
    out = part.assign(fragment())
    assert out["mask"].int().tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]
    assert part.counts == (2, 3)
    assert torch.equal(out["advantages"], out["mask"].float())


def test_thresholds_and_quantiles_of_returns():
    at = EpisodeSuccess(by="return", threshold=2.0).assign(fragment())["mask"]
    assert at.int().tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]
    half = EpisodeSuccess(by="return", quantile=0.5).assign(fragment())["mask"]
    assert half.int().tolist() == [[0, 0, 0, 0], [0, 0, 1, 1]]
    every = EpisodeSuccess(by="return", quantile=0.0).assign(fragment())["mask"]
    assert every.int().tolist() == [[0, 1, 1, 0], [1, 1, 1, 1]]
    level = fragment()
    level.columns["rewards"] = torch.ones(2, 4)  # every whole episode returns 2: all are the best there is
    alike = EpisodeSuccess(by="return", quantile=0.5).assign(level)["mask"]
    assert alike.int().tolist() == every.int().tolist()
    windowed = EpisodeSuccess(by="return", quantile=0.5, window=8)
    windowed.assign(fragment())
    again = EpisodeSuccess(by="return", quantile=0.5, window=8)
    again.load_state_dict(windowed.state_dict())
    assert list(again.latest) == [2.0, 1.0, 4.0]


def test_no_success_teaches_nothing_and_says_so():
    batch = fragment()
    batch.columns["info/success"] = torch.zeros(2, 4)
    part = EpisodeSuccess()
    with pytest.warns(UserWarning, match="success rate is below about 1"):
        out = part.assign(batch)
    assert not bool(out["mask"].any())


def test_environments_that_say_nothing_of_success_are_refused():
    batch = fragment()
    del batch.columns["info/success"]
    with pytest.raises(ValueError, match="by: return"):
        EpisodeSuccess().assign(batch)


@pytest.mark.parametrize("wrong", [
    {"by": "return"}, {"by": "return", "threshold": 1.0, "quantile": 0.5}, {"threshold": 1.0},
    {"by": "return", "quantile": 1.0}, {"window": -1},
])  # fmt: skip
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(ValueError):
        EpisodeSuccess(**wrong)
