"""The benchmark of the verdicts itself: runs through the house's code, counts right, draws its pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def aa():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import aa

        yield aa
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def result(aa):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aa, "CHUNK", 6)
        patch.setattr(aa, "true_scores", lambda: {arm: 0.7 + 0.3 * (arm == "better") for arm in aa.ARMS})
        return aa.run(6, 1, Console(quiet=True))


def test_every_row_is_counted_and_shares_are_shares(aa, result):
    assert [(row["row"], row["seeds"]) for row in result["rows"]] == [(name, n) for name in aa.ROWS for n in aa.SEEDS]
    for row in result["rows"]:
        assert row["comparisons"] == (6 if row["row"] in aa.LOOKED_AT else 1)
        assert row["intervals"] == row["comparisons"] * (len(aa.ROWS[row["row"]]) - 1)
        assert all(0 <= row[key] <= 1 for key in ("coverage", "coverage of the bootstrap", "gain", "claim"))
        assert row["gain"] <= row["claim"] and sum(row["p"]) <= 1 + 1e-9
        assert row["width of the bootstrap"] < row["width"] or row["no interval"]
    missed = [row for row in result["rows"] if row["row"] == "A/B, planted effect"]
    assert all(row["coverage"] < 1 for row in missed[1:]), "a wrong truth is noticed"
    assert all(look["claims"] == sorted(look["claims"]) for look in result["looks"])


def test_arms_of_one_seed_share_what_runs_share(aa):
    import aa_bandit as bandit

    seeds = np.arange(300)
    a, b = (bandit.train(bandit.Method(), seeds, arm) for arm in (0, 1))
    assert not np.array_equal(a, b) and np.array_equal(a, bandit.train(bandit.Method(), seeds, 0))
    assert np.corrcoef(a.mean(1), b.mean(1))[0, 1] > 0.2, "starting weights and problems"
    assert a.mean() == pytest.approx(b.mean(), abs=0.01)
    assert a.mean() > bandit.train(bandit.Method(steps=0), seeds, 0).mean() + 0.2, "it learns"
    same = bandit.evaluate(a, seeds) == bandit.evaluate(a, seeds)
    assert same.all(), "evaluation noise belongs to the seed"


def test_the_pictures_are_drawn(aa, result):
    import aa_pictures as pictures

    for draw in (pictures.coverage, pictures.width, pictures.p_values, pictures.stopping):
        root = ElementTree.fromstring(draw(result))
        assert root.tag.endswith("svg") and len(list(root.iter())) > 20
