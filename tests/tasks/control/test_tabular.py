"""Processes that are solved exactly: the solvers against each other and against play, the chain, the bandits."""

import math

import pytest
import torch

from gainstage.registry import RecipeError, build
from gainstage.tasks.control.tabular import backward_values, grid_process, policy_values, value_iteration


def dense(seed=0, states=6, actions=3):
    generator = torch.Generator().manual_seed(seed)
    moves = torch.rand(states, actions, states, generator=generator, dtype=torch.float64)
    rewards = torch.randn(states, actions, generator=generator, dtype=torch.float64)
    return moves / moves.sum(2, keepdim=True), rewards


def test_optimal_values_are_those_of_the_greedy_policy_and_no_policy_is_better():
    moves, rewards = dense()
    values = value_iteration(moves, rewards, 0.9)
    greedy = torch.nn.functional.one_hot(values.argmax(1), 3).double()
    assert torch.allclose(policy_values(moves, rewards, greedy, 0.9), values, atol=1e-9)
    for action in range(3):
        other = greedy.clone()
        other[2] = torch.nn.functional.one_hot(torch.tensor(action), 3).double()
        assert (policy_values(moves, rewards, other, 0.9) <= values + 1e-9).all()
    with pytest.raises(ValueError, match="no convergence"):
        value_iteration(moves, rewards, 1.0, rounds=50)


def test_one_state_by_hand():
    """Stay for 1 or leave for 3 with a discount of a half: staying is worth 2, leaving 3."""
    moves = torch.tensor([[[1.0], [0.0]]], dtype=torch.float64)
    rewards = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    assert value_iteration(moves, rewards, 0.5).tolist() == [pytest.approx([2.5, 3.0])]
    stay = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert policy_values(moves, rewards, stay, 0.5).tolist() == [pytest.approx([2.0, 3.0])]


def test_a_random_process_pays_what_its_values_say():
    task = build("task", "random_mdp", {"states": 6, "actions": 3, "horizon": 4, "good": 0.3, "seed": 4})
    assert torch.allclose(task.moves.sum(2), torch.ones(6, 3, dtype=torch.float64)) and task.final.sum() == 2
    uniform = torch.full((4, 6, 3), 1 / 3, dtype=torch.float64)
    best, _ = backward_values(task.moves, task.final, 4)
    for policy in (uniform, torch.nn.functional.one_hot(best.argmax(2), 3).double()):
        _, states = backward_values(task.moves, task.final, 4, policy)
        env = task.make(8000)
        obs = env.reset(range(8000))
        generator = torch.Generator().manual_seed(0)
        for step in range(4):
            assert torch.equal(obs // 6, torch.full_like(obs, step))
            chances = policy[step, obs % 6]
            got = env.step(torch.multinomial(chances, 1, generator=generator).squeeze(1))
            assert bool(got.terminated.all()) == (step == 3)
            obs = got.obs
        expected = float(states[0, 0])
        assert float(got.reward.mean()) == pytest.approx(expected, abs=4 * math.sqrt(expected / 8000))
        assert torch.equal(got.info["success"], got.reward == 1) and (obs == 0).all()
    assert float(backward_values(task.moves, task.final, 4)[1][0, 0]) > float(
        backward_values(task.moves, task.final, 4, uniform)[1][0, 0]
    )
    other = build("task", "random_mdp", {"states": 6, "actions": 3, "seed": 5})
    assert not torch.equal(other.moves, task.moves)


def test_the_chain_wants_to_go_left():
    task = build("task", "chain")
    for gamma in (0.5, 0.9, 0.99):
        values = value_iteration(task.moves, task.rewards, gamma)
        assert (values[:, 0] > values[:, 1]).all()
    spread = []
    for gamma in (0.99, 0.5):
        values = value_iteration(task.moves, task.rewards, gamma)
        gaps = values[:, 0] - values[:, 1]
        spread.append(float(gaps.max() / gaps.min()))
    assert spread[0] < 100 < 1e6 < spread[1]  # what one approximator would have to resolve


def test_the_chain_moves_as_its_table_says():
    task = build("task", "chain", {"length": 3})
    env = task.make(6000)
    env.reset(range(6000))
    for at in range(3):
        for action in range(2):
            env.set_state({"at": torch.full((6000,), at)})
            got = env.step(torch.full((6000,), action))
            stays = ~got.terminated
            seen = torch.bincount(got.next_obs[stays], minlength=3) / 6000
            assert (seen - task.moves[at, action]).abs().max() < 0.03
            assert float(got.reward.mean()) == pytest.approx(float(task.rewards[at, action]), abs=0.03)
    assert (env.observation() < 3).all() and (torch.bincount(env.reset(range(6000)), minlength=3) > 1800).all()


@pytest.mark.parametrize("width", [1, 2, 3])
def test_tiles(width):
    task = build("task", "chain", {"view": "tiles", "width": width})
    features = task.tiles
    assert features.shape == (50, width * (math.ceil(50 / width) + 1)) == (50, task.observation_space.shape[0])
    assert torch.allclose(features.square().sum(1), torch.ones(50))
    overlap = features @ features.T
    for distance in range(6):
        assert torch.allclose(overlap.diagonal(distance), torch.tensor(max(0.0, 1 - distance / width)))


def test_a_grid_as_a_process():
    task = build("task", "grid_world", {"map": "S.G", "slip": 0.4, "step_reward": -0.1, "view": "number"})
    moves, rewards = grid_process(task)
    assert moves[0, 2].tolist() == pytest.approx([0.4, 0.6, 0]) and rewards[0, 2] == pytest.approx(-0.1)
    assert moves[1, 2].tolist() == pytest.approx([0, 0.4, 0]) and rewards[1, 2] == pytest.approx(0.5)
    values = value_iteration(moves, rewards, 1.0)
    assert float(values[1, 2]) == pytest.approx(0.6 - 0.1 + 0.4 * float(values[1].max()))
    with pytest.raises(ValueError, match="eaten"):
        grid_process(build("task", "grid_world", {"map": "pellets"}))


# -- bandits -----------------------------------------------------------------------------------------------------------


def test_arms_pay_around_their_means():
    task = build("task", "bandit", {"means": (1.0, -2.0), "std": 0.5})
    env = task.make(4000)
    env.reset(range(4000))
    arm = torch.arange(4000) % 2
    got = env.step(arm)
    assert got.terminated.all() and got.info["regret"].tolist() == [0.0, 3.0] * 2000
    assert got.info["success"].tolist() == [True, False] * 2000
    for index, mean in enumerate((1.0, -2.0)):
        own = got.reward[arm == index]
        assert float(own.mean()) == pytest.approx(mean, abs=0.05) and float(own.std()) == pytest.approx(0.5, abs=0.04)


def test_arms_rest_and_tire():
    """Two arms by hand: rest pays up to the fourth round, a burst down to the third."""
    env = build("task", "switch_bandit").make(1)
    env.reset([0])
    paid, idle = [], []
    for action in (0, 0, 0, 0, 1, 2, 0, 1, 2, 2, 2, 2, 0, 1):
        got = env.step(torch.tensor([action]))
        paid.append(round(float(got.reward), 4))
        idle.append(bool(got.info["idle"]))
    # arm 1 rested for five rounds by its first turn; arm 0 for two by its second
    assert paid == [0.2, 0.1, 0.0, 0.0, 0.6, 0, 0.6, 0.5, 0, 0, 0, 0, 1.0, 0.6]
    assert idle == [action == 2 for action in (0, 0, 0, 0, 1, 2, 0, 1, 2, 2, 2, 2, 0, 1)]
    assert got.obs[0].tolist() == pytest.approx([0.25, 0, 0, 1 / 3])


def test_the_best_cycle_of_the_worked_instance():
    """Playing arm 0 once in four rounds and arm 1 in bursts between earns more than either alone."""
    env = build("task", "switch_bandit", {"max_steps": None}).make(1)
    env.reset([0])
    total = sum(float(env.step(torch.tensor([action])).reward) for action in [0, 1, 2, 1] * 100)
    alone = (0.25 + 0.2 + 0.1 * 398) / 400
    assert total / 400 > 0.35 > alone


def test_settings_are_checked():
    for name, settings, told in (
        ("random_mdp", {"horizon": 0}, "horizon"),
        ("random_mdp", {"good": 0}, "good"),
        ("chain", {"reversal": 0.5}, "reversal"),
        ("bandit", {"means": (1.0,)}, "at least 2 arms"),
        ("switch_bandit", {"tired": ((0.1,),)}, "a row for every arm"),
        ("switch_bandit", {"rested": ((0.1,), (0.1, 0.2))}, "same length"),
    ):
        with pytest.raises(RecipeError, match=told):
            build("task", name, settings)
