"""Names of metrics: a unit and a meaning each, and the spellings of other libraries."""

from __future__ import annotations

import re

import pytest

from gainstage.tracking import ALIASES, NAMES, describe, spelling


def test_every_name_has_a_meaning_of_one_line():
    for name, metric in NAMES.items():
        assert metric.meaning and "\n" not in metric.meaning, name


@pytest.mark.parametrize(
    ("name", "unit", "word"),
    [
        ("reward/mean", "reward", "mean total reward"),
        ("reward/part/exact/mean", "reward", "one part"),
        ("eval/arithmetic/pass@16", "share", "at least one of k"),
        ("eval/arithmetic/pass@1/low", "share", "interval"),
        ("budget/generated_tokens", "tokens", "sampled"),
        ("failures/verifier", "count", "never trained on"),
        ("failures/reward/exact", "answers", "not finite"),
        ("critic/grad/norm", "norm", "this learner"),
    ],
)
def test_describe(name: str, unit: str, word: str):
    metric = describe(name)
    assert metric is not None and metric.unit == unit and word in metric.meaning


def test_a_name_of_its_own_has_no_description():
    assert describe("thompson/effective_ratio") is None
    assert describe("reward/part/a/b/mean") is None  # a placeholder stands for one word


@pytest.mark.parametrize("scheme", ALIASES)
def test_aliases_translate_known_names_and_never_two_to_one(scheme: str):
    assert set(ALIASES[scheme]) <= set(NAMES)
    for ours, theirs in ALIASES[scheme].items():
        assert set(re.findall(r"{\w+}", theirs)) <= set(re.findall(r"{\w+}", ours))
    assert len(set(ALIASES[scheme].values())) == len(ALIASES[scheme])


@pytest.mark.parametrize(
    ("scheme", "name", "theirs"),
    [
        ("trl", "reward/mean", "reward"),
        ("trl", "reward/part/exact/mean", "rewards/exact/mean"),
        ("trl", "groups/zero_variance", "frac_reward_zero_std"),
        ("verl", "length/truncated", "response_length/clip_ratio"),
        ("sb3", "value/explained_variance", "train/explained_variance"),
        ("sb3", "thompson/mean", "thompson/mean"),
        (None, "kl/ref", "kl/ref"),
    ],
)
def test_spelling(scheme: str | None, name: str, theirs: str):
    assert spelling(name, scheme) == theirs


def test_an_unknown_spelling_names_the_known_ones():
    with pytest.raises(ValueError, match="log_names must be one of gainstage, trl, verl, sb3; got 'tlr'"):
        spelling("lr", "tlr")
