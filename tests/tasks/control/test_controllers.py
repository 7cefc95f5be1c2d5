"""Scripts: how well each does in its world, what a spoiled one loses, and what is kept."""

import pytest
import torch

from gainstage.registry import build
from gainstage.tasks.control.controllers import CoordinateWalk, Noisy, Waypoints, expert, shortest_ways
from gainstage.tasks.control.tabular import backward_values
from gainstage.types.spaces import MultiBinary


def play(task, controller, copies=40, steps=None):
    """Returns of first episodes, their lengths, and whether they ever succeeded."""
    env = task.make(copies)
    obs = env.reset(range(copies))
    controller.reset(torch.ones(copies, dtype=torch.bool))
    alive = torch.ones(copies, dtype=torch.bool)
    returns, lengths, success = torch.zeros(copies), torch.zeros(copies), torch.zeros(copies, dtype=torch.bool)
    for _ in range(steps or task.max_steps):
        got = env.step(controller.act(obs))
        returns, lengths = returns + got.reward * alive, lengths + alive
        success |= got.info.get("success", torch.zeros_like(alive)) & alive
        done = got.terminated | got.truncated
        alive &= ~done
        controller.reset(done)
        obs = got.obs
    return returns, lengths, success


@pytest.mark.parametrize(
    ("name", "settings", "least"),
    [
        ("cart_pole", {}, 500),
        ("pendulum", {}, -250),
        ("mountain_car", {}, -130),
        ("mountain_car_continuous", {}, 88),
        ("acrobot", {}, -100),
        ("reach", {}, -9),
    ],
)
def test_experts_reach_what_counts_as_solved(name, settings, least):
    task = build("task", name, settings)
    assert float(play(task, expert(task))[0].mean()) >= least


@pytest.mark.parametrize("control", ["velocity", "force"])
@pytest.mark.parametrize("name", ["open", "u_maze", "u_wall", "medium"])
def test_waypoints_lead_through_mazes(name, control):
    task = build("task", "point_maze", {"maze": name, "control": control, "max_steps": 250, "start": "drawn"})
    returns, lengths, success = play(task, Waypoints(task))
    assert success.all() and torch.equal(returns, 1 - lengths)


@pytest.mark.parametrize(
    ("name", "settings", "share"),
    [
        ("bit_flip", {"bits": 8}, 1.0),
        ("point_maze", {"maze": "spiral"}, 1.0),
        ("positioning", {"dims": 4}, 1.0),
        ("positioning", {"dims": 4, "distortion": "rotation"}, 1.0),
        ("positioning", {"view": "signal", "noise": 0.0, "max_steps": 80}, 0.9),
        ("grid_world", {"map": "u_maze"}, 1.0),
        ("grid_world", {"map": "slippery", "max_steps": 400}, 0.5),
    ],
)
def test_experts_get_there(name, settings, share):
    task = build("task", name, settings)
    _, _, success = play(task, expert(task), steps=task.max_steps or 8)
    assert float(success.float().mean()) >= share


def test_a_random_process_is_played_as_well_as_it_can_be():
    task = build("task", "random_mdp")
    best = float(backward_values(task.moves, task.final, task.horizon)[1][0, 0])
    success = play(task, expert(task), copies=2000, steps=8)[2].float().mean()
    assert float(success) == pytest.approx(best, abs=4 * (best / 2000) ** 0.5)


def test_the_coordinate_walk_takes_detours_and_goes_on_after_others():
    task = build("task", "positioning", {"max_steps": 80})
    walk = CoordinateWalk(task)
    _, lengths, success = play(task, walk, copies=100)
    assert success.float().mean() > 0.95
    assert lengths.mean() > 1.5 * play(task, expert(task), copies=100)[1].mean()
    # one axis at a time, and back at once when it got worse
    env = task.make(1)
    walk.reset(torch.ones(1, dtype=torch.bool))
    env.reset([0])
    obs = env.set_state({"place": torch.tensor([[1.2, 0.0]])})
    moves = []
    for _ in range(6):
        moves.append(walk.act(obs)[0].tolist())
        obs = env.step(torch.tensor([moves[-1]])).obs
    assert moves == [[1, 0], [-1, 0], [-1, 0], [-1, 0], [1, 0], [0, 1]]
    walk.resync(torch.ones(1, dtype=torch.bool))  # something else moved: nothing is concluded from the next reading
    assert walk.act(obs + 5)[0].tolist() == [0, 1]


def test_a_copy_walks_the_same_whoever_walks_beside_it():
    task = build("task", "positioning", {"dims": 3})
    env = task.make(6)
    obs = env.reset(range(6))
    many, one = CoordinateWalk(task), CoordinateWalk(task)
    for controller, size in ((many, 6), (one, 1)):
        controller.reset(torch.ones(size, dtype=torch.bool))
    for _ in range(60):
        action = many.act(obs)
        assert torch.equal(action[2:3], one.act(obs[2:3]))
        got = env.step(action)
        done = got.terminated | got.truncated
        many.reset(done), one.reset(done[2:3])
        obs = got.obs


def test_what_is_kept_goes_on():
    task = build("task", "positioning", {"view": "signal"})
    env = task.make(5)
    obs = env.reset(range(5))
    first = Noisy(CoordinateWalk(task), task.action_space, epsilon=0.2, std=0.1, seed=3)
    first.reset(torch.ones(5, dtype=torch.bool))
    for _ in range(12):
        obs = env.step(first.act(obs)).obs
    second = Noisy(CoordinateWalk(task), task.action_space, epsilon=0.2, std=0.1, seed=9)
    second.reset(torch.ones(5, dtype=torch.bool))
    second.load_state_dict(first.state_dict())
    for _ in range(12):
        action = first.act(obs)
        assert torch.equal(action, second.act(obs))
        obs = env.step(action).obs


def test_noise_makes_an_expert_medium():
    task = build("task", "pendulum")
    scores = []
    for epsilon, std in ((0.0, 0.0), (0.5, 0.0), (1.0, 0.0)):
        scores.append(float(play(task, Noisy(expert(task), task.action_space, epsilon, std))[0].mean()))
    assert scores[0] > scores[1] + 50 > scores[2] + 100
    assert scores[0] == float(play(task, expert(task))[0].mean())
    choice = build("task", "cart_pole")
    assert 15 < float(play(choice, Noisy(expert(choice), choice.action_space, 1.0))[0].mean()) < 35
    drawn = Noisy(expert(task), task.action_space, 0.0, 5.0).act(torch.tensor([[1.0, 0.0, 0.0]] * 50))
    assert drawn.abs().max() == 2 and drawn.std() > 1


def test_shortest_ways():
    onward = shortest_ways({0: [1], 1: [0, 2], 2: [1], 3: []}, 4)
    assert onward[2, :3].tolist() == [1, 2, 2] and onward[0, 2] == 1 and onward[0, 3] == 3


def test_wrong_use_says_what_is_wrong():
    with pytest.raises(ValueError, match="identity: has no scripted expert"):
        expert(build("task", "identity"))
    with pytest.raises(ValueError, match="does not tell the cell"):
        expert(build("task", "grid_world", {"view": "picture"}))
    task = build("task", "positioning")
    with pytest.raises(ValueError, match="axis_order"):
        CoordinateWalk(task, axis_order=(0, 0))
    with pytest.raises(ValueError, match="epsilon"):
        Noisy(expert(task), task.action_space, 2.0)
    with pytest.raises(ValueError, match="MultiBinary"):
        Noisy(expert(task), MultiBinary(3))
