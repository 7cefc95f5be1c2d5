"""How many seeds: against the power of the test that will be used."""

import math

import numpy as np
import pytest
from scipy import stats

from gainstage.measure import planning as p
from gainstage.measure.compare import compare
from gainstage.measure.intervals import power
from gainstage.measure.runs import ParityManifest, RunRecord


def test_the_plan_finds_what_it_says():
    plan = p.plan_seeds(0.02, effect=0.02)
    assert plan.seeds == 10 and power(0.02, 0.02, 10) >= 0.8 > power(0.02, 0.02, 9)
    for n, effect in plan.detectable.items():
        assert power(effect, 0.02, n) == pytest.approx(0.8, abs=1e-6)
    assert list(plan.detectable) == [3, 5, 10, 20] and sorted(plan.detectable.values(), reverse=True)
    assert plan.sd_safe is None and plan.seeds_safe is None


def test_more_arms_need_more_seeds():
    assert p.plan_seeds(0.02, effect=0.02, comparisons=3).seeds > p.plan_seeds(0.02, effect=0.02).seeds


def test_few_pairs_say_little_about_the_spread():
    rng = np.random.default_rng(0)
    shown = rng.normal(0, 1, (4000, 3)).std(1, ddof=1)
    below = np.mean([p.sd_limit(sd, 3) >= 1 for sd in shown])
    assert below == pytest.approx(0.8, abs=0.02)
    assert p.sd_limit(1.0, 3) == pytest.approx(math.sqrt(2 / stats.chi2.ppf(0.2, 2)))
    assert p.sd_limit(1.0, 30) < p.sd_limit(1.0, 3) and p.sd_limit(1.0, 1) is None
    plan = p.plan_seeds(0.02, 3, effect=0.02)
    assert plan.seeds_safe > plan.seeds


def test_what_can_never_be_found_is_said():
    assert p.plan_seeds(1.0, effect=1e-4, metric="reward/mean").seeds is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"sd": 0.0}, "sd must be positive"), ({"sd": math.nan}, "sd must be positive"),
     ({"sd": 0.1, "effect": 0.0}, "effect must be positive"), ({"sd": 0.1, "effect": 2}, "0.02 is two points")],
)  # fmt: skip
def test_wrong_wishes(arguments, message):
    with pytest.raises(ValueError, match=message):
        p.plan_seeds(**arguments)
    assert p.plan_seeds(3.0, effect=2.0, metric="reward/mean").seeds > 2


def test_a_finished_comparison_plans_the_next_one():
    manifest = ParityManifest("hash", budget={"generated_tokens": 10})
    runs = [
        RunRecord(arm, seed, final={"eval/t/pass@1": 0.5 + 0.01 * seed * (arm == "b")},
                  spent={"generated_tokens": 10}, manifest=manifest)
        for arm in "abc" for seed in range(4)
    ]  # fmt: skip
    b, c = p.plan_from(compare(runs), effect=0.01)
    assert b.sd == pytest.approx(np.std([0, 0.01, 0.02, 0.03], ddof=1)) and b.pairs == 4
    assert b.alpha == pytest.approx(0.025)
    assert c.sd is None and c.reason == "no spread" and c.detectable == {}
