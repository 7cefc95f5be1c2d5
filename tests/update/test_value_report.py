"""Values beside returns: what is known of a record, and a critic whose error is known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gainstage.measure.budget import Meter
from gainstage.tasks.control.positioning import Positioning
from gainstage.types import Act
from gainstage.update.value_report import ValueReport, paid_returns


def test_a_return_is_known_where_the_rest_counts_little_or_nothing_follows():
    rewards = torch.tensor([[1.0, 1], [1, 1], [1, 9]])
    running = torch.tensor([[1, 1], [1, 1], [1, 0]]).bool()
    ended = torch.tensor([[0, 0], [0, 1], [0, 0]]).bool()
    paid, known = paid_returns(rewards, running, ended, 0.5, tail=0.2)
    assert paid[:, 0].tolist() == [1.75, 1.5, 1.0] and paid[:2, 1].tolist() == [1.5, 1.0]
    assert known[:, 0].tolist() == [True, False, False]  # what follows counts 1/8, 1/4, 1/2
    assert known[:, 1].tolist() == [True, True, False]  # a real end; what comes after it is another episode's


class Critic:
    """Promises the true return of the straight way, and so much more."""

    def __init__(self, more):
        self.more = more

    def q(self, obs, action):
        place, total, weight = obs.clone(), torch.zeros(len(obs)), 1.0
        running = torch.ones(len(obs))
        for step in range(40):
            move = action if step == 0 else -place / place.norm(dim=1, keepdim=True).clamp(min=1.0)
            place = place + move
            total -= weight * running * place.norm(dim=1)
            running = running * (place.norm(dim=1) > 0.1)
            weight *= 0.5
        return (total + self.more).unsqueeze(0)


class Straight:
    def act(self, obs, state=None, *, explore=True):
        return Act(-obs / obs.norm(dim=1, keepdim=True).clamp(min=1.0))

    def to_env(self, action):
        return action


def report(more, task=None, iteration=0, **settings):
    found, meter = {}, Meter()
    ctx = SimpleNamespace(
        models={"critic": Critic(more), "policy": Straight()}, task=task or Positioning(), meter=meter, seed=0,
        iteration=iteration, device=torch.device("cpu"), log=found.__setitem__,
    )  # fmt: skip
    part = ValueReport(**({"gamma": 0.5, "every": 1} | settings))
    part.start(ctx)
    part.fit(ctx)
    return found, meter


def test_the_gap_is_what_the_critic_adds():
    true, meter = report(0.0)
    assert true["values/gap"] == pytest.approx(0, abs=1e-4) and true["values/paid"] < 0
    more, _ = report(3.0)
    assert more["values/gap"] == pytest.approx(3, abs=1e-4)
    assert more["values/paid"] == pytest.approx(true["values/paid"])
    assert meter.total("env_steps") == 0 < meter.total("env_steps", "evaluation")  # played beside the budget


def test_it_reports_now_and_then():
    assert not report(0.0, every=50)[0] and report(0.0, every=50, iteration=49)[0]


def test_what_cannot_be_known_is_said():
    with pytest.warns(UserWarning, match="too short"):
        found, _ = report(0.0, Positioning(max_steps=2, spread=100.0), gamma=0.9)
    assert not found
    with pytest.raises(ValueError, match="no environment"):
        report(0.0, SimpleNamespace(capabilities=frozenset(), name="recorded"))
    with pytest.raises(ValueError, match="gamma"):
        ValueReport(gamma=1.0)
