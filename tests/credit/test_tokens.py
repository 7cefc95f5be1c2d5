"""Credit per token: spreading, whitening, scoring under a role, distillation."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.credit.helpers_credit import Scorer, batch_of, context

from gainstage.credit.tokens.broadcast import Broadcast, broadcast
from gainstage.credit.tokens.reference_logprobs import ReferenceLogprobs
from gainstage.credit.tokens.teacher_logratio import (
    TeacherLogratio,
    position_mask,
    prefix_discrepancy_weight,
    teacher_advantage,
)
from gainstage.credit.tokens.whiten import Whiten, whiten
from gainstage.registry import RecipeError


def test_a_row_s_number_stands_on_each_of_its_decisions():
    mask = torch.tensor([[True, False, True], [True, False, False]])
    assert broadcast(torch.tensor([2.0, -1.0]), mask).tolist() == [[2, 0, 2], [-1, 0, 0]]
    batch = batch_of([2, 1], advantage=[2.0, -1.0])
    assert Broadcast().assign(batch)["advantages"].tolist() == [[2, 2], [-1, 0]]


def test_numbers_of_spans_stand_on_their_spans():
    mask = torch.tensor([[False, True, True, False, True]])
    span = torch.tensor([[-1, 0, 0, 0, 1]])
    assert broadcast(torch.tensor([[3.0, 5.0]]), mask, span).tolist() == [[0, 3, 3, 0, 5]]
    assert broadcast(torch.tensor([[3.0, 5.0]]), torch.ones(1, 2).bool(), torch.tensor([[-2, 1]])).tolist() == [[0, 5]]


def test_whitening_weighs_tokens_as_in_the_worked_example():
    lengths = [2, 3, 3, 2, 1, 2, 2, 4]
    centred = [0.75, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, -0.75]
    batch = batch_of(lengths, group=[0] * 4 + [1] * 4, advantage=centred)
    batch["advantages"] = Broadcast().assign(batch)["advantages"]
    got = Whiten().assign(batch)["advantages"]
    assert got[:, 0].tolist() == pytest.approx([1.911639, *[-0.289642] * 3, *[0.810998] * 3, -1.390283], abs=1e-5)
    assert not got[~batch["mask"]].any()


@given(st.lists(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=5), min_size=1, max_size=4))
def test_whitened_entries_have_mean_zero_and_std_one_whatever_the_padding(rows: list[list[float]]):
    width = max(map(len, rows))
    x = torch.tensor([r + [math.nan] * (width - len(r)) for r in rows])
    mask = ~torch.isnan(x)
    got = whiten(x, mask)
    real = got[mask]
    assert bool((got[~mask] == 0).all())
    if float(x[mask].max() - x[mask].min()) > 1e-3:
        assert real.mean().item() == pytest.approx(0.0, abs=1e-5)
        assert real.std(unbiased=False).item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("x", [[[0.3, 0.3]], [[0.1 + 0.2, 0.3]], [[7.0]]])
def test_constants_become_exactly_zero(x: list[list[float]]):
    values = torch.tensor(x)
    for ddof in (0, 1):
        assert not whiten(values, torch.ones_like(values).bool(), ddof).any()
    assert not whiten(values, torch.zeros_like(values).bool()).any()


def test_ddof_and_sequence_weights():
    x = torch.tensor([[1.0, 1.0, 1.0], [3.0, 0.0, 0.0]])
    mask = torch.tensor([[True] * 3, [True, False, False]])
    sample = whiten(x, mask, ddof=1)[mask]
    assert sample.std().item() == pytest.approx(1.0, abs=1e-6)
    batch = batch_of([3, 1], advantages=x)
    assert Whiten(over="sequence").assign(batch)["advantages"].tolist() == [[-1, -1, -1], [1, 0, 0]]
    for settings in ({"ddof": 2}, {"over": "sequence", "ddof": 1}, {"floor": 0.0}):
        with pytest.raises(ValueError, match="whiten"):
            Whiten(**settings)


def test_reference_logprobs_score_once_and_keep_what_is_there():
    batch = batch_of([2, 1], tokens=[[1, 2], [3, 0]])
    role = Scorer(torch.tensor([[-1.0, -2.0], [-3.0, 0.0]]))
    entry = ReferenceLogprobs()
    written = entry.estimate(batch, context(reference=role))
    assert written["ref_logprobs"].tolist() == role.logprobs.tolist()
    assert not written["ref_logprobs"].requires_grad
    batch["ref_logprobs"] = written["ref_logprobs"]
    assert entry.estimate(batch, context(reference=role)) == {} and role.calls == 1


def test_a_role_with_another_tokenizer_is_refused_at_the_start():
    def speaks(**vocabulary: int):
        return SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda: vocabulary))

    entry = ReferenceLogprobs(role="teacher")
    entry.start(context(policy=speaks(a=0, b=1), teacher=speaks(a=0, b=1)))
    entry.start(context(teacher=speaks(a=0)))  # nothing to compare with
    with pytest.raises(RecipeError, match="'teacher' has another tokenizer"):
        entry.start(context(policy=speaks(a=0, b=1), teacher=speaks(a=1, b=0)))


def test_reference_logprobs_declare_role_and_column():
    entry = ReferenceLogprobs(role="teacher", out="teacher_logprobs")
    assert (entry.uses, entry.writes) == (("teacher",), ("teacher_logprobs",))
    batch = batch_of([1], tokens=[[1]])
    batch["teacher_logprobs"] = entry.estimate(batch, context(teacher=Scorer(torch.zeros(1, 1))))["teacher_logprobs"]
    assert batch["teacher_logprobs"].tolist() == [[0.0]]


TEACHER, STUDENT = torch.tensor([[-0.2, -1.0, -3.0, -0.5]]), torch.tensor([[-0.7, -0.8, -0.6, -0.5]])
ALL = torch.ones(1, 4, dtype=torch.bool)


def test_distillation_worked_numbers():
    a = teacher_advantage(TEACHER, STUDENT, ALL)
    assert a[0].tolist() == pytest.approx([0.5, -0.2, -2.4, 0.0])
    w = prefix_discrepancy_weight(a, ALL, 0.5)
    assert w[0].tolist() == pytest.approx([1.5, 1.419355, 1.387097, 1.0], abs=1e-6)
    assert (w * a)[0].tolist() == pytest.approx([0.75, -0.283871, -3.329032, 0.0], abs=1e-6)
    assert (-(STUDENT * w * a).sum() / 4).item() == pytest.approx(-0.424879, abs=1e-6)


@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=7), st.floats(0, 3))
def test_weights_fall_from_one_plus_gamma_and_stay_above_one(values: list[float], gamma: float):
    a = torch.tensor([values], dtype=torch.float64)
    w = prefix_discrepancy_weight(a, torch.ones_like(a).bool(), gamma)[0]
    assert w[0].item() == pytest.approx(1 + gamma)
    assert bool((w[1:] <= w[:-1] + 1e-12).all()) and w.min().item() >= 1 - 1e-9
    if gamma == 0:
        assert w.tolist() == [1.0] * len(values)


def test_padding_and_gaps_may_hold_anything():
    inf = math.inf
    mask = torch.tensor([[True, False, True, True, True, False]])
    teacher, student = torch.full((1, 6), -inf), torch.full((1, 6), -inf)
    teacher[mask], student[mask] = TEACHER[0], STUDENT[0]
    a = teacher_advantage(teacher, student, mask)
    w = prefix_discrepancy_weight(a, mask, 0.5)
    assert (w * a)[mask].tolist() == pytest.approx([0.75, -0.283871, -3.329032, 0.0], abs=1e-6)
    assert not a[~mask].any() and not w[~mask].any()


def test_equal_teacher_and_student_learn_nothing():
    a = teacher_advantage(STUDENT, STUDENT, ALL)
    assert not a.any()
    assert prefix_discrepancy_weight(a, ALL, 0.5)[0].tolist() == [1.5] * 4
    assert not prefix_discrepancy_weight(a, ~ALL, 0.5).any()


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_missing_log_prob_is_an_error_with_its_count(value: float):
    broken = TEACHER.clone()
    broken[0, 1:3] = value
    with pytest.raises(ValueError, match="teacher log-probs are missing or infinite at 2 of 4 tokens"):
        teacher_advantage(broken, STUDENT, ALL)


def test_the_component_with_weights_clip_and_positions():
    batch = batch_of([4], teacher_logprobs=TEACHER, behaviour_logprobs=STUDENT)
    plain = TeacherLogratio().assign(batch)
    assert plain["advantages"][0].tolist() == pytest.approx([0.5, -0.2, -2.4, 0.0])
    weighted = TeacherLogratio(gamma=0.5).assign(batch)["advantages"]
    assert weighted[0].tolist() == pytest.approx([0.75, -0.283871, -3.329032, 0.0], abs=1e-6)
    assert TeacherLogratio(clip=1.0).assign(batch)["advantages"][0].tolist() == pytest.approx([0.5, -0.2, -1.0, 0.0])
    first = TeacherLogratio(positions="first", share=0.5)
    written = first.assign(batch)
    assert written["mask"].tolist() == [[True, True, False, False]]
    assert written["advantages"][0].tolist() == pytest.approx([0.5, -0.2, 0.0, 0.0])
    assert first.writes == ("advantages", "mask") and batch["mask"].all()


def test_position_masks_count_decisions_not_columns():
    mask = torch.tensor([[False] + [True] * 10, [True] * 3 + [False] * 8])
    first, last = position_mask(mask, "first", 0.3), position_mask(mask, "last", 0.3)
    assert torch.nonzero(first[0]).flatten().tolist() == [1, 2, 3]
    assert torch.nonzero(last[0]).flatten().tolist() == [8, 9, 10]
    assert not first[1].any()  # 0.3 of three tokens holds none: t = 1 > 0.9
    assert torch.nonzero(last[1]).flatten().tolist() == [2]
    assert torch.equal(position_mask(mask, "all", 0.3), mask)


@pytest.mark.parametrize("settings", [{"gamma": -1.0}, {"clip": 0.0}, {"share": 0.0}])
def test_wrong_settings_are_named(settings: dict):
    with pytest.raises(ValueError, match="teacher_logratio"):
        TeacherLogratio(**settings)
