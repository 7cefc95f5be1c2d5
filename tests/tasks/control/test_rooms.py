"""Rooms: MiniGrid's rules step by step, plans that can be solved, and what the views tell."""

from collections import deque

import gymnasium
import numpy as np
import pytest
import torch

from gainstage.registry import RecipeError, build
from gainstage.tasks.control.room_layouts import BALL, DOOR, EMPTY, GOAL, GREY, KEY, LOCKED, STEPS, WALL
from gainstage.tasks.control.rooms import EDGE, NOTHING, code

PLANS = {
    "multi_room": {"rooms": 3, "layouts": 40},
    "key_corridor": {"rows": 3, "layouts": 40},
    "door_key": {"layouts": 40},
    "four_rooms": {"layouts": 40, "size": 11},
}
TWINS = [
    ("multi_room", {"rooms": 4, "room_size": 5, "size": 25}, "MiniGrid-MultiRoom-N4-S5-v1"),
    ("key_corridor", {"room_size": 3, "rows": 3}, "MiniGrid-KeyCorridorS3R3-v0"),
    ("door_key", {"size": 6}, "MiniGrid-DoorKey-6x6-v0"),
]


def from_minigrid(world, env):
    """The state of our world that stands for a MiniGrid's: two copies of it."""
    cells = env.grid.encode().transpose(1, 0, 2).astype(np.int64)
    codes = np.pad(code(cells[..., 0], cells[..., 1], cells[..., 2]), EDGE, constant_values=code(WALL, GREY))
    assert codes.size == world.state["cells"].shape[1]
    x, y = (int(number) for number in env.agent_pos)
    return {
        "cells": torch.from_numpy(codes.reshape(1, -1)).repeat(2, 1),
        "place": torch.tensor([(y + EDGE) * world.pitch + x + EDGE] * 2),
        "direction": torch.tensor([int(env.agent_dir)] * 2),
        "carried": torch.tensor([NOTHING] * 2),
    }


def towards(env, rng):
    """Actions that get about: mostly forward, what is useful in front of a door or a key most of the time."""
    front = env.grid.get(*env.front_pos)
    if front is not None and front.type in ("door", "key", "ball") and rng.random() < 0.6:
        return {"door": 5, "key": 3, "ball": 3}[front.type]
    return int(rng.choice([0, 1, 2, 2, 2, 3, 4, 5, 6]))


@pytest.mark.parametrize(("name", "settings", "twin"), TWINS, ids=[name for name, _, _ in TWINS])
def test_steps_equal_minigrids(name, settings, twin):
    pytest.importorskip("minigrid")
    theirs = gymnasium.make(twin).unwrapped
    task = build("task", name, {**settings, "layouts": 2})
    assert task.max_steps == theirs.max_steps
    world = task.make(2)
    rng = np.random.default_rng(0)
    seen = {"opened": 0, "picked": 0}
    for seed in range(8):
        obs, _ = theirs.reset(seed=seed)
        world.reset([0, 1])
        np.testing.assert_array_equal(world.set_state(from_minigrid(world, theirs))[1].numpy(), obs["image"])
        for _ in range(min(task.max_steps, 120)):
            action = towards(theirs, rng)
            got = world.step(torch.tensor([action] * 2))
            obs, reward, terminated, truncated, _ = theirs.step(action)
            np.testing.assert_array_equal(got.next_obs[1].numpy(), obs["image"])
            assert float(got.reward[1]) == pytest.approx(float(reward), abs=1e-6)
            assert (bool(got.terminated[1]), bool(got.truncated[1])) == (terminated, truncated)
            for key in seen:
                seen[key] += int(got.info[key][1])
            if terminated or truncated:
                break
            carried = theirs.carrying is not None
            assert bool(got.info["carrying"][1]) == carried
            x, y = (int(number) for number in theirs.agent_pos)
            assert int(got.info["place"][1]) == y * world.width + x
    assert seen["opened"] > 0 and (name == "multi_room" or seen["picked"] > 0)

    theirs.reset(seed=99), world.reset([0, 1])
    kind = "ball" if name == "key_corridor" else "goal"
    i, j = next((i, j) for i in range(theirs.width) for j in range(theirs.height) if _is(theirs.grid.get(i, j), kind))
    theirs.agent_pos, theirs.agent_dir = (i - 1, j), 0
    world.set_state(from_minigrid(world, theirs))
    action = 3 if kind == "ball" else 2
    got, (obs, reward, terminated, _, _) = world.step(torch.tensor([action] * 2)), theirs.step(action)
    np.testing.assert_array_equal(got.next_obs[1].numpy(), obs["image"])
    assert terminated and got.terminated[1] and got.info["success"][1]
    assert float(got.reward[1]) == pytest.approx(float(reward), abs=1e-6) and reward > 0.9


def _is(cell, kind):
    return cell is not None and cell.type == kind


def reachable(plan, with_key):
    """Cells that can be walked to; doors open, locked ones only with the key."""
    seen, queue = {plan.start}, deque([plan.start])
    while queue:
        x, y = queue.popleft()
        for dx, dy in STEPS:
            cell = (x + dx, y + dy)
            kind, _, state = plan.cells[cell[1], cell[0]]
            if cell in seen or kind == WALL or (kind == DOOR and state == LOCKED and not with_key):
                continue
            seen.add(cell)
            queue.append(cell)
    return seen


def places(plan, kind):
    ys, xs = np.nonzero(plan.cells[..., 0] == kind)
    return [(int(x), int(y)) for x, y in zip(xs, ys, strict=True)]


@pytest.mark.parametrize("name", PLANS)
def test_plans_can_be_solved_and_differ(name):
    task = build("task", name, PLANS[name])
    for plan in task.plans:
        assert plan.cells[plan.start[1], plan.start[0], 0] == EMPTY
        border = np.concatenate((plan.cells[[0, -1]].reshape(-1, 3), plan.cells[:, [0, -1]].reshape(-1, 3)))
        inside = reachable(plan, with_key=True)
        assert set(border[:, 0].tolist()) <= {EMPTY, WALL} and all(
            0 < x < plan.cells.shape[1] - 1 and 0 < y < plan.cells.shape[0] - 1 for x, y in inside
        )
        (prize,) = places(plan, BALL if name == "key_corridor" else GOAL)
        assert prize in inside
        if name in ("key_corridor", "door_key"):
            (key,) = places(plan, KEY)
            early = reachable(plan, with_key=False)
            assert key in early and prize not in early
            (locked,) = [door for door in plan.doors if plan.cells[door[1], door[0], 2] == LOCKED]
            assert plan.cells[locked[1], locked[0], 1] == plan.cells[key[1], key[0], 1]  # of one colour
        if name == "multi_room":
            assert len(plan.doors) == 2 and plan.rooms[prize[1], prize[0]] == 2
            assert plan.rooms[plan.start[1], plan.start[0]] == 0
            colours = [plan.cells[y, x, 1] for x, y in plan.doors]
            assert colours[0] != colours[1]
    assert len({plan.cells.tobytes() for plan in task.plans}) > 20
    again = build("task", name, PLANS[name]).plans
    assert all(np.array_equal(a.cells, b.cells) for a, b in zip(task.plans, again, strict=True))
    other = build("task", name, {**PLANS[name], "seed": 1}).plans
    assert not all(np.array_equal(a.cells, b.cells) for a, b in zip(task.plans, other, strict=True))


def test_key_door_ball_by_hand():
    """The whole quest in the smallest corridor: take the key, open the lock, drop the key, take the ball."""
    task = build("task", "key_corridor", {"layouts": 1, "seed": 3})
    plan, env = task.plans[0], task.make(1)
    env.reset([0])
    env.set_state({"direction": torch.tensor([2])})  # the rooms are one cell: key on the left, ball on the right
    assert plan.start == (3, 1)
    facts = []
    for action in (5, 2, 3, 0, 0, 2, 5, 4, 0, 0):
        got = env.step(torch.tensor([action]))
        facts.append((bool(got.info["opened"]), bool(got.info["picked"]), bool(got.info["carrying"])))
    assert facts[0][0] and facts[2] == (False, True, True)  # the left door, then the key
    assert facts[6][0] and facts[7][2]  # the lock; an open door is no place for a key
    for action in (4, 2, 4, 0, 0, 2, 2):  # the left door is none either, the cell of the key is
        got = env.step(torch.tensor([action]))
    assert not got.info["carrying"][0]
    got = env.step(torch.tensor([3]))
    assert got.info["success"][0] and got.terminated[0] and got.info["picked"][0]
    assert float(got.reward) == pytest.approx(1 - 0.9 * 18 / 270)


def test_ones_say_what_the_picture_says():
    settings = {"rows": 2, "layouts": 20}
    picture = build("task", "key_corridor", settings).make(50)
    ones = build("task", "key_corridor", {**settings, "view": "ones"}).make(50)
    seen, flat = picture.reset(range(50)), ones.reset(range(50))
    table = flat.reshape(50, 7, 7, 20)
    assert torch.equal(table.sum(3), torch.full((50, 7, 7), 3.0))
    for channel, (low, high) in enumerate(((0, 11), (11, 17), (17, 20))):
        assert torch.equal(table[..., low:high].argmax(3), seen[..., channel].long())


def test_four_rooms_shows_cell_and_direction():
    task = build("task", "four_rooms")
    env = task.make(2)
    obs = env.reset([0, 1])
    assert obs.nonzero()[:, 1].tolist() == [20, 361] * 2  # cell (1, 1), facing right
    for action in (2, 2, 1, 2):
        got = env.step(torch.tensor([action] * 2))
    assert got.obs[0].nonzero()[:, 0].tolist() == [2 * 19 + 3, 361 + 1] and got.info["place"].tolist() == [41, 41]
    env.set_state({"place": torch.tensor([(17 + EDGE) * env.pitch + 16 + EDGE] * 2), "direction": torch.tensor([0, 3])})
    got = env.step(torch.tensor([2, 2]))
    assert got.info["success"].tolist() == [True, False] and got.reward.tolist() == [1, 0]
    assert got.info["room"].tolist() == [3, 3]


def test_a_picture_for_people():
    env = build("task", "door_key", {"layouts": 1}).make(2)
    env.reset([0, 1])
    shown = env.render(0)
    assert shown.shape == (96, 96, 3) and shown.dtype == np.uint8
    tiles = shown.reshape(6, 16, 6, 16, 3).transpose(0, 2, 1, 3, 4)
    x, y = env.task.plans[0].start
    assert (tiles[y, x] == (40, 110, 220)).all(-1).any() and (tiles[0, 0] == (110, 110, 110)).all()
    assert (tiles[4, 4] == (60, 160, 90)).all()
    others = [(tiles[j, i] == (40, 110, 220)).all(-1).any() for j in range(6) for i in range(6) if (i, j) != (x, y)]
    assert not any(others)


def test_settings_are_checked():
    for name, settings, told in (
        ("multi_room", {"room_size": 3}, "room_size"),
        ("multi_room", {"size": 4}, "size"),
        ("key_corridor", {"rows": 0}, "rows"),
        ("door_key", {"size": 4}, "size"),
        ("four_rooms", {"size": 10}, "odd"),
        ("door_key", {"layouts": 0}, "layouts"),
    ):
        with pytest.raises(RecipeError, match=told):
            build("task", name, settings)
    with pytest.raises(ValueError, match="do not fit a grid of 8; raise size"):
        build("task", "multi_room", {"rooms": 9, "size": 8}).make(1)
