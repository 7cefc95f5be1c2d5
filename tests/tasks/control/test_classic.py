"""Classic control against Gymnasium: one step from the same state, many random states and actions."""

import math

import gymnasium
import numpy as np
import pytest
import torch

from gainstage.registry import RecipeError, build

TWINS = {
    "cart_pole": "CartPole-v1",
    "pendulum": "Pendulum-v1",
    "mountain_car": "MountainCar-v0",
    "mountain_car_continuous": "MountainCarContinuous-v0",
    "acrobot": "Acrobot-v1",
}
SPREAD = {
    "cart_pole": torch.tensor([2.6, 3.0, 0.25, 3.0]),
    "pendulum": torch.tensor([12.0, 8.0]),
    "mountain_car": torch.tensor([1.0, 0.07]),
    "mountain_car_continuous": torch.tensor([1.0, 0.07]),
    "acrobot": torch.tensor([math.pi, math.pi, 4 * math.pi, 9 * math.pi]),
}
"""Random states are drawn in +- these, which covers every bound and every end."""
COPIES = 600


def states(name):
    generator = torch.Generator().manual_seed(1)
    motion = (torch.rand(COPIES, len(SPREAD[name]), generator=generator) * 2 - 1) * SPREAD[name]
    if name.startswith("mountain"):
        motion[:, 0] -= 0.3  # positions -1.3 .. 0.7, pulled back into the valley
        motion[:, 0].clamp_(-1.2, 0.6)
    return motion


def drawn_actions(space):
    generator = torch.Generator().manual_seed(2)
    if hasattr(space, "n"):
        return torch.randint(space.n, (COPIES,), generator=generator)
    return torch.randn(COPIES, *space.shape, generator=generator) * 2  # beyond the bounds as well


@pytest.mark.parametrize("name", TWINS)
def test_a_step_equals_gymnasiums(name):
    task = build("task", name)
    env = task.make(COPIES)
    env.reset(range(COPIES))
    motion, action = states(name), drawn_actions(task.action_space)
    seen = env.set_state({"motion": motion})
    got = env.step(action)
    twin = gymnasium.make(TWINS[name]).unwrapped
    twin.reset(seed=0)
    high = task.observation_space.high.numpy()
    scale = np.where(np.isfinite(high), np.maximum(high, 1), 1)  # speeds of the acrobot reach 28
    ends = 0
    for i in range(COPIES):
        twin.state = motion[i].double().numpy()
        if name == "cart_pole":
            twin.steps_beyond_terminated = None
        move = int(action[i]) if action.dtype == torch.int64 else action[i].numpy()
        obs, reward, terminated, _, _ = twin.step(move)
        assert (np.abs(got.next_obs[i].double().numpy() - obs) <= 1e-5 * scale).all()
        assert float(got.reward[i]) == pytest.approx(float(reward), rel=1e-5, abs=1e-5)
        assert bool(got.terminated[i]) == terminated
        ends += terminated
    if name != "pendulum":
        assert 0.02 * COPIES < ends < 0.98 * COPIES  # both outcomes were seen
    assert seen.shape == got.obs.shape


@pytest.mark.parametrize("name", TWINS)
def test_a_whole_episode_equals_gymnasiums(name):
    """Rounding grows along an episode, so only its first 40 steps are held against each other, to 1e-3."""
    task = build("task", name)
    env = task.make(1)
    env.reset([5])
    twin = gymnasium.make(TWINS[name])
    twin.reset(seed=0)
    twin.unwrapped.state = env.state["motion"][0].double().numpy()
    generator = torch.Generator().manual_seed(3)
    for _ in range(40):
        if hasattr(task.action_space, "n"):
            action = torch.randint(task.action_space.n, (1,), generator=generator)
            obs, reward, terminated, _, _ = twin.step(int(action))
        else:
            action = torch.rand(1, 1, generator=generator) * 2 - 1
            obs, reward, terminated, _, _ = twin.step(action[0].numpy())
        got = env.step(action)
        np.testing.assert_allclose(got.next_obs[0].numpy(), obs, atol=1e-3)
        assert float(got.reward[0]) == pytest.approx(float(reward), abs=2e-3)
        assert bool(got.terminated[0]) == terminated
        if terminated:
            break


@pytest.mark.parametrize("name", TWINS)
def test_spaces_and_limit_are_gymnasiums(name):
    task, twin = build("task", name), gymnasium.make(TWINS[name])
    assert task.max_steps == twin.spec.max_episode_steps
    np.testing.assert_array_equal(task.observation_space.low.numpy(), twin.observation_space.low)
    np.testing.assert_array_equal(task.observation_space.high.numpy(), twin.observation_space.high)
    if hasattr(task.action_space, "n"):
        assert task.action_space.n == twin.action_space.n
    else:
        np.testing.assert_array_equal(task.action_space.low.numpy(), twin.action_space.low)
        np.testing.assert_array_equal(task.action_space.high.numpy(), twin.action_space.high)


@pytest.mark.parametrize("name", TWINS)
def test_starts_are_distributed_as_gymnasiums(name):
    """Bounds and the first two moments of 4,000 starts of either."""
    ours = build("task", name).make(4000).reset(range(4000)).double().numpy()
    twin = gymnasium.make(TWINS[name])
    theirs = np.stack([twin.reset(seed=seed)[0] for seed in range(1000)]).astype(np.float64)
    scale = np.maximum(theirs.std(0), 1e-9)
    assert np.abs((ours.mean(0) - theirs.mean(0)) / scale).max() < 4 * math.sqrt(1 / 4000 + 1 / 1000)
    assert np.allclose(ours.std(0), theirs.std(0), rtol=0.08, atol=1e-6)
    assert (np.abs(ours).max(0) <= np.abs(theirs).max(0) + 0.05 * scale + 1e-6).all()
    if name == "cart_pole":  # independent coordinates
        assert np.abs(np.corrcoef(ours.T) - np.eye(4)).max() < 0.07


def test_parameters_change_the_motion():
    for name, settings in (
        ("cart_pole", {"length": 1.0}),
        ("cart_pole", {"force": 5.0}),
        ("pendulum", {"mass": 2.0}),
        ("mountain_car", {"force": 0.002}),
        ("mountain_car_continuous", {"power": 0.003}),
        ("acrobot", {"mass_2": 2.0}),
    ):
        plain, other = build("task", name).make(1), build("task", name, settings).make(1)
        assert torch.equal(plain.reset([1]), other.reset([1]))
        action = torch.zeros(1, dtype=torch.int64) if hasattr(plain.action_space, "n") else torch.ones(1, 1)
        assert not torch.equal(plain.step(action).next_obs, other.step(action).next_obs)


def test_parameters_reach_gymnasiums_equations():
    """Heavier and longer: still the same equations, with the settings in the right places."""
    settings = {"gravity": 5.0, "mass_cart": 2.0, "mass_pole": 0.4, "length": 0.8, "force": 7.0, "tau": 0.05}
    env = build("task", "cart_pole", settings).make(1)
    twin = gymnasium.make("CartPole-v1").unwrapped
    twin.gravity, twin.masscart, twin.masspole, twin.length, twin.force_mag, twin.tau = settings.values()
    twin.total_mass, twin.polemass_length = twin.masspole + twin.masscart, twin.masspole * twin.length
    env.reset([3]), twin.reset(seed=0)
    twin.state = env.state["motion"][0].double().numpy()
    for action in (1, 1, 0):
        obs = twin.step(action)[0]
        np.testing.assert_allclose(env.step(torch.tensor([action])).next_obs[0].numpy(), obs, atol=1e-5)
    settings = {"mass_1": 1.5, "mass_2": 0.7, "length_1": 1.3, "torque": 2.0}
    env = build("task", "acrobot", settings).make(1)
    twin = gymnasium.make("Acrobot-v1").unwrapped
    twin.LINK_MASS_1, twin.LINK_MASS_2, twin.LINK_LENGTH_1 = 1.5, 0.7, 1.3
    twin.LINK_COM_POS_1 = twin.LINK_COM_POS_2 = 0.65
    twin.AVAIL_TORQUE = [-2.0, 0.0, 2.0]
    env.reset([3]), twin.reset(seed=0)
    twin.state = env.state["motion"][0].double().numpy()
    for action in (2, 2, 0):
        obs = twin.step(action)[0]
        np.testing.assert_allclose(env.step(torch.tensor([action])).next_obs[0].numpy(), obs, atol=1e-5)
    env = build("task", "pendulum", {"gravity": 4.0, "mass": 1.7, "length": 0.6}).make(1)
    twin = gymnasium.make("Pendulum-v1", g=4.0).unwrapped
    twin.m, twin.l = 1.7, 0.6
    env.reset([3]), twin.reset(seed=0)
    twin.state = env.state["motion"][0].double().numpy()
    obs = twin.step(np.array([1.2]))[0]
    np.testing.assert_allclose(env.step(torch.tensor([[1.2]])).next_obs[0].numpy(), obs, atol=1e-5)


def test_the_car_stops_at_the_wall_and_pays_for_the_flag():
    env = build("task", "mountain_car_continuous").make(2)
    env.reset([0, 1])
    env.set_state({"motion": torch.tensor([[-1.19, -0.07], [0.44, 0.06]])})
    got = env.step(torch.tensor([[0.0], [2.0]]))
    assert got.next_obs[0].tolist() == pytest.approx([-1.2, 0.0])
    assert got.terminated.tolist() == [False, True] and got.info["success"].tolist() == [False, True]
    assert got.reward.tolist() == pytest.approx([0.0, 100 - 0.4])
    free = build("task", "mountain_car_continuous", {"action_cost": 0}).make(1)
    free.reset([0])
    assert float(free.step(torch.ones(1, 1)).reward) == 0


@pytest.mark.parametrize(("name", "setting"), [("cart_pole", "length"), ("pendulum", "mass"), ("acrobot", "mass_1")])
def test_impossible_bodies_are_refused(name, setting):
    with pytest.raises(RecipeError, match=f"{setting} must be above 0, got 0"):
        build("task", name, {setting: 0})
