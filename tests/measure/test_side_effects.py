"""What stands beside every gain."""

import pytest

from gainstage.measure.compare import compare
from gainstage.measure.evaluate import Answer, EvalRecord
from gainstage.measure.metrics import describe
from gainstage.measure.report import render
from gainstage.measure.runs import ParityManifest, RunRecord
from gainstage.measure.tables import side_effects

MANIFEST = ParityManifest("hash", budget={"generated_tokens": 10})


def run(arm, seed, evaluation, **final):
    named = {name.replace("__", "/"): value for name, value in final.items()}
    return RunRecord(
        arm, seed, evaluation={"t": evaluation}, final=named, spent={"generated_tokens": 10}, manifest=MANIFEST
    )


def problem(name, *answers, right="7"):
    """Samples by text; `?` declines."""
    rows = [Answer(float(a == right), a == right, answer=None if a == "?" else a, abstained=a == "?") for a in answers]
    return EvalRecord(name, tuple(rows))


def runs(first, second, **final):
    return [run(arm, seed, rows, **final) for arm, rows in (("base", first), ("new", second)) for seed in range(3)]


BOLD = [problem("a", "7", "7", "7", "7"), problem("b", "8", "8", "8", "8")]
SHY = [problem("a", "7", "7", "7", "7"), problem("b", "?", "?", "?", "8")]


def test_calibration_diversity_and_the_largest_k_stand_beside_the_gain():
    report = compare(runs(BOLD, SHY))
    for arm in report.arms:
        assert {"ece", "diversity", "pass@4", "abstention", "hallucination", "length/mean"} <= set(arm.side_effects)
    base, new = report.arms
    assert base.side_effects["ece"].value == 0.5 and new.side_effects["ece"].value == 0
    assert new.side_effects["abstention"].value == 3 / 8
    heads = [column.label for column in side_effects(report).columns]
    assert {"calibration error", "distinct answers", "pass@4"} <= set(heads) and "calibration error" in render(report)


def test_declining_gains_nothing_on_the_problems_that_both_attempt():
    """By its own attempts the second arm is calibrated, only because it declines what it would get wrong."""
    c = compare(runs(BOLD, SHY)).comparisons[0]
    assert c.side_effects["ece"].value == pytest.approx(-0.5)
    assert c.side_effects["ece/shared"].value == 0
    assert "ece/shared" not in compare(runs(BOLD, BOLD)).comparisons[0].side_effects
    nothing = [problem("a", *"????"), problem("b", *"????")]
    assert "ece/shared" not in compare(runs(BOLD, nothing)).comparisons[0].side_effects


def test_retained_tasks_stand_beside_the_gain_and_do_not_enter_it():
    found = compare(runs(BOLD, BOLD, retained__sort=0.2, retained__sort__change=-0.1))
    assert found.metric == "eval/*/pass@1" and found.arms[0].value.value == 0.5 and found.tasks == ["t"]
    assert found.arms[0].side_effects["retained/sort/change"].value == pytest.approx(-0.1)
    text = found.markdown()
    assert "pass@1 on sort" in text and "\u221210.0 points" in text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("retained/sort", 0.25, "25.0 %"), ("retained/sort/change", -0.25, "\u221225.0 points"),
     ("retained/rg:chain_sum/change", 0.0, "0.0 points"), ("eval/t/diversity", 2.5, "2.50")],
)  # fmt: skip
def test_how_side_effects_are_written(name, value, text):
    shown = describe(name)
    assert shown.text(value) == text and shown.meaning != name
