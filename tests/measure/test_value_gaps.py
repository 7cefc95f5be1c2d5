"""Success conditioning: exact operator, identity, estimators."""

import numpy as np
import pytest

from gainstage.measure.curves.value_gaps import (
    action_gaps,
    action_influence,
    alignment,
    estimated_influence,
    log_gaps,
    predicted_gain,
    success_condition,
    trust_region,
)

PI, Q = [[0.5, 0.3, 0.2]], [[0.2, 0.6, 0.0]]


def test_one_state():
    assert success_condition(PI, Q)[0] == pytest.approx([0.357143, 0.642857, 0], abs=1e-6)
    found = action_influence(PI, Q)
    assert found.influence[0] == pytest.approx(0.632653, abs=1e-6) and found.identity_error < 1e-12
    assert (success_condition(PI, Q) @ np.array(Q[0]))[0] == pytest.approx(0.457143, abs=1e-6)


def test_two_steps():
    """s0 leads to s1 or s2; conditioning both states gains more than one step of it."""
    below = success_condition([[0.5, 0.5]], [[0.9, 0.1]])[0]
    assert below == pytest.approx([0.9, 0.1])
    above = success_condition([[0.5, 0.5]], [[0.5, 0.2]])[0]
    assert above == pytest.approx([0.714286, 0.285714], abs=1e-6)
    assert above @ [0.5, 0.2] == pytest.approx(0.414286, abs=1e-6)
    assert above @ [below @ [0.9, 0.1], 0.2] == pytest.approx(0.642857, abs=1e-6)


def test_without_influence_nothing_moves():
    same = success_condition(PI, [[0.4, 0.4, 0.4]])
    assert same == pytest.approx(np.array(PI)) and action_influence(PI, [[0.4] * 3]).influence[0] == pytest.approx(0)
    assert success_condition(PI, [[0.0] * 3]) == pytest.approx(np.array(PI)), "no success: the policy stays"
    assert action_influence(PI, [[0.0] * 3]).influence[0] == 0


def mdp(rng, states=20, actions=4, horizon=8):
    """Random transitions, success = last state in a goal set; exact Q of a policy by backward induction."""
    moves = rng.dirichlet(np.full(states, 0.3), size=(states, actions))
    goal = (rng.permutation(states) < 3).astype(float)

    def values(policy):
        v, qs = goal, []
        for step in reversed(range(horizon)):
            q = moves @ v
            qs.insert(0, q)
            v = (policy[step] * q).sum(-1)
        return qs, v

    return values, np.full((horizon, states, actions), 1 / actions)


def test_the_identity_holds_and_success_never_falls_over_five_rounds():
    for seed in range(50):
        values, policy = mdp(np.random.default_rng(seed))
        for _ in range(5):
            qs, v = values(policy)
            assert max(action_influence(p, q).identity_error for p, q in zip(policy, qs, strict=True)) < 1e-10
            policy = np.stack([success_condition(p, q) for p, q in zip(policy, qs, strict=True)])
            assert (values(policy)[1] >= v - 1e-12).all()


def test_the_trust_region_of_that_size_is_the_same_policy():
    size = action_influence(PI, Q).influence[0]
    assert trust_region(PI, Q, size) == pytest.approx(success_condition(PI, Q))
    rng = np.random.default_rng(0)
    best = trust_region(PI, Q, 0.2)[0]
    assert ((best - PI[0]) ** 2 / PI[0]).sum() == pytest.approx(0.2) and best.sum() == pytest.approx(1)
    for _ in range(200):  # no other policy that near is better
        other = rng.dirichlet(np.ones(3))
        if ((other - PI[0]) ** 2 / PI[0]).sum() <= 0.2:
            assert other @ np.array(Q[0]) <= best @ np.array(Q[0]) + 1e-12
    with pytest.raises(ValueError, match="simplex"):
        trust_region(PI, Q, 10.0)


def test_estimates_are_nearly_unbiased_and_few_successes_give_none():
    rng = np.random.default_rng(0)
    pi, q = np.array(PI[0]), np.array(Q[0])
    truth = action_influence(PI, Q).influence[0]
    found, naive = [], []
    for _ in range(600):
        seen = rng.multinomial(150, pi)
        won = rng.binomial(seen, q)
        found.append(estimated_influence([won], [seen])[0])
        p, v = seen / 150, won.sum() / 150
        naive.append(float((p * (np.divide(won, seen, out=np.full(3, v), where=seen > 0) / v - 1) ** 2).sum()))
    assert np.mean(found) == pytest.approx(truth, abs=0.05)
    assert abs(np.mean(found) - truth) < abs(np.mean(naive) - truth)
    assert np.isnan(estimated_influence([[5, 4]], [[50, 50]])[0])
    assert estimated_influence([[20, 0]], [[40, 0]])[0] == pytest.approx(-0.5 * 0.5 / (40 * 0.25)), "untried: no gain"
    with pytest.raises(ValueError, match="successes"):
        estimated_influence([[3]], [[2]])


def test_predicted_gain_is_summed_along_successful_episodes():
    assert predicted_gain([[0, 1], [0, 2]], [0.5, 0.25, np.nan]) == pytest.approx((0.75 + 0.5) / 2)
    with pytest.raises(ValueError, match="3 / N"):
        predicted_gain([], [0.5])


def test_a_threshold_can_serve_another_goal():
    """a returns 1 or 0, b always .6; above .7 only a is imitated, and the mean return falls."""
    reached, returns = [[0.5, 0.0]], [[0.5, 0.6]]
    plus = success_condition([[0.5, 0.5]], reached)[0]
    assert plus == pytest.approx([1, 0]) and plus @ np.array(returns[0]) == 0.5 < 0.55
    assert alignment([[0.5, 0.5]], reached, returns)[0] == pytest.approx(-1)
    assert alignment([[0.5, 0.5]], reached, [[0.6, 0.5]])[0] == pytest.approx(1)
    assert alignment([[0.5, 0.5]], reached, [[0.5, 0.5]])[0] == 0


def test_action_gaps():
    assert action_gaps([[1.0, 3.0, 2.5], [2.0, 2.0, 0.0]]) == pytest.approx([0.5, 0.0])
    with pytest.raises(ValueError, match="two actions"):
        action_gaps([[1.0]])


@pytest.mark.parametrize(("pi", "q"), [([[0.5, 0.4]], [[0, 1]]), ([[0.5, 0.5]], [[0, 2]]), ([[1.0]], [[0.5, 0.5]])])
def test_what_is_no_policy_or_no_probability_is_refused(pi, q):
    with pytest.raises(ValueError):
        success_condition(pi, q)


def test_log_gaps_tell_the_same_everywhere_on_a_way_to_one_reward():
    """Values gamma^D and gamma^(D + 2): the gap shrinks by orders of magnitude, its logarithm stays."""
    gamma, distance = 0.5, np.array([1, 10, 100])
    q = np.stack((gamma ** (distance + 2), gamma**distance), 1)
    assert action_gaps(q) == pytest.approx([0.375, 0.000732422, 0.75 * 0.5**100], rel=1e-5)
    assert log_gaps(q) == pytest.approx([1.386294] * 3, abs=1e-6)
    with pytest.raises(ValueError, match="positive"):
        log_gaps([[1.0, 0.0]])
