"""Made-up runs whose truth is known."""

import numpy as np
import pytest

from gainstage.measure.audits.contamination import Overlap
from gainstage.measure.evaluate import Answer, EvalRecord
from gainstage.measure.runs import ParityManifest, RunRecord
from gainstage.types import Stop

MANIFEST = ParityManifest(
    problems="0123456789abcdef", model="micro", template="plain", verifier="exact/1", sampling={"temperature": 1.0},
    samples=8, max_new=32, seeds=(0, 1, 2), budget={"generated_tokens": 100_000}, evaluation={"split": "test"},
)  # fmt: skip


def _records(rng, rate, problems, samples):
    rates = np.clip(rng.beta(4 * rate + 0.05, 4 * (1 - rate) + 0.05, problems), 0, 1)
    rows = []
    for index, p in enumerate(rates):
        right = rng.uniform(size=samples) < p
        answers = tuple(
            Answer(float(r), bool(r), length=int(rng.integers(8, 30)), entropy=float(rng.uniform(0.2, 0.4)),
                   kl=float(rng.uniform(0, 0.2)), stop=Stop.LENGTH if rng.uniform() < 0.05 else Stop.EOS)
            for r in right
        )  # fmt: skip
        rows.append(EvalRecord(f"p{index}", answers))
    return rows


@pytest.fixture
def make_run():
    """Make one run: a curve that climbs to `rate`, its final evaluation, spending."""

    def make(arm, seed, rate=0.6, *, spread=0.02, spent=100_000, problems=40, samples=8, **more):
        rng = np.random.default_rng([seed, sum(map(ord, arm))])
        end = float(np.clip(rate + rng.normal(0, spread), 0.02, 0.98))
        pace = 4 + rng.uniform()
        curve = []
        for step in range(21):
            share = step / 20
            row = {
                "budget/generated_tokens": share * spent, "budget/trained_tokens": 2 * share * spent,
                "budget/gradient_steps": 80.0 * step, "budget/seconds": pace * step,
                "reward/mean": 0.3 + (end - 0.3) * share + rng.normal(0, 0.02), "entropy/mean": 1.2 - 0.8 * share,
                "kl/ref": 0.1 * share, "length/mean": 20 + 5 * share,
            }  # fmt: skip
            if step % 4 == 0:
                row["eval/addition/pass@1"] = 0.3 + (end - 0.3) * (1 - (1 - share) ** 2)
            curve.append(row)
        settings = {
            "curve": curve,
            "evaluation": {"addition": _records(rng, end, problems, samples)},
            "spent": {"generated_tokens": spent, "trained_tokens": 2 * spent, "gradient_steps": 1600, "seconds": 90.0,
                      "verifier_calls": 6400.0},
            "spent_by": {"rollout.single_turn": {"generated_tokens": spent}, "update.policy": {"gradient_steps": 1600}},
            "evaluation_spent": {"generated_tokens": 30_000, "seconds": 8.0},
            "manifest": MANIFEST,
            "contamination": {"exact": Overlap(0, problems, 1000)},
        } | more  # fmt: skip
        return RunRecord(arm, seed, **settings)

    return make


@pytest.fixture
def make_runs(make_run):
    """Make all runs of several arms: `{arm: rate}` at the given seeds."""

    def make(rates, seeds=(0, 1, 2), **more):
        return [make_run(arm, seed, rate, **more) for arm, rate in rates.items() for seed in seeds]

    return make


@pytest.fixture
def manifest():
    return MANIFEST
