"""The point in its maze: walls, goals, noise, and positioning with moves that add up."""

import math

import pytest
import torch
from tests.tasks.control import worlds

from gainstage.registry import RecipeError, build
from gainstage.tasks.control.batched_env import normal
from gainstage.tasks.control.point_maze import MARGIN, MAZES


def maze(copies=1, **settings):
    env = build("task", "point_maze", settings).make(copies)
    env.reset(range(copies))
    return env


def put(env, place, goal=(9.0, 9.0)):
    env.set_state({"place": torch.tensor([place] * env.size), "goal": torch.tensor([goal] * env.size)})


ROOM = "####/#..#/#..#/####"


def test_walls_stop_one_axis_and_let_the_other_slide():
    env = maze(maze=ROOM, step=0.6)
    put(env, (0.5, 0.5))
    got = env.step(torch.tensor([[1.0, -1.0]]))
    assert got.next_obs[0, :2].tolist() == pytest.approx([1 - MARGIN, -0.1], abs=1e-5)
    got = env.step(torch.tensor([[-5.0, -0.5]]))  # clipped to full speed
    assert got.next_obs[0, :2].tolist() == pytest.approx([0.4 - MARGIN, -0.4], abs=1e-5)


@pytest.mark.parametrize("control", ["velocity", "force"])
@pytest.mark.parametrize("name", MAZES)
def test_nobody_ever_stands_in_a_wall(name, control):
    env = maze(64, maze=name, control=control, start="drawn", goal="drawn", noise=0.5, step=0.9, force=40.0)
    for action in worlds.actions(env.task, 64, 60):
        got = env.step(action.sign())
        assert not env.wall[got.info["place"]].any()
        assert torch.equal(env.task.cell_of(got.next_obs[:, -4:-2]), got.info["place"])


def test_force_moves_by_the_speed_it_made():
    env = maze(maze="open", control="force", force=2.0, drag=0.5)
    put(env, (0.0, 0.0))
    got = env.step(torch.tensor([[1.0, 0.0]]))
    assert got.next_obs[0, :4].tolist() == pytest.approx([0.02, 0, 0.2, 0])
    got = env.step(torch.tensor([[0.0, -1.0]]))
    speed = 0.2 - 0.1 * 0.5 * 0.2
    assert got.next_obs[0, :4].tolist() == pytest.approx([0.02 + 0.1 * speed, -0.02, speed, -0.2])
    put(env, (2.45, 0.0))
    env.set_state({"speed": torch.tensor([[3.0, 1.0]])})
    got = env.step(torch.tensor([[1.0, 0.0]]))
    assert got.next_obs[0, 2:4].tolist() == pytest.approx([0.0, 0.95])  # the wall takes the speed along its axis


@pytest.mark.parametrize(("reward", "far", "near"), [("sparse", -1, 0), ("bonus", 0, 1), ("dense", -2, -0.25)])
def test_rewards(reward, far, near):
    env = maze(2, maze="open", reward=reward)
    env.set_state({"place": torch.zeros(2, 2), "goal": torch.tensor([[2.0, 0.0], [0.0, 0.25]])})
    got = env.step(torch.zeros(2, 2))
    assert got.reward.tolist() == [far, near] and got.terminated.tolist() == [False, True]
    assert got.info["distance"].tolist() == [2, 0.25] and got.info["success"].tolist() == [False, True]
    on = maze(1, maze="open", reward=reward, ends_on_success=False)
    put(on, (0.0, 0.0), (0.0, 0.25))
    assert not on.step(torch.zeros(1, 2)).terminated


def test_letters_say_where_it_starts_and_ends_and_what_costs():
    env = maze(200, maze="hazards")
    task = env.task
    assert set(task.cell_of(env.state["place"]).tolist()) == set(task.cells("S"))
    assert set(task.cell_of(env.state["goal"]).tolist()) == set(task.cells("G"))
    anywhere = maze(2000, maze="hazards", start="drawn", goal="drawn")
    assert set(task.cell_of(anywhere.state["place"]).tolist()) == set(task.cells(".SGH"))
    put(env, (0.0, 0.0))
    assert env.step(torch.zeros(200, 2)).info["cost"].sum() == 200
    put(env, (3.0, 3.0))
    assert env.step(torch.zeros(200, 2)).info["cost"].sum() == 0


def test_noise_has_the_spread_that_was_asked_for():
    env = maze(4000, maze="open", noise=0.2, step=0.5)
    put(env, (0.0, 0.0))
    moved = env.step(torch.full((4000, 2), 0.2)).next_obs[:, :2]
    assert moved.mean(0).tolist() == pytest.approx([0.1, 0.1], abs=0.01)
    assert moved.std(0).tolist() == pytest.approx([0.1, 0.1], abs=0.01)
    drawn = normal(torch.rand(20_000, 2, generator=torch.Generator().manual_seed(0)).clamp(min=1e-7))
    assert float(drawn.mean()) == pytest.approx(0, abs=0.03) and float(drawn.std()) == pytest.approx(1, abs=0.03)
    assert float((drawn.abs() > 1.959964).float().mean()) == pytest.approx(0.05, abs=0.01)


# -- positioning -------------------------------------------------------------------------------------------------------


def positioning(copies=1, **settings):
    env = build("task", "positioning", settings).make(copies)
    env.reset(range(copies))
    return env


def test_the_worked_walk():
    """From (4, 3) four moves left and three down: distances of the paper-sized example, then the target ends it."""
    env = positioning()
    env.set_state({"place": torch.tensor([[4.0, 3.0]])})
    rewards = []
    for move in [(-1.0, 0.0)] * 4 + [(0.0, -1.0)] * 3:
        got = env.step(torch.tensor([move]))
        rewards.append(float(got.reward))
        assert bool(got.terminated) == (len(rewards) == 7)
    assert rewards == pytest.approx([-4.242641, -3.605551, -3.162278, -3, -2, -1, 0], abs=1e-5)
    assert got.info["success"].all()


@pytest.mark.parametrize("distortion", ["none", "rotation", "scaling"])
def test_moves_add_up(distortion):
    """What five moves bring, their sum brings in one; a rotation keeps lengths."""
    settings = {"dims": 3, "distortion": distortion, "reach": 5.0, "tolerance": 1e-6}
    walk, jump = positioning(**settings), positioning(**settings)
    moves = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)) * 0.5
    start = walk.state["place"].clone()
    for move in moves:
        end = walk.step(move.unsqueeze(0)).next_obs
    jump.set_state({"place": start})
    assert torch.allclose(jump.step(moves.sum(0, keepdim=True)).next_obs, end, atol=1e-5)
    length = (end - start).norm() / moves.sum(0).norm()
    assert (length < 0.99) if distortion == "scaling" else (float(length) == pytest.approx(1, abs=1e-5))
    if distortion == "rotation":
        assert not torch.allclose(end - start, moves.sum(0, keepdim=True), atol=0.01)


def test_long_moves_are_shortened():
    env = positioning(reach=0.5)
    env.set_state({"place": torch.tensor([[2.0, 2.0]])})
    assert env.step(torch.tensor([[3.0, 4.0]])).next_obs[0].tolist() == pytest.approx([2.3, 2.4])


def test_the_signal_tells_distance_and_moves_only():
    env = positioning(500, view="signal", noise=0.1, history=2)
    assert env.task.observation_space.shape == (5,)
    before = env.state["place"].clone()
    first, second = torch.full((500, 2), 0.1), torch.full((500, 2), -0.2)
    env.step(first)
    got = env.step(second)
    distance = (before + first + second).norm(dim=1)
    error = got.next_obs[:, 0] + distance
    assert float(error.mean()) == pytest.approx(0, abs=0.02) and float(error.std()) == pytest.approx(0.1, abs=0.015)
    assert torch.equal(got.next_obs[:, 1:], torch.cat((second, first), dim=1))
    assert torch.allclose(got.reward, -distance, atol=1e-5)  # the reward has no noise


def test_settings_are_checked():
    for name, settings, told in (
        ("point_maze", {"maze": "###/#.#"}, "border"),
        ("point_maze", {"maze": "####/#.#/####"}, "same length"),
        ("point_maze", {"maze": "labyrinth"}, "presets: open"),
        ("point_maze", {"step": 1.0}, "step"),
        ("point_maze", {"tolerance": 0}, "tolerance"),
        ("point_maze", {"max_speed": 10.0}, "max_speed"),
        ("positioning", {"dims": 0}, "dims"),
        ("positioning", {"reach": 0}, "reach"),
    ):
        with pytest.raises(RecipeError, match=told):
            build("task", name, settings)
    assert math.isinf(float(build("task", "positioning").observation_space.high[0]))
