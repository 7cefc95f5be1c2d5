"""A comparison whose manifests differ is refused, and says in which field."""

from dataclasses import fields, replace

import pytest

from gainstage.measure import outcome
from gainstage.measure.compare import compare
from gainstage.measure.report import render
from gainstage.measure.runs import ParityManifest, RunRecord

BASE = ParityManifest(
    problems="0123456789abcdef", model="micro", template="plain/1:abc", verifier="exact/1",
    sampling={"temperature": 1.0}, samples=8, max_new=32, stop=("\n",), seeds=(0, 1, 2),
    budget={"generated_tokens": 1000.0}, evaluation={"split": "test", "problems": 100},
)  # fmt: skip
OTHER = {
    "problems": ("fedcba9876543210", "problems"), "model": ("smollm2", "model"),
    "template": ("boxed/1:def", "template"), "verifier": ("exact/2", "verifier"),
    "sampling": ({"temperature": 0.5}, "sampling.temperature"),
    "samples": (1, "samples"), "max_new": (64, "max_new"), "stop": (("\n", "."), "stop"),
    "seeds": ((0, 1), "seeds"), "budget": ({"generated_tokens": 2000.0}, "budget.generated_tokens"),
    "evaluation": ({"split": "validation", "problems": 100}, "evaluation.split"),
}  # fmt: skip


def runs(manifest):
    both = {"base": BASE, "new": manifest}
    return [
        RunRecord(arm, seed, final={"eval/t/pass@1": 0.5 + (0.3 + seed / 50) * (arm == "new") + seed / 100},
                  spent={"generated_tokens": 1000.0}, manifest=m)
        for arm, m in both.items()
        for seed in range(3)
    ]  # fmt: skip


def test_every_field_is_tried():
    assert set(OTHER) == {field.name for field in fields(ParityManifest)}


@pytest.mark.parametrize("name", OTHER)
def test_a_differing_field_is_named(name):
    value, shown = OTHER[name]
    report = compare(runs(replace(BASE, **{name: value})))
    c = report.comparisons[0]
    assert report.verdict == c.verdict == outcome.INCOMPARABLE and list(c.differing) == [shown]
    assert report.sentence.startswith("not comparable: ") and shown in report.sentence
    assert c.difference is None and shown in render(report) and outcome.GAIN not in report.markdown()


def test_equal_manifests_are_compared():
    assert compare(runs(BASE)).verdict == outcome.GAIN


def test_a_missing_manifest_is_no_parity():
    c = compare(runs(None)).comparisons[0]
    assert c.verdict == outcome.INCOMPARABLE and list(c.differing) == ["manifest"]


def test_one_answer_against_sixteen_is_refused():
    """The largest source of gains that are none: the same model with unequal samples."""
    report = compare(runs(replace(BASE, samples=16)))
    assert report.verdict == outcome.INCOMPARABLE and "samples" in report.sentence
