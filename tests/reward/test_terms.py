"""Reward terms: the token KL and its controller, the soft length limit."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest
import torch
from tests.reward.helpers_reward import answered, context

from gainstage.chain import build_chain
from gainstage.credit.returns.discounted import Discounted
from gainstage.recipe import load
from gainstage.reward.terms.length import Overlong, overlong, written_tokens
from gainstage.reward.terms.policy_terms import TokenKl, token_kl
from gainstage.types import Batch, PolicyOut

LOGP = torch.tensor([[-1.0, -1.0, -1.0], [-1.0, -1.0, math.nan]])
KL = torch.tensor([[0.2, -0.1, 0.3], [0.1, 0.4, math.nan]])
MASK = torch.tensor([[True] * 3, [True, True, False]])


class Reference:
    calls = 0

    def evaluate(self, batch: Batch, want=()) -> PolicyOut:
        self.calls += 1
        return PolicyOut((LOGP - KL).clone().requires_grad_())


def batch() -> Batch:
    return Batch({"mask": MASK, "behaviour_logprobs": LOGP, "reward": torch.tensor([1.0, 0.0])})


def test_every_token_pays_for_its_log_ratio_and_padding_pays_nothing():
    paid = token_kl(LOGP, LOGP - KL, MASK, 0.1)
    assert paid.flatten().tolist() == pytest.approx([-0.02, 0.01, -0.03, -0.01, -0.04, 0.0], abs=1e-7)
    clamped = token_kl(LOGP, LOGP - KL, MASK, 0.1, clamp=True)
    assert clamped[0].tolist() == pytest.approx([-0.02, 0.0, -0.03], abs=1e-7)


def test_the_reference_is_scored_once_and_the_score_joins_on_the_last_token():
    made, reference = batch(), Reference()
    entry, ctx = TokenKl(beta=0.1), context(reference=reference)
    made["rewards"] = entry.shape(made, ctx)
    assert entry.uses == ("reference",) and not made["ref_logprobs"].requires_grad
    returns = Discounted().assign(made)["returns"]
    assert returns.flatten().tolist() == pytest.approx([0.96, 0.98, 0.97, -0.05, -0.04, 0.0], abs=1e-6)
    entry.shape(made, ctx)
    assert reference.calls == 1
    # nats an answer: (0.4 + 0.5) / 2
    assert ctx.logged["token_kl/kl"] == pytest.approx(0.45)


def test_without_a_target_the_price_stays_and_with_one_it_follows_the_kl():
    fixed = TokenKl(beta=0.1)
    fixed.shape(batch(), context(reference=Reference()))
    assert fixed.state_dict() == {"beta": 0.1}
    for target, factor in ((0.5, 1 - 0.1 * 2 / 100), (0.3, 1 + 0.2 * 2 / 100), (0.45, 1.0)):
        steered = TokenKl(beta=0.1, target=target, horizon=100.0)
        steered.shape(batch(), context(reference=Reference()))
        assert steered.state_dict()["beta"] == pytest.approx(0.1 * factor, rel=1e-6)
        resumed = TokenKl(beta=0.1, target=target)
        resumed.load_state_dict(steered.state_dict())
        assert resumed.state_dict() == steered.state_dict()


def test_a_batch_without_trained_tokens_is_no_error():
    nothing = Batch({"mask": MASK & False, "behaviour_logprobs": LOGP})
    assert not TokenKl().shape(nothing, context(reference=Reference())).any()


@pytest.mark.parametrize(
    ("length", "want"), [(0, 0.0), (6, 0.0), (7, -0.25), (8, -0.5), (9, -0.75), (10, -1.0), (11, -1.0), (99, -1.0)]
)
def test_the_soft_length_limit(length: int, want: float):
    assert overlong(length, limit=10, buffer=4) == want


def test_without_buffer_only_what_exceeds_the_limit_is_punished():
    assert [overlong(n, 10, 0) for n in (10, 11)] == [0.0, -1.0]


def test_lengths_count_what_the_policy_wrote_trained_or_not():
    rows = [answered("", tokens=9), answered("", tokens=9, trained=False, prompt_tokens=50)]
    assert [written_tokens(row) for row in rows] == [9, 9]
    assert Overlong(limit=10, buffer=4).judge(rows, None) == [-0.75, -0.75]


def test_without_a_limit_only_what_the_task_does_not_need_is_punished():
    rows = [answered("", tokens=n) for n in (12, 13, 14, 16)]
    ctx = context()
    ctx.task = SimpleNamespace(max_new=12)
    assert Overlong(buffer=4).judge(rows, ctx) == [0.0, -0.25, -0.5, -1.0]


def test_the_dapo_recipe_punishes_no_answer_that_the_task_expects():
    chain = build_chain(load("dapo"))
    task = chain.task.it
    limit = chain.rollout[0].it.limit(task)
    longest = max(len(task.demonstrate(p, random.Random(0))) for p in task.problems("train")[:500]) + 1
    ctx = context()
    ctx.task = task
    punish = chain.reward[1].it
    assert punish.judge([answered("", tokens=n) for n in (longest, task.max_new)], ctx) == [0.0, 0.0]
    assert punish.judge([answered("", tokens=limit)], ctx) == [-1.0]


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="buffer must lie between"):
        Overlong(limit=4, buffer=5)
    with pytest.raises(ValueError, match=r"token_kl\.beta"):
        TokenKl(beta=-1.0)
    with pytest.raises(ValueError, match=r"token_kl\.target"):
        TokenKl(target=0.0)
