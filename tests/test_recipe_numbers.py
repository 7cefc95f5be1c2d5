"""Worked numbers of the papers through whole recipes: credit in their order, then the loss on given log-probs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gainstage.chain import Chain, build_chain
from gainstage.recipe import load, phase_recipe
from gainstage.types import Batch, PolicyOut

REJECTED = [1, 0, 1, 0, *[1] * 4, *[0] * 4]
GROUPS = [0] * 4 + [1] * 4 + [2] * 4
SIGNED = [2 * r - 1 for r in REJECTED]


def chain(name: str, *overrides: str, phase: int = 0) -> Chain:
    return build_chain(phase_recipe(load(name, overrides), phase))


def batch(lengths: list[int], reward: list[float], group: list[int], **columns: Tensor) -> Batch:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    zero = torch.zeros(mask.shape)
    made = {"mask": mask, "reward": torch.tensor(reward, dtype=torch.float32), "group": torch.tensor(group)}
    made |= {"version": torch.full((len(lengths),), -1), "behaviour_logprobs": zero, "ref_logprobs": zero}
    return Batch(made | columns)


def context(logprobs: Tensor | None = None) -> Any:
    handle = SimpleNamespace(version=0, evaluate=lambda mb, want=(): PolicyOut(logprobs))
    meter = SimpleNamespace(charge=lambda *spent: None)
    return SimpleNamespace(models={"policy": handle}, meter=meter, log=lambda name, value: None)


def credited(made: Chain, rows: Batch) -> Batch:
    """Per-token rewards and credit as an iteration applies them."""
    for part in made.reward:
        if part.has("shape"):
            rows["rewards"] = part.it.shape(rows, context())
    for part in made.credit:
        found = part.it.estimate(rows, context()) if part.has("estimate") else part.it.assign(rows)
        for name, value in found.items():
            rows[name] = value
    return rows


def loss(made: Chain, rows: Batch, logprobs: Tensor) -> Tensor:
    learner = made.update[0].it
    assert learner.prepare(rows, context(logprobs))
    return learner.loss(rows, context(logprobs))[0]


def ragged(*rows: list[float]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


@pytest.mark.parametrize(
    ("name", "overrides", "reward", "want"),
    [
        ("grpo", [], REJECTED, [*[0.866024, -0.866024] * 2, *[0] * 8]),
        ("raft", [], REJECTED, REJECTED),
        ("raft_pp", [], SIGNED, REJECTED),
        ("reinforce", [], SIGNED, SIGNED),
        ("reinforce_rej", ["credit.reject_constant.right=false"], SIGNED, [1, -1, 1, -1, *[1] * 4, *[0] * 4]),
        ("reinforce_rej", ["credit.reject_constant.wrong=false"], SIGNED, [1, -1, 1, -1, *[0] * 4, *[-1] * 4]),
        ("reinforce_rej", [], SIGNED, [1, -1, 1, -1, *[0] * 8]),
        ("reinforce_rej", ["credit.group_relative.center=mean"], REJECTED, [*[0.5, -0.5] * 2, *[0] * 8]),
        ("reinforce_rej", ["credit.group_relative.scale=sample"], SIGNED, [*[0.866025, -0.866025] * 2, *[0] * 8]),
        (
            "rgra",
            ["credit=[reference_logprobs, group_relative, positive_only, broadcast]"],
            REJECTED,
            [*[0.866024, 0] * 2, *[0] * 8],
        ),
        ("gopo", [], [0.1, 0.9, 0.5, 0.3, 3, 3, 1, 7, 1, 1, 1, 1], [-2, 2, 2 / 3, -2 / 3, 0, 0, -2, 2, 0, 0, 0, 0]),
    ],
)
def test_advantages(name: str, overrides: list[str], reward: list[float], want: list[float]) -> None:
    rows = credited(chain(name, *overrides), batch([1] * 12, reward, GROUPS))
    assert rows["advantage"].tolist() == pytest.approx(want, abs=2e-6)
    assert rows["advantages"].flatten().tolist() == pytest.approx(want, abs=2e-6)


def test_signed_rewards_reach_every_arm_of_the_ablation() -> None:
    signed = "reward=[{task_verdict: {then: [{affine: {scale: 2, shift: -1}}]}}]"
    for name in ("reinforce", "reinforce_rej", "raft", "raft_pp", "grpo"):
        (transform,) = chain(name, signed).reward[0].options["then"]
        assert transform([1.0, 0.0]) == [1.0, -1.0]


def test_rejected_prompts_leave_the_denominator_unless_asked_not_to() -> None:
    kept = credited(chain("reinforce_rej"), batch([1] * 12, REJECTED, GROUPS))
    assert kept["mask"].flatten().tolist() == [True] * 4 + [False] * 8
    kept = credited(
        chain("reinforce_rej", "credit.reject_constant.denominator=batch"), batch([1] * 12, REJECTED, GROUPS)
    )
    assert bool(kept["mask"].all())


def test_reinforce_pp_with_the_kl_in_the_reward() -> None:
    kl = ragged([0.2, -0.1, 0.3], [0.1, 0.4])
    rows = batch([3, 2], [1, 0], [0, 1], ref_logprobs=-kl)
    credited(chain("reinforce_pp", "reward.token_kl.beta=0.1"), rows)
    assert rows["returns"][rows["mask"]].tolist() == pytest.approx([0.96, 0.98, 0.97, -0.05, -0.04], abs=1e-6)
    want = [0.796305, 0.836523, 0.816414, -1.234675, -1.214567]
    assert rows["advantages"][rows["mask"]].tolist() == pytest.approx(want, abs=2e-6)


def test_reinforce_pp_with_group_baseline() -> None:
    rows = batch([2, 3, 3, 2, 1, 2, 2, 4], [1, 0, 0, 0, 1, 1, 1, 0], [0] * 4 + [1] * 4)
    got = credited(chain("reinforce_pp_baseline"), rows)["advantages"][:, 0].tolist()
    assert got == pytest.approx([1.911639, *[-0.289642] * 3, *[0.810998] * 3, -1.390283], abs=2e-6)


@pytest.mark.parametrize(("agg", "want"), [("sequence_mean", -0.161979), ("token_mean", 0.0)])
def test_rgra_loss_of_two_answers(agg: str, want: float) -> None:
    logprobs = ragged([math.log(0.5), math.log(0.8)], [math.log(0.4)])
    made = chain("rgra", "update.policy.objectives=[policy_gradient]", f"update.policy.agg={agg}")
    rows = credited(made, batch([2, 1], [1, 0], [0, 0], behaviour_logprobs=logprobs))
    assert float(loss(made, rows, logprobs)) == pytest.approx(want, abs=2e-6)
    same = chain("grpo", "update.policy.objectives=[clipped]")
    assert float(loss(same, rows, logprobs)) == pytest.approx(0.0, abs=1e-6)


def test_rgra_loss_with_kl() -> None:
    logprobs, ref = ragged([math.log(0.5), math.log(0.25)]), ragged([math.log(0.4), math.log(0.3)])
    rows = batch([2], [1], [0], ref_logprobs=ref, advantages=torch.full((1, 2), 1.5))
    got = loss(chain("rgra", "update.policy.objectives.reference_kl.weight=0.04"), rows, logprobs)
    assert float(got) == pytest.approx(1.560398, abs=1e-6)


def test_raft_loss_counts_the_tokens_of_wrong_answers() -> None:
    made, logprobs = chain("raft"), ragged([math.log(0.5), math.log(0.5)], [math.log(0.25)])
    rows = credited(made, batch([2, 1], [1, 0], [0, 0]))
    assert float(loss(made, rows, logprobs)) == pytest.approx(0.462098, abs=1e-6)


def test_bnpo_advantages_and_loss() -> None:
    reward = [1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0]
    with pytest.warns(UserWarning, match="fewer than 8"):
        rows = credited(chain("bnpo"), batch([1] * 16, reward, [i // 4 for i in range(16)]))
    want = [0.667379, *[-0.222460] * 3, *[0.350079] * 2, *[-0.350079] * 2, *[0.222460] * 3, -0.667379]
    assert rows["advantage"][:12].tolist() == pytest.approx(want, abs=2e-6)
    sums = batch([4, 2, 1], [0] * 3, [0] * 3, advantages=torch.ones(3, 4))
    assert float(loss(chain("bnpo"), sums, torch.zeros(3, 4))) == pytest.approx(-7 / 3)
    one = batch([1], [0], [0], advantages=-torch.ones(1, 1), behaviour_logprobs=torch.full((1, 1), -5.0))
    assert float(loss(chain("bnpo"), one, torch.zeros(1, 1))) == pytest.approx(10.0)


def test_prefix_divergence_loss() -> None:
    new, old = ([math.log(p) for p in row] for row in ([0.52, 0.62, 0.4, 0.55, 0.3], [0.5, 0.5, 0.26, 0.6, 0.2]))
    rows = batch([5], [0], [0], behaviour_logprobs=torch.tensor([old]), advantages=torch.ones(1, 5))
    assert float(loss(chain("prefix_divergence"), rows, torch.tensor([new]))) == pytest.approx(-0.639333, abs=1e-6)
    uniform = chain("prefix_divergence", "update.policy.objectives=[uniform_divergence]")
    assert float(loss(uniform, rows, torch.tensor([new]))) == pytest.approx(
        -(1.04 + 1.24 + 0.40 / 0.26 + 0.55 / 0.60 + 1.5) / 5, abs=1e-6
    )


@pytest.mark.parametrize(
    ("name", "overrides", "want"),
    [
        ("iw_opd", [], [0.75, -0.283871, -3.329032, 0]),
        ("opd", [], [0.5, -0.2, -2.4, 0]),
        ("opd", ["phases.distil.credit.teacher_logratio.positions=first"], [0.5, 0, 0, 0]),
        ("opd", ["phases.distil.credit.teacher_logratio.positions=last"], [0, 0, -2.4, 0]),
    ],
)
def test_distillation(name: str, overrides: list[str], want: list[float]) -> None:
    teacher, student = torch.tensor([[-0.2, -1.0, -3.0, -0.5]]), torch.tensor([[-0.7, -0.8, -0.6, -0.5]])
    made = chain(name, "phases.distil.credit.reverse_kl=null", *overrides, phase=1)  # it only looks on
    rows = credited(made, batch([4], [0], [0], behaviour_logprobs=student, teacher_logprobs=teacher))
    assert rows["advantages"][0].tolist() == pytest.approx(want, abs=2e-6)
    if name == "iw_opd":
        assert float(loss(made, rows, student)) == pytest.approx(-0.424879, abs=1e-6)
