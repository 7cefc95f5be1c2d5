"""The full-vocabulary divergence of a student from its teacher, place by place."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from tests.credit.helpers_credit import batch_of

from gainstage.credit.tokens.reverse_kl import ReverseKl, by_position
from gainstage.recipe import load
from gainstage.registry import RecipeError
from gainstage.trainer import Trainer
from gainstage.types import PolicyOut


def test_places_are_counted_in_decisions_and_late_ones_share_an_entry():
    mask = torch.tensor([[0, 1, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0]]).bool()
    means, counts = by_position(torch.tensor([1.0, 2.0, 3.0, 5.0, 7.0]), mask, 2)
    assert means.tolist() == [4.0, 2.0, 4.0] and counts.tolist() == [2.0, 1.0, 2.0]
    means, counts = by_position(torch.tensor([1.0]), torch.tensor([[0, 1]]).bool(), 3)
    assert means[0] == 1 and means[1:].isnan().all() and counts.tolist() == [1, 0, 0, 0]


class Fixed:
    """Says the same distribution everywhere."""

    hidden = None

    def __init__(self, *p: float) -> None:
        self.p = torch.tensor(p)

    def evaluate(self, batch, want=()):
        assert want == ("distribution",)
        count = int(batch["mask"].sum())
        return PolicyOut(torch.zeros(batch["mask"].shape), extras={"distribution": self.p.log().repeat(count, 1)})


def test_it_logs_and_writes_nothing():
    logged: dict[str, float] = {}
    ctx = SimpleNamespace(
        models={"policy": Fixed(0.5, 0.5, 0.0), "teacher": Fixed(0.25, 0.25, 0.5)}, log=logged.__setitem__
    )
    entry = ReverseKl(rows=2, positions=2)
    entry.start(ctx)
    assert entry.estimate(batch_of([3, 1, 4]), ctx) == {}
    assert logged == pytest.approx(
        dict.fromkeys(("kl/full", "kl/position/1", "kl/position/2", "kl/position/later"), math.log(2))
    )
    assert entry.estimate(batch_of([0]), ctx) == {}


def test_a_role_without_weights_and_bad_settings_are_refused():
    remote = SimpleNamespace(models={"policy": Fixed(1.0), "teacher": SimpleNamespace()})
    with pytest.raises(RecipeError, match="'teacher' gives no distribution"):
        ReverseKl().start(remote)
    for settings in ({"rows": 0}, {"positions": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            ReverseKl(**settings)


def test_the_mean_log_ratio_under_the_student_is_the_divergence():
    """Of a whole language model: E[log p - log q] over the student's distribution, at its own decisions."""
    trainer = Trainer(load("grpo", ["iterations=2", "plan.groups=8", "plan.minibatch=null", "update.policy.lr=1e-3"]))
    batches = []
    trainer.on_batch = lambda number, batch: batches.append(batch)
    trainer.run()
    batch, models = batches[-1], trainer.models
    with torch.no_grad():
        outs = [models[role].evaluate(batch, want=("distribution", "entropy")) for role in ("policy", "reference")]
    chosen = batch["tokens"][batch["mask"]]
    for out in outs:
        table = out.extras["distribution"]
        assert torch.allclose(table.exp().sum(-1), torch.ones(len(table)), atol=1e-5)
        assert torch.allclose(table.gather(1, chosen.unsqueeze(1)).squeeze(1), out.logprobs[batch["mask"]], atol=1e-5)
        assert torch.allclose(-(table.exp() * table).sum(-1), out.entropy[batch["mask"]], atol=1e-5)
    logged: dict[str, float] = {}
    ReverseKl(role="reference", rows=10**6).estimate(batch, SimpleNamespace(models=models, log=logged.__setitem__))
    p, q = (out.extras["distribution"] for out in outs)
    assert logged["kl/full"] == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), rel=1e-4)
    assert logged["kl/full"] > 0


def test_the_distillation_recipes_log_it():
    from gainstage.recipe import check

    data = load("iw_opd").model_dump()
    for phase in data["phases"]:
        phase |= {"iterations": 1, "plan": {"groups": 4}}
    rows: list[dict[str, float]] = []
    Trainer(check(data), on_row=rows.append).run()
    assert "kl/full" not in rows[0] and rows[1]["kl/full"] >= 0 and "kl/position/1" in rows[1]
