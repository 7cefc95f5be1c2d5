"""What imitating successes is going to bring, from counts over shared prefixes and numbered states."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gainstage.select.data.predicted_gain import PredictedGain, forecast, prefixes, stepped
from gainstage.types import Author, Batch, Stop, Trajectory


def test_one_choice_of_known_influence():
    """pi = [.5, .3, .2], Q = [.2, .6, 0]: influence .632653, less a small bias at 100,000 answers."""
    paths, success = [], []
    for action, tried, won in ((0, 50_000, 10_000), (1, 30_000, 18_000), (2, 20_000, 0)):
        paths += [[("prompt", action)]] * tried
        success += [True] * won + [False] * (tried - won)
    told = forecast(paths, success)
    assert told.rate == pytest.approx(0.28)
    assert told.gain == pytest.approx(0.632653, abs=1e-3) and told.compounded == pytest.approx(told.gain)
    assert told.influence == pytest.approx(0.632653, abs=1e-3) and told.known == 1


def test_choices_that_build_on_one_another():
    """Two coins, success = both heads: each choice doubles the rate, together they quadruple it."""
    paths, success = [], []
    for first in (0, 1):
        for second in (0, 1):
            paths += [[((), first), ((first,), second)]] * 10_000
            success += [first == second == 1] * 10_000
    told = forecast(paths, success)
    assert told.rate == 0.25
    assert told.gain == pytest.approx(2.0, abs=1e-2)  # 1 at the root, 1 after the first head
    assert told.compounded == pytest.approx(3.0, abs=2e-2)  # what the exact operator brings: 1 / .25 - 1


def test_states_with_few_successes_are_left_out():
    few = [[("a", 0)]] * 30 + [[("a", 1)]] * 30
    told = forecast(few, [True] * 9 + [False] * 51)
    assert told.gain == 0 and told.known == 0
    with pytest.raises(ValueError, match=r"below about 0\.05"):
        forecast(few, [False] * 60)


def answer(ids, reward):
    prompt = [7, 8]
    tokens = torch.tensor([*prompt, *ids])
    author = torch.tensor([int(Author.PROMPT)] * 2 + [int(Author.POLICY)] * len(ids))
    return Trajectory(
        problem=None, group=0, sample=0, episode=0, actor="policy", version=0, stop=Stop.EOS,
        columns={"tokens": tokens, "author": author}, parts={"verdict": reward}, info={},
    )  # fmt: skip


def test_tokens_see_everything_before_them():
    assert list(prefixes(answer([3, 4], 1.0))) == [((7, 8), 3), ((7, 8, 3), 4)]


def log(part, fresh):
    found = {}
    part.observe(fresh, SimpleNamespace(log=found.__setitem__))
    return found


def test_answers_to_one_prompt():
    rows = [answer([3], 1.0)] * 40 + [answer([4], 0.0)] * 40
    found = log(PredictedGain(signal="verdict"), rows)
    assert found["success/rate"] == 0.5 and found["success/predicted_gain"] == pytest.approx(1.0)
    assert log(PredictedGain(signal="verdict"), rows[40:]) == {"success/rate": 0.0}
    assert log(PredictedGain(), []) == {}


def test_no_influence_is_said_once():
    rows = [answer([3], 1.0)] * 40 + [answer([4], 1.0)] * 40
    part = PredictedGain(signal="verdict")
    log(part, [answer([3], 1.0)] * 20 + [answer([3], 0.0)] * 20 + [answer([4], 1.0)] * 20 + [answer([4], 0.0)] * 20)
    assert not part.warned  # so few answers could not tell
    with pytest.warns(UserWarning, match="nothing to say"):
        log(part, rows)
    again = PredictedGain(signal="verdict")
    again.load_state_dict(part.state_dict())
    log(again, rows)  # warnings are errors in this suite


def fragment():
    flags = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1]]).bool()
    return Batch({
        "obs": torch.tensor([[0, 1, 0, 2, 0], [9, 0, 3, 0, 1]]), "actions": torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]]),
        "start": flags, "terminated": torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]]).bool(),
        "cut": torch.zeros(2, 4).bool(), "mask": torch.ones(2, 4).bool(),
        "info/success": torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0]]),
    })  # fmt: skip


def test_whole_episodes_of_a_fragment():
    paths, success = stepped(fragment())
    assert paths == [[((0,), 5), ((1,), 6)], [((0,), 7), ((2,), 8)], [((0,), 2), ((3,), 3)]]
    assert success == [True, False, False]
    assert log(PredictedGain(), fragment())["success/rate"] == pytest.approx(1 / 3)
    wrong = fragment()
    wrong.columns["obs"] = wrong["obs"].float()
    with pytest.raises(ValueError, match="numbered states"):
        stepped(wrong)
    with pytest.raises(ValueError, match="tol"):
        PredictedGain(tol=-1.0)
