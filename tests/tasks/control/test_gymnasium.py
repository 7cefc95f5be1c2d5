"""Gymnasium environments: what their steps bring, restarts, spaces, exact resume, clear errors."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
import pytest
import torch

from gainstage.chain import build_task
from gainstage.registry import RecipeError
from gainstage.tasks.control.gym_actions import acting
from gainstage.tasks.control.gym_copies import Copies, Plan, episode_seed
from gainstage.tasks.control.gym_env import ActionLog, GymEnv
from gainstage.tasks.control.gym_processes import Processes, WorkerFailed
from gainstage.tasks.control.gym_spaces import gym_space, observing
from gainstage.tasks.control.gym_vector import from_vector_env
from gainstage.tasks.control.recording import Random
from gainstage.types.spaces import Box, Discrete, MultiBinary, MultiDiscrete, contains, same_space

gym = pytest.importorskip("gymnasium")
spaces = gym.spaces

IDS = ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "MiniGrid-DoorKey-5x5-v0", "FrozenLake-v1"]


class Counting(gym.Env):
    """Counts to `limit` and ends; the observation is the count."""

    def __init__(self, limit=3, space=None, act=None, **bad):
        self.limit, self.bad = limit, bad
        self.observation_space = space or spaces.Box(0, 100, (1,), np.float32)
        self.action_space = act or spaces.Discrete(2)
        self.count, self.taken = 0, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.first = self.np_random.random()
        return np.array([0.0], np.float32), {}

    def step(self, action):
        self.taken.append(action)
        self.count += 1
        seen = np.array([self.count], np.float32)
        reward = 1.0
        if self.count == self.bad.get("at"):
            seen, reward = self.bad.get("seen", seen), self.bad.get("reward", reward)
            if "raises" in self.bad:
                raise self.bad["raises"]
        return (
            seen,
            reward,
            self.count >= self.limit,
            False,
            {"is_success": self.count >= self.limit, "count": self.count},
        )


def plan(**more):
    settings = {k: more.pop(k) for k in ("limit", "repeat", "facts") if k in more}
    env = Counting(**more)
    return Plan(
        "counting", lambda: Counting(**more), observing(env.observation_space), acting(env.action_space), **settings
    )


def counting(size=1, **more):
    made = plan(**more)
    return GymEnv(made, Copies(made, size), size)


def task(id, **settings):
    return build_task({f"gym:{id}": {"copies": "sync", **settings}}).it


def actions(space, copies, steps, seed=0):
    script = Random(space, seed)
    return [script.act(torch.empty(copies)) for _ in range(steps)]


def run(env, chosen):
    return [env.step(action) for action in chosen]


def same(a, b):
    return all(
        torch.equal(getattr(x, f), getattr(y, f))
        for x, y in zip(a, b, strict=True)
        for f in ("obs", "next_obs", "reward", "terminated", "truncated")
    )


# -- the protocol -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", IDS)
def test_steps_are_those_of_gymnasium_itself(id):
    ours = task(id)
    env = ours.make(1)
    theirs = gym.make(ours.spec)
    take = (lambda seen: seen["image"]) if "MiniGrid" in id else (lambda seen: seen)
    obs = env.reset([7])
    np.testing.assert_array_equal(obs[0].numpy(), np.asarray(take(theirs.reset(seed=7)[0]), obs.numpy().dtype))
    number = 0
    for action in actions(env.action_space, 1, 260):
        stepped = env.step(action)
        row = action[0].numpy() if action.dim() > 1 else int(action[0])
        seen, reward, terminated, truncated, _ = theirs.step(row)
        np.testing.assert_array_equal(stepped.next_obs[0].numpy(), np.asarray(take(seen), obs.numpy().dtype))
        assert stepped.reward[0] == np.float32(reward)
        assert (bool(stepped.terminated), bool(stepped.truncated)) == (terminated, truncated)
        if terminated or truncated:
            number += 1
            seen = theirs.reset(seed=episode_seed(7, number))[0]
        np.testing.assert_array_equal(stepped.obs[0].numpy(), np.asarray(take(seen), obs.numpy().dtype))
    assert number > 0 or id == "HalfCheetah-v5"


def test_a_restart_keeps_the_true_last_observation():
    env = counting(2)
    assert env.reset([0, 1]).tolist() == [[0.0], [0.0]]
    out = run(env, [torch.zeros(2, dtype=torch.int64)] * 6)
    assert [int(s.next_obs[0]) for s in out] == [1, 2, 3, 1, 2, 3]
    assert [int(s.obs[0]) for s in out] == [1, 2, 0, 1, 2, 0]
    assert [bool(s.terminated[1]) for s in out] == [False, False, True] * 2
    assert not any(s.truncated.any() for s in out)


def test_a_limit_truncates_and_a_real_end_at_the_limit_stays_one():
    made = plan()
    for limit, flags in ((2, (False, True)), (3, (True, True)), (4, (True, False))):
        cut = Plan(**{**vars(made), "limit": limit})
        env = GymEnv(cut, Copies(cut, 1), 1)
        env.reset([0])
        last = run(env, [torch.zeros(1, dtype=torch.int64)] * min(limit, 3))[-1]
        assert (bool(last.terminated), bool(last.truncated)) == flags


def test_each_copy_has_its_own_stream_and_restarts_do_not_replay_it():
    env = counting(3)
    env.reset([7, 8, 9])
    first = [copy.first for copy in env.backend.envs]
    assert first == pytest.approx([0.62510, 0.32697, 0.87025], abs=1e-5)
    run(env, [torch.zeros(3, dtype=torch.int64)] * 3)
    assert len({*first, *(copy.first for copy in env.backend.envs)}) == 6


def test_an_episode_depends_on_its_copy_alone():
    chosen = actions(Discrete(2), 3, 60)
    env = task("CartPole-v1")
    together = env.make(3)
    together.reset([4, 5, 6])
    alone = env.make(1)
    alone.reset([5])
    for a, b in zip(run(together, chosen), run(alone, [c[1:2] for c in chosen]), strict=True):
        assert torch.equal(a.obs[1], b.obs[0]) and a.reward[1] == b.reward[0]


def test_facts_have_the_same_keys_at_every_step():
    env = counting(2, facts=("success", "count", "absent"))
    env.reset([0, 1])
    out = run(env, [torch.zeros(2, dtype=torch.int64)] * 4)
    assert {tuple(s.info) for s in out} == {("success", "count", "absent")}
    assert [float(s.info["success"][0]) for s in out] == [0, 0, 1, 0]
    assert [float(s.info["count"][0]) for s in out] == [1, 2, 3, 1]
    assert out[0].info["absent"].isnan().all()


def test_an_action_is_held_until_the_episode_ends():
    env = counting(1, repeat=2)
    env.reset([0])
    out = run(env, [torch.zeros(1, dtype=torch.int64)] * 3)
    assert [float(s.reward) for s in out] == [2, 1, 2]
    assert [int(s.next_obs) for s in out] == [2, 3, 2]
    cut = Plan(**{**vars(plan(limit=50)), "limit": 3, "repeat": 2})
    env = GymEnv(cut, Copies(cut, 1), 1)
    env.reset([0])
    out = run(env, [torch.zeros(1, dtype=torch.int64)] * 2)
    assert [(float(s.reward), bool(s.truncated)) for s in out] == [(2, False), (1, True)]


# -- exact resume -----------------------------------------------------------------------------------------------------


RESUMED = [
    *((id, "sync", {}) for id in IDS),
    *((id, "sync", {"repeat": 2, "stack": 2}) for id in IDS[:4]),
    *((id, "process", {}) for id in IDS[:2]),
    ("PointMaze_UMaze-v3", "sync", {"max_steps": 20}),
]


@pytest.mark.parametrize(("id", "copies", "settings"), RESUMED)
def test_resume_is_exact(id, copies, settings):
    made = task(id, **settings, copies=copies)
    env = made.make(3)
    env.reset([11, 12, 13])
    chosen = actions(env.action_space, 3, 90)
    run(env, chosen[:50])
    state = env.state_dict()
    went_on = run(env, chosen[50:])
    fresh = made.make(3)
    fresh.load_state_dict(state)
    assert same(run(fresh, chosen[50:]), went_on)
    once_more = made.make(3)
    once_more.load_state_dict(state)  # the state was not moved by the steps that followed
    assert torch.equal(once_more.observation(), state["seen"] if "seen" in state else state["obs"])
    for e in (env, fresh, once_more):
        e.close()


def test_an_environment_that_does_not_repeat_is_found_at_resume():
    class Drifting(Counting):
        drift = 0.0

        def reset(self, **kwargs):
            Drifting.drift += 1e-3
            super().reset(**kwargs)
            return np.array([Drifting.drift], np.float32), {}

        def step(self, action):
            seen, *rest = super().step(action)
            return seen + np.float32(Drifting.drift), *rest

    made = Plan("drifting", Drifting, *(vars(plan())[k] for k in ("observing", "acting")))
    env = GymEnv(made, Copies(made, 2), 2)
    env.reset([0, 1])
    run(env, [torch.zeros(2, dtype=torch.int64)] * 2)
    with pytest.raises(ValueError, match=r"copy 0 somewhere else.*exact_resume: false"):
        env.load_state_dict(env.state_dict())
    loose = GymEnv(made, Copies(made, 2), 2, exact_resume=False)
    loose.reset([0, 1])
    state = loose.state_dict()
    with pytest.warns(UserWarning, match="every copy starts a new one"):
        loose.load_state_dict(state)
    assert loose.state_dict()["episodes"].tolist() == [1, 1]
    with pytest.raises(ValueError, match="has 2 copies"):
        GymEnv(made, Copies(made, 1), 1).load_state_dict(env.state_dict())


def test_the_action_log_forgets_what_ended_and_grows_for_what_has_not():
    log = ActionLog(2, (), np.int64)
    for step in range(5000):
        log.append(np.array([step, -step]))
        if step == 4500:
            log.restart(np.array([True, False]))
    lengths, taken = log.since_start()
    assert lengths.tolist() == [499, 5000]
    assert taken[:2].tolist() == [4501, 4502] and taken[499:].tolist() == [-s for s in range(5000)]
    log.restart(np.array([True, True]))
    size = len(log._rows)
    for step in range(20000):
        log.append(np.array([step, step]))
        if step % 100 == 99:
            log.restart(np.array([True, True]))
    assert len(log._rows) == size


# -- spaces -----------------------------------------------------------------------------------------------------------


def nested():
    return spaces.Dict({
        "b": spaces.Box(-1, 1, (2, 2), np.float64),
        "d": spaces.Discrete(3, start=5),
        "m": spaces.MultiDiscrete([2, 3], start=[1, 0]),
        "s": spaces.MultiBinary(2),
        "t": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 255, (1,), np.uint8))),
    })  # fmt: skip


def test_nested_observations_are_laid_out_as_gymnasium_flattens_them():
    space = nested()
    seen = observing(space)
    assert {name: (p.start, p.stop) for name, p in seen.space.pieces.items()} == {
        "b": (0, 4), "d": (4, 7), "m": (7, 12), "s": (12, 14), "t/0": (14, 16), "t/1": (16, 17),
    }  # fmt: skip
    assert seen.space.pieces["b"].shape == (2, 2)
    space.seed(0)
    samples = [space.sample() for _ in range(20)]
    array = seen.empty(20)
    for row, sample in enumerate(samples):
        seen.write(array, row, sample)
        np.testing.assert_array_equal(array[row], spaces.flatten(space, sample).astype(np.float32))
    assert contains(seen.space, torch.from_numpy(array))
    batched = gym.vector.utils.concatenate(space, samples, gym.vector.utils.create_empty_array(space, 20))
    np.testing.assert_array_equal(seen.batch(batched), array)


@pytest.mark.parametrize(
    ("space", "expected", "value", "row"),
    [
        (spaces.Discrete(4, start=-1), Discrete(4), 2, 3),
        (spaces.Box(0, 255, (2, 2, 1), np.uint8), Box.of(0, 255, (2, 2, 1), dtype=torch.uint8), None, None),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), Box.of(-np.inf, np.inf, (2,)), None, None),
        (spaces.MultiBinary(2), Box.of(0, 1, (2,)), np.array([1, 0], np.int8), [1, 0]),
        (spaces.MultiDiscrete([2, 2]), Box.of(0, 1, (4,)), np.array([1, 0]), [0, 1, 1, 0]),
    ],
)
def test_single_observation_spaces(space, expected, value, row):
    seen = observing(space)
    assert same_space(seen.space, expected)
    if value is not None:
        array = seen.empty(1)
        seen.write(array, 0, value)
        assert array[0].tolist() == row


@pytest.mark.parametrize(
    ("space", "where"),
    [
        (spaces.Text(5), "Text cannot"),
        (spaces.Box(0, 1, (0,)), r"shape \(0,\) holds no number"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence cannot"),
        (spaces.Graph(spaces.Box(0, 1, (1,)), None), "Graph cannot"),
        (spaces.Dict({"a": spaces.Discrete(2), "say": spaces.Text(3)}), r"Text \(at say\).*keys:"),
    ],
)
def test_observations_that_are_no_numbers_are_refused_by_name(space, where):
    with pytest.raises(ValueError, match=where):
        observing(space)


def test_entries_of_a_dictionary_can_be_chosen():
    space = spaces.Dict(
        {"pic": spaces.Box(0, 255, (4, 4, 3), np.uint8), "say": spaces.Text(3), "x": spaces.Box(0, 1, (2,))}
    )
    assert same_space(observing(space, ["pic"]).space, Box.of(0, 255, (4, 4, 3), dtype=torch.uint8))
    assert observing(space, ["x", "pic"]).space.shape == (50,)
    with pytest.raises(ValueError, match="no 'pix'; they have"):
        observing(space, ["pix"])
    with pytest.raises(ValueError, match="no dictionary"):
        observing(space["x"], ["pix"])


@pytest.mark.parametrize(
    ("space", "expected", "rows", "given"),
    [
        (spaces.Discrete(3, start=-1), Discrete(3), [0, 2], [-1, 1]),
        (spaces.MultiDiscrete([2, 3], start=[5, 1]), MultiDiscrete((2, 3)), [[1, 2]], [[6, 3]]),
        (spaces.MultiDiscrete([[2, 2], [2, 2]]), MultiDiscrete((2, 2, 2, 2)), [[1, 0, 0, 1]], [[[1, 0], [0, 1]]]),
        (spaces.MultiBinary((2, 1)), MultiBinary(2), [[1, 0]], [[[1], [0]]]),
        (spaces.Box(-1, 1, (2,), np.float64), Box.of(-1, 1, (2,)), [[0.5, 1]], [[0.5, 1]]),
        (spaces.Box(0, 255, (2,), np.uint8), Box.of(0, 255, (2,)), [[3.6, 255]], [[4, 255]]),
        (
            spaces.Tuple((spaces.Discrete(2), spaces.MultiDiscrete([3, 3]))),
            MultiDiscrete((2, 3, 3)), [[1, 2, 0]], [(1, [2, 0])],
        ),
        (
            spaces.Dict({"a": spaces.Box(0, 1, (1,)), "b": spaces.Box(-1, 0, (2,))}),
            Box(torch.tensor([0.0, -1, -1]), torch.tensor([1.0, 0, 0])), [[0.5, -1, 0]], [{"a": [0.5], "b": [-1, 0]}],
        ),
    ],
)  # fmt: skip
def test_actions_reach_the_environment_as_its_space_wants_them(space, expected, rows, given):
    taken = acting(space)
    assert same_space(taken.space, expected)
    array = np.array(rows, taken.dtype)
    made = taken.rows(array)
    assert all(space.contains(action) for action in made)

    def plain(value):
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, tuple):
            return tuple(plain(v) for v in value)
        return value.tolist() if hasattr(value, "tolist") else value

    assert [plain(action) for action in made] == given
    for action in made:
        if isinstance(action, np.ndarray):
            assert not np.shares_memory(action, array)


@pytest.mark.parametrize(
    "space", [spaces.Text(2), spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,)))), spaces.Dict({})]
)
def test_actions_that_nothing_can_take_are_refused(space):
    with pytest.raises(ValueError, match="the action space"):
        acting(space)


@pytest.mark.parametrize("space", [Box.of(-1, 1, (3,)), Discrete(4), MultiDiscrete((2, 3)), MultiBinary(3)])
def test_our_spaces_survive_the_way_to_gymnasium_and_back(space):
    assert same_space(acting(gym_space(space)).space, space)


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        ({"reward": float("nan")}, FloatingPointError, r"counting: reward of copy 0 is nan at step 2 of its episode 0"),
        ({"seen": np.array([np.inf], np.float32)}, FloatingPointError, "observation of copy 0 is inf at step 2"),
        ({"reward": None}, FloatingPointError, "reward of copy 0 is nan at step 2"),
        ({"reward": "much"}, ValueError, "copy 0, step 2 of its episode: reward 'much'"),
        ({"seen": np.zeros(3)}, ValueError, r"step 2 of its episode: .*shape \(3,\)"),
    ],
)
def test_what_an_environment_breaks_is_named(bad, error, says):
    env = counting(1, at=2, **bad)
    env.reset([3])
    env.step(torch.zeros(1, dtype=torch.int64))
    with pytest.raises(error, match=says):
        env.step(torch.zeros(1, dtype=torch.int64))


def test_an_exception_of_the_environment_says_where():
    env = counting(2, at=1, raises=RuntimeError("broken"))
    env.reset([0, 1])
    with pytest.raises(RuntimeError, match="broken") as caught:
        env.step(torch.zeros(2, dtype=torch.int64))
    assert caught.value.__notes__ == ["in counting, copy 0, step 1 of its episode"]


@pytest.mark.parametrize(("seen", "says"), [(np.ones(1, np.float32), r"\(1,\)"), (1.0, "float"), (None, "NoneType")])
def test_a_single_number_is_no_observation_of_three(seen, says):
    env = counting(1, at=1, seen=seen, space=spaces.Box(0, 100, (3,), np.float32))
    with pytest.raises(ValueError, match=rf"counting, copy 0, step 1.*{says}.*of shape \(3,\)"):
        env.step(torch.zeros(1, dtype=torch.int64))


def test_large_finite_numbers_are_fine():
    env = counting(1, at=1, seen=np.array([1e38], np.float32), reward=-1e38)
    env.reset([0])
    assert env.step(torch.zeros(1, dtype=torch.int64)).reward.item() == np.float32(-1e38)


def test_wrong_actions_and_seeds_are_refused():
    env = counting(2)
    with pytest.raises(ValueError, match="need as many seeds"):
        env.reset([1])
    env.reset([1, 2])
    with pytest.raises(ValueError, match=r"shape \(1,\) do not fit 2 copies"):
        env.step(torch.zeros(1, dtype=torch.int64))
    for wrong in (-1, 2):
        with pytest.raises(ValueError, match="allowed are 0 to 1"):
            env.step(torch.tensor([0, wrong]))
    smooth = task("Pendulum-v1").make(1)
    smooth.reset([0])
    with pytest.raises(FloatingPointError, match="action of copy 0 is nan"):
        smooth.step(torch.full((1, 1), float("nan")))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"gym:CartPole-v9": {}}, "CartPole"),
        ({"gym:CartPoel-v1": {}}, "did you mean.*CartPole-v1"),
        ({"gym:nowhere_at_all:X-v0": {}}, "no module 'nowhere_at_all'"),
        ({"gym:CartPole-v1": {"kwargs": {"gravity_": 1}}}, "CartPole-v1 cannot be made: TypeError.*gravity_"),
        ({"gym:CartPole-v1": {"repeat": 0}}, "repeat must be at least 1"),
        ({"gym:CartPole-v1": {"max_steps": 0}}, "max_steps must be at least 1"),
        ({"gym:CartPole-v1": {"keys": ["a"]}}, "CartPole-v1: keys: the observations are no dictionary"),
        ({"gym:FrozenLake-v1": {"stack": 2}}, r"Discrete\(16\) cannot be stacked"),
        ({"gym:CartPole-v1": {"wrappers": ["gymnasium.wrappers:Nope"]}}, "wrappers: 'gymnasium.wrappers:Nope'"),
    ],
)
def test_wrong_settings_are_named(settings, says):
    with pytest.raises(RecipeError, match=says):
        build_task(settings)


def test_gym_needs_an_id():
    with pytest.raises(ValueError, match="gym:ID"):
        build_task("gym:")


# -- the task ---------------------------------------------------------------------------------------------------------


def test_a_task_says_what_its_environments_are():
    made = task("HalfCheetah-v5", info=["x_velocity"])
    assert (made.name, made.max_steps, made.capabilities) == ("gym:HalfCheetah-v5", 1000, {"simulator"})
    assert made.observation_space.shape == (17,) and made.action_space.bounded
    env = made.make(2)
    env.reset([0, 1])
    assert set(env.step(torch.zeros(2, 6)).info) == {"x_velocity"}
    assert task("CartPole-v1", max_steps=7).max_steps == 7
    assert task("CartPole-v1", max_steps=7, repeat=2).max_steps == 4
    starts = made.problems("train")
    assert len({p.meta["seed"] for s in ("train", "test") for p in made.problems(s)[:20]}) == 40
    assert starts[0].meta == made.problems("train")[0].meta


def test_minigrid_shows_its_picture():
    made = task("MiniGrid-MultiRoom-N2-S4-v0")
    assert same_space(made.observation_space, Box.of(0, 255, (7, 7, 3), dtype=torch.uint8))
    assert made.max_steps == 40
    assert task("MiniGrid-Empty-5x5-v0", keys=["direction", "image"]).observation_space.shape == (4 + 147,)


def test_goals():
    made = task("PointMaze_UMaze-v3")
    assert made.capabilities == {"simulator", "goal"}
    pieces = made.observation_space.pieces
    assert [pieces[k].shape for k in ("observation", "achieved_goal", "desired_goal")] == [(4,), (2,), (2,)]
    achieved = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.3, 0.0]])
    assert made.compute_reward(achieved, torch.zeros(3, 2)).tolist() == [1, 0, 1]
    env = made.make(2)
    env.reset([0, 1])
    assert env.step(torch.zeros(2, 2)).info["success"].tolist() == [0, 0]
    assert made.compute_terminated(achieved, torch.zeros(3, 2)).tolist() == [False] * 3
    ending = task("PointMaze_UMaze-v3", kwargs={"continuing_task": False})
    assert ending.compute_terminated(achieved, torch.zeros(3, 2)).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="do not depend on goals"):
        task("CartPole-v1").compute_reward(achieved, achieved)


def test_a_reward_written_for_one_goal_is_asked_goal_by_goal():
    made = plan()
    copies = Copies(made, 1)
    copies.envs[0].compute_reward = lambda achieved, goal, info: float(np.linalg.norm(achieved - goal) < 1)
    assert copies.of_goals("compute_reward", np.zeros((3, 2)), np.array([[0, 0], [3, 0], [0.5, 0]])).tolist() == [
        1,
        0,
        1,
    ]


def test_wrappers_and_pixels():
    made = task("CartPole-v1", wrappers=["gymnasium.wrappers:NormalizeObservation"])
    assert made.observation_space.shape == (4,)
    pytest.importorskip("pygame")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    made = task("CartPole-v1", pixels=True, stack=2)
    env = made.make(1)
    seen = env.reset([0])
    assert seen.dtype == torch.uint8 and seen.shape == (1, 400, 600, 6) == (1, *made.observation_space.shape)
    assert torch.equal(seen[..., :3], seen[..., 3:])
    assert env.render(0).shape == (400, 600, 3)
    for _ in range(6):
        before, seen = seen, env.step(torch.zeros(1, dtype=torch.int64)).obs
    assert torch.equal(seen[..., :3], before[..., 3:]) and not torch.equal(seen[..., 3:], before[..., 3:])


# -- worker processes -------------------------------------------------------------------------------------------------


def processes(size=3, **more):
    made = plan(**more)
    return GymEnv(made, Processes(made, lambda: made, size, size), size)


def happens(condition, seconds=30.0):
    """Whether a condition comes true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def gone(pids):
    return happens(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


@pytest.mark.parametrize("size", [2, 5])
def test_processes_bring_the_same_numbers(size):
    made = task("Pendulum-v1", max_steps=20)
    chosen = actions(made.action_space, size, 50)
    out = []
    for copies in ("sync", "process"):
        made.copies, made.workers = copies, 2
        env = made.make(size)
        env.reset(range(size))
        out.append(run(env, chosen))
        env.close()
    assert same(*out)


@pytest.mark.parametrize("busy", [False, True])
def test_a_killed_worker_is_named(busy):
    class Slow(Counting):
        def step(self, action):
            if busy and self.count == 1:
                os.kill(os.getpid(), signal.SIGKILL) if self.first == second else time.sleep(0.2)
            return super().step(action)

    probe = Slow()
    probe.reset(seed=1)
    second = probe.first
    made = Plan("slow", Slow, *(vars(plan())[k] for k in ("observing", "acting")))
    env = GymEnv(made, Processes(made, lambda: made, 3, 3), 3)
    pids = [p.pid for p in env.backend._processes]
    env.reset([0, 1, 2])
    env.step(torch.zeros(3, dtype=torch.int64))
    if not busy:
        os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(WorkerFailed, match=r"slow: worker 2 of 3 \(copies 1 to 1\) was killed by SIGKILL"):
        env.step(torch.zeros(3, dtype=torch.int64))
    assert gone(pids)


def test_a_worker_that_raises_or_hangs_is_named():
    env = processes(at=1, raises=KeyError("lost"))
    env.reset([0, 1, 2])
    with pytest.raises(WorkerFailed, match=r"worker 1 of 3 .* failed:\n(.|\n)*KeyError: 'lost'(.|\n)*copy 0, step 1"):
        env.step(torch.zeros(3, dtype=torch.int64))

    class Hanging(Counting):
        def step(self, action):
            time.sleep(60)

    made = Plan("hanging", Hanging, *(vars(plan())[k] for k in ("observing", "acting")))
    env = GymEnv(made, Processes(made, lambda: made, 2, 2), 2)
    pids = [p.pid for p in env.backend._processes]
    env.reset([0, 1])
    env.backend.seconds = 0.3
    with pytest.raises(WorkerFailed, match=r"gave no answer within 0.3 s"):
        env.step(torch.zeros(2, dtype=torch.int64))
    assert gone(pids)

    class Unmakable(Counting):
        def __init__(self):
            raise OSError("no licence")

    class Dying(Counting):
        def __init__(self):
            os.kill(os.getpid(), signal.SIGKILL)

    made = Plan("dying", Dying, *(vars(plan())[k] for k in ("observing", "acting")))
    with pytest.raises(WorkerFailed, match=r"dying: worker 1 of 2 .* was killed by SIGKILL"):
        Processes(made, lambda: made, 2, 2)

    made = Plan("unmakable", Unmakable, *(vars(plan())[k] for k in ("observing", "acting")))
    with pytest.raises(WorkerFailed, match=r"(?s)worker 1 of 2 .*no licence"):
        Processes(made, lambda: made, 2, 2)


def test_an_own_module_is_found_in_the_working_folder(tmp_path, monkeypatch):
    """Also where the program was started by a script, which leaves that folder off the path."""
    (tmp_path / "lies_here.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('LiesHere-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=7)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    assert build_task({"gym:lies_here:LiesHere-v0": {"copies": "sync"}}).it.max_steps == 7


def test_workers_do_not_outlive_their_parent(tmp_path):
    pids = tmp_path / "pids"
    child = os.fork()
    if child == 0:
        try:
            env = processes()
            pids.write_text(" ".join(str(p.pid) for p in env.backend._processes))
            time.sleep(60)
        finally:
            os._exit(0)
    assert happens(lambda: pids.exists() and len(pids.read_text().split()) == 3)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert gone([int(p) for p in pids.read_text().split()])


def test_workers_end_with_the_environment():
    env = processes()
    pids = [p.pid for p in env.backend._processes]
    env.close()
    env.close()
    assert gone(pids)


# -- vector environments ----------------------------------------------------------------------------------------------


def vector(mode, size=1, wrapper=None):
    make = Counting if wrapper is None else lambda: wrapper(Counting())
    return gym.vector.SyncVectorEnv([make] * size, autoreset_mode=mode)


def transitions(env, steps, size=1):
    """(observation, reward, end, next observation) of every step that was a decision."""
    obs, kept = env.reset(list(range(size))), []
    for _ in range(steps):
        stepped = env.step(torch.zeros(size, dtype=torch.int64))
        real = torch.ones(size, dtype=torch.bool) if stepped.real is None else stepped.real
        for copy in range(size):
            if real[copy]:
                kept.append(
                    (
                        int(obs[copy]),
                        float(stepped.reward[copy]),
                        bool(stepped.terminated[copy]),
                        int(stepped.next_obs[copy]),
                    )
                )
        obs = stepped.obs
    return kept


def test_every_autoreset_mode_stores_the_same_transitions():
    kept = {mode: transitions(from_vector_env(vector(mode)), 8) for mode in ("NextStep", "SameStep", "Disabled")}
    assert {mode: len(rows) for mode, rows in kept.items()} == {"NextStep": 6, "SameStep": 8, "Disabled": 8}
    assert kept["NextStep"] == kept["SameStep"][:6] == kept["Disabled"][:6]
    assert kept["SameStep"] == kept["Disabled"]
    assert [row[3] for row in kept["SameStep"]] == [1, 2, 3, 1, 2, 3, 1, 2]
    assert all((row[0], row[3]) != (3, 0) for rows in kept.values() for row in rows)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_vector_environments_with_dictionaries(mode):
    class Goal(Counting):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Dict({"a": spaces.Box(0, 100, (1,)), "d": spaces.Discrete(2)})

        def reset(self, **kwargs):
            seen, info = super().reset(**kwargs)
            return {"a": seen, "d": 1}, info

        def step(self, action):
            seen, *rest = super().step(action)
            return {"a": seen, "d": 0}, *rest

    env = from_vector_env(gym.vector.SyncVectorEnv([Goal] * 2, autoreset_mode=mode), facts=("success",))
    assert env.reset([0, 1]).tolist() == [[0, 0, 1]] * 2
    out = run(env, [torch.zeros(2, dtype=torch.int64)] * 3)
    assert out[2].next_obs.tolist() == [[3, 1, 0]] * 2
    assert [s.info["success"].tolist() for s in out] == [[0, 0], [0, 0], [1, 1]]
    assert env.exact_resume is False


def test_a_vector_environment_that_hides_its_ways_is_refused():
    vec = vector("SameStep")
    vec.metadata = {}
    with pytest.raises(ValueError, match="autoreset mode None; give mode="):
        from_vector_env(vec)
    assert len(transitions(from_vector_env(vec, mode="SameStep"), 8)) == 8

    class Forgetful(gym.vector.VectorWrapper):
        def step(self, actions):
            *out, _ = self.env.step(actions)
            return *out, {}

    env = from_vector_env(Forgetful(vector("SameStep")))
    env.reset([0])
    with pytest.raises(ValueError, match="no final_obs"):
        run(env, [torch.zeros(1, dtype=torch.int64)] * 3)


def test_a_wrapper_that_restarts_by_itself_gives_its_final_observation_back():
    class SelfReset(gym.Wrapper):
        def step(self, action):
            seen, reward, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                info["final_observation"] = seen
                seen, _ = self.env.reset()
            return seen, reward, terminated, truncated, info

    made = Plan("self", lambda: SelfReset(Counting()), *(vars(plan())[k] for k in ("observing", "acting")))
    env = GymEnv(made, Copies(made, 1), 1)
    env.reset([0])
    assert [int(s.next_obs) for s in run(env, [torch.zeros(1, dtype=torch.int64)] * 3)] == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1"])
def test_envpool_restarts_within_the_step(id):
    pytest.importorskip("envpool")
    made = task(id, copies="envpool", max_steps=30)
    env = made.make(4)
    assert env.exact_resume is False
    first = env.reset([1, 2, 3, 4])
    before, ends = first, 0
    for action in actions(made.action_space, 4, 70):
        stepped = env.step(action)
        done = stepped.terminated | stepped.truncated
        ends += int(done.sum())
        assert torch.equal(stepped.obs[~done], stepped.next_obs[~done])
        assert not done.any() or not torch.equal(stepped.obs[done], stepped.next_obs[done])
        if id == "CartPole-v1":  # the true last observation moves on from the one before
            assert (stepped.next_obs[:, 0] - before[:, 0] - 0.02 * before[:, 1]).abs().max() < 1e-5
        before = stepped.obs
    assert ends >= 8
    assert torch.equal(env.reset([1, 2, 3, 4]), first)
    assert not torch.equal(env.reset([1, 2, 3, 5])[3], first[3])
    env.close()
    if "Lonely-v0" not in gym.registry:
        gym.register("Lonely-v0", entry_point=Counting)
    with pytest.raises(ValueError, match="envpool has no environment 'Lonely-v0'"):
        task("Lonely-v0", copies="envpool").make(1)


def test_where_copies_run_by_themselves():
    made = task("CartPole-v1", copies="auto")
    assert isinstance(made.make(2).backend, Copies)
    made._step_seconds, made.workers = 1e-2, 2
    env = made.make(2)
    assert isinstance(env.backend, Processes)
    env.close()
    assert isinstance(made.make(1).backend, Copies)
