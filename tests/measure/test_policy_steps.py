"""Success conditioning beside policy gradients of the same size, from counts, and on returns above a threshold."""

from __future__ import annotations

import numpy as np
import pytest

from gainstage.measure.curves.policy_steps import chi_square, counted_policy, gradient_step, threshold_sweep
from gainstage.measure.curves.value_gaps import action_influence, success_condition, trust_region
from gainstage.tasks.control.tabular import RandomMDP, backward_values

PI, Q = [[0.5, 0.3, 0.2]], [[0.2, 0.6, 0.0]]


def test_the_size_of_success_conditioning_is_its_influence():
    assert chi_square(success_condition(PI, Q), PI)[0] == pytest.approx(0.632653, abs=1e-6)
    assert np.isinf(chi_square([[0.5, 0.5]], [[1.0, 0.0]])[0])


@pytest.mark.parametrize("natural", [False, True])
def test_a_gradient_step_of_that_size_gains_less_in_its_state(natural):
    rng = np.random.default_rng(0)
    pi, q = rng.dirichlet(np.ones(4), 50), rng.uniform(size=(50, 4))
    size = action_influence(pi, q).influence
    step = gradient_step(pi, q, size, natural)
    assert chi_square(step, pi) == pytest.approx(size, rel=1e-6)
    gain, best = ((part * q).sum(1) - (pi * q).sum(1) for part in (step, success_condition(pi, q)))
    assert (gain > 0).all() and (gain <= best + 1e-9).all()  # the closed form is the best of its size
    assert (best - gain).max() > 1e-3


def test_small_natural_steps_are_the_trust_region():
    step = gradient_step(PI, Q, 1e-6, natural=True)
    assert step[0] == pytest.approx(trust_region(PI, Q, 1e-6)[0], abs=1e-6)
    assert gradient_step(PI, Q, 0.0) == pytest.approx(np.array(PI))
    assert gradient_step(PI, [[0.4] * 3], 1.0) == pytest.approx(np.array(PI))  # nothing to climb
    assert gradient_step(PI, Q, 1e9)[0] == pytest.approx([0, 1, 0], abs=1e-6)  # no further than greedy
    with pytest.raises(ValueError, match="size"):
        gradient_step(PI, Q, -1.0)


def test_over_whole_processes_success_conditioning_gains_more():
    """Random processes from the uniform policy: one exact round against gradient steps of the same size everywhere."""
    better = 0
    for seed in range(20):
        task = RandomMDP(seed=seed)
        pi = np.full((task.horizon, task.states, task.actions), 1 / task.actions)
        q, _ = (part.numpy() for part in backward_values(task.moves, task.final, task.horizon, _torch(pi)))
        value = {}
        for name in ("success", "plain", "natural"):
            new = np.stack([
                success_condition(p, x) if name == "success"
                else gradient_step(p, x, action_influence(p, x).influence, name == "natural")
                for p, x in zip(pi, q, strict=True)
            ])  # fmt: skip
            value[name] = float(backward_values(task.moves, task.final, task.horizon, _torch(new))[1][0, 0])
        better += value["success"] >= max(value["plain"], value["natural"])
    assert better >= 15


def _torch(table):
    import torch

    return torch.from_numpy(np.asarray(table))


def test_counts_with_a_share_of_the_old_policy():
    assert counted_policy([[3, 1]], [[0.5, 0.5]])[0] == pytest.approx([0.7, 0.3])
    assert counted_policy([[0, 0]], [[0.2, 0.8]])[0] == pytest.approx([0.2, 0.8])
    assert counted_policy([[3, 1]], [[0.5, 0.5]], kappa=1e-9)[0] == pytest.approx([0.75, 0.25])
    for wrong in ({"kappa": 0.0}, {"pi": [[1.0]]}):
        with pytest.raises(ValueError):
            counted_policy(**({"successes": [[3, 1]], "pi": [[0.5, 0.5]]} | wrong))


def test_a_threshold_can_serve_another_goal():
    """a returns 1 or 0, b always .6: above .7 only a is left; the chance doubles and the mean falls."""
    (row,) = threshold_sweep([0.5, 0.5], [[0.0, 1.0], [0.6, 0.6]], 0.75)
    assert row["threshold"] == 1.0
    assert (row["reached"], row["reached_after"]) == (0.25, 0.5)
    assert (row["return"], row["return_after"]) == pytest.approx((0.55, 0.5))
    assert row["alignment"] == pytest.approx(-1)


def test_higher_thresholds_amplify_and_then_harm_where_tails_are_heavy():
    """Pareto returns: the arm with the heaviest tail has the lowest mean."""
    u = (np.arange(4000) + 0.5) / 4000
    arms = [scale * u ** (-1 / tail) for scale, tail in ((1.0, 40.0), (0.75, 8.0), (0.4, 2.1))]
    rows = threshold_sweep([1 / 3] * 3, np.array(arms), np.arange(10) / 10)
    gain = [row["return_after"] - row["return"] for row in rows]
    assert gain[0] == pytest.approx(0) and gain[1] < gain[3] < gain[5] and gain[-1] < 0
    assert rows[-1]["influence"] != rows[0]["influence"] == pytest.approx(0)
    assert all(row["reached_after"] >= row["reached"] - 1e-12 for row in rows)
    assert rows[5]["alignment"] > 0
