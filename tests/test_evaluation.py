"""Looking on through the recipe's own engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gainstage.chain import build_chain
from gainstage.evaluation import held_out, look
from gainstage.measure.budget import Meter
from gainstage.measure.evaluate import summarize
from gainstage.policies.snapshots import Models
from gainstage.recipe import load


@pytest.fixture(scope="module")
def looked():
    recipe = load("grpo", ["evaluate.problems=8"])
    chain, meter = build_chain(recipe), Meter()
    models = Models(recipe.models, ["policy"], meter=meter)
    start = models["policy"].snapshot("start")
    asked = held_out(chain.task.it, "validation", 8)
    texts: list[str] = []
    records = look(
        chain, models, asked, 4, seed=0, start=start, meter=meter,
        rows=lambda found: texts.extend(t.info["completion"] for t in found),
    )  # fmt: skip
    return SimpleNamespace(chain=chain, models=models, meter=meter, records=records, texts=texts)


def test_every_side_effect_is_measured(looked):
    numbers = summarize(looked.records)
    assert {"pass@1", "pass@4", "ece", "brier", "aurc", "diversity", "entropy/mean", "kl/start", "length/mean"} <= set(
        numbers
    )
    assert 1 <= numbers["diversity"] <= 4 and 0 <= numbers["ece"] <= 1
    assert abs(numbers["kl/start"]) < 1e-6, "nothing was trained"
    assert "abstention" not in numbers, "the task says nothing of declining"


def test_answers_are_what_the_task_reads(looked):
    task = looked.chain.task.it
    answers = [a.answer for record in looked.records for a in record.answers]
    assert answers == [task.extract(text) for text in looked.texts]


def test_a_long_answer_is_kept_as_a_digest():
    from gainstage.evaluation import _kept

    task = SimpleNamespace(extract=lambda text: text)
    assert _kept(task, "x" * 64) == "x" * 64
    long = {_kept(task, "x" * 65), _kept(task, "x" * 66), _kept(task, "x" * 65)}
    assert len(long) == 2 and all(len(text) < 64 for text in long)
    assert _kept(SimpleNamespace(), "  ") is None


def test_looking_on_spends_on_an_account_of_its_own(looked):
    spent, own = looked.meter.snapshot("evaluation"), looked.meter.snapshot()
    assert not any(own.values())
    assert spent["verifier_calls"] == 32 and spent["seconds"] > 0
    tokens = sum(a.length for record in looked.records for a in record.answers)
    assert spent["generated_tokens"] == tokens
    assert spent["scored_tokens"] > 2 * tokens, "policy and start each read prompt and answer"
