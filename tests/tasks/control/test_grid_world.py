"""Grids: Gymnasium's frozen lake move by move, things eaten once, and views that tell the same."""

import gymnasium
import pytest
import torch

from gainstage.registry import RecipeError, build
from gainstage.types.spaces import contains

LEFT, DOWN, RIGHT, UP = range(4)


def world(copies=1, **settings):
    env = build("task", "grid_world", settings).make(copies)
    env.reset(range(copies))
    return env


def walk(env, *moves):
    return [env.step(torch.full((env.size,), move)) for move in moves]


@pytest.mark.parametrize("slippery", [False, True])
def test_transitions_are_those_of_the_frozen_lake(slippery):
    """Every cell and move, many times: where they lead and how often, what they pay, where they end."""
    lake = gymnasium.make("FrozenLake-v1", map_name="4x4", is_slippery=slippery).unwrapped
    letters = "/".join("".join(c.decode() for c in row) for row in lake.desc).replace("F", ".").replace("H", "x")
    copies = 2000 if slippery else 2
    env = world(copies, map=letters, rewards={"G": 1.0}, ends="Gx", slip=2 / 3 * slippery, view="number")
    for cell in range(16):
        if letters.replace("/", "")[cell] in "xG":
            continue
        for move in range(4):
            env.set_state({"cell": torch.full((copies,), cell)})
            got = env.step(torch.full((copies,), move))
            expected = torch.zeros(16)
            for chance, to, reward, end in lake.P[cell][move]:
                expected[to] += chance
                there = got.next_obs == to
                assert (got.reward[there] == reward).all() and (got.terminated[there] == end).all()
            seen = torch.bincount(got.next_obs, minlength=16) / copies
            assert (seen - expected).abs().max() < (0.05 if slippery else 1e-6)


def test_walls_and_borders_hold():
    env = world(map="S#./.../..G", view="place")
    steps = walk(env, LEFT, UP, RIGHT, DOWN, RIGHT, RIGHT, RIGHT, UP)
    places = [tuple((2 * step.next_obs[0]).tolist()) for step in steps]
    assert places == [(0, 0), (0, 0), (0, 0), (0, 1), (1, 1), (2, 1), (2, 1), (2, 0)]
    (got,) = walk(env, DOWN)
    assert not got.terminated and not got.info["success"]
    (got,) = walk(env, DOWN)
    assert got.terminated and got.info["success"] and float(got.reward) == 1 and got.obs[0].tolist() == [0, 0]


def test_things_are_eaten_once_and_come_back():
    env = world(map="So*/.Gx", step_reward=-0.01, rewards={"o": 0.1, "*": 50, "x": -5})
    first = env.observation()
    steps = walk(env, RIGHT, RIGHT, LEFT, RIGHT, DOWN)
    assert [round(float(step.reward), 2) for step in steps] == [0.09, 49.99, -0.01, -0.01, -5.01]
    assert [bool(step.info["eaten"]) for step in steps] == [True, True, False, False, False]
    assert [bool(step.info["trapped"]) for step in steps] == [False] * 4 + [True] and not steps[-1].terminated
    assert [step.next_obs[0, 6:].tolist() for step in steps[:2]] == [[0, 1], [0, 0]]
    (got,) = walk(env, LEFT)
    assert got.terminated and torch.equal(got.obs, first) and got.next_obs[0, 6:].tolist() == [0, 0]


@pytest.mark.parametrize("preset", ["open", "pellets", "slippery", "four_rooms", "u_maze", "corridor"])
def test_every_preset_can_be_done(preset):
    """Goal, treasure and all pellets are within reach of the start."""
    task = build("task", "grid_world", {"map": preset})
    to, letters = task.neighbours(), task.letters
    reached = {letters.index("S")}
    while more := {int(cell) for place in reached for cell in to[place]} - reached:
        reached |= more
    wanted = {cell for cell, letter in enumerate(letters) if letter in "Go*"}
    assert wanted <= reached and wanted
    if preset == "pellets":
        assert letters.count("o") == 10 and letters.count("*") == 1 and len(letters) == 81


def test_maps_have_rules_of_their_own():
    pellets = world(map="pellets", view="place")
    rewards = [float(step.reward) for step in walk(pellets, *[RIGHT] * 5)]
    assert rewards == pytest.approx([-0.01] * 4 + [0.09])
    assert build("task", "grid_world", {"map": "pellets"}).last == ""
    assert build("task", "grid_world", {"map": "slippery"}).sideways == pytest.approx(2 / 3)
    plain = build("task", "grid_world", {"map": "slippery", "slip": 0, "ends": "G", "rewards": {"G": 3}})
    assert (plain.sideways, plain.last, plain.letter_rewards, plain.each) == (0, "G", {"G": 3}, 0)


def test_starts_are_drawn():
    env = world(300, map="S.G/.../S.S", view="number")
    counts = torch.bincount(env.observation(), minlength=9)
    assert counts.sum() == 300 and all(counts[cell] > 60 for cell in (0, 6, 8))


def test_views_agree():
    settings = {"map": "S.o/.#x/o.G"}
    envs = {view: world(1, **settings, view=view) for view in ("ones", "place", "picture")}
    for move in (RIGHT, RIGHT, DOWN, DOWN, LEFT, LEFT):
        seen = {view: walk(env, move)[0].next_obs for view, env in envs.items()}
        assert all(contains(envs[view].observation_space, obs) for view, obs in seen.items())
        cell = int(seen["ones"][0, :9].argmax())
        assert (2 * seen["place"][0, :2]).tolist() == [cell % 3, cell // 3]
        assert torch.equal(seen["place"][0, 2:], seen["ones"][0, 9:])
        picture = seen["picture"][0].reshape(9, 3)
        assert picture[cell].tolist() == [40, 120, 255] and picture[4].tolist() == [90, 90, 90]
        for thing, left in zip((2, 6), seen["ones"][0, 9:].tolist(), strict=True):
            assert thing == cell or picture[thing].tolist() == ([230, 200, 0] if left else [0, 0, 0])
        if cell == 8:
            break


def test_settings_are_checked():
    for settings, told in (
        ({"map": "S./..."}, "same length"),
        ({"map": "../.G"}, "no start"),
        ({"map": "S?/.G"}, "presets: open"),
        ({"map": "spiral"}, "presets: open"),
        ({"slip": 1.5}, "slip must lie"),
        ({"size": 1}, "size"),
        ({"map": "So", "view": "number"}, "number does not tell"),
    ):
        with pytest.raises(RecipeError, match=told):
            build("task", "grid_world", settings)
    assert build("task", "grid_world", {"map": "S?", "rewards": {"?": 2.0}}).worth({"?": 2.0}).tolist() == [0, 2]
