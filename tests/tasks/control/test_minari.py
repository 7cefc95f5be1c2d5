"""Data sets in Minari's formats: what is written is read again, here and by Minari; damaged ones are refused."""

from __future__ import annotations

import copy
import json
import sys

import numpy as np
import pytest
import torch

from gainstage.chain import build_task
from gainstage.registry import RecipeError
from gainstage.tasks.control.checking_batched import random_actions
from gainstage.tasks.control.gym_actions import acting, action_rows
from gainstage.tasks.control.gym_spaces import gym_space
from gainstage.tasks.control.minari_files import HDF5, METADATA, MinariSet
from gainstage.tasks.control.minari_spaces import space_data, space_of
from gainstage.tasks.control.minari_writer import write_episodes
from gainstage.types.episodes import Episode, EpisodeSet
from gainstage.types.spaces import Box, Discrete, MultiBinary, MultiDiscrete, same_space

gym = pytest.importorskip("gymnasium")
h5py = pytest.importorskip("h5py")
spaces = gym.spaces
FORMATS = ["hdf5", "parquet", "arrow"]


def record(task, count=5, steps=12, seed=0):
    """Episodes of random actions, cut off after `steps`."""
    env = task.make(1)
    episodes = []
    for number in range(count):
        obs = [env.reset([seed + number])]
        rows = []
        for action in random_actions(env.action_space, 1, steps + number):
            step = env.step(action)
            obs.append(step.next_obs)
            rows.append((action, step.reward, step.terminated, step.truncated))
            if step.terminated or step.truncated:
                break
        columns = [torch.cat(column) for column in zip(*rows, strict=True)]
        info = {"success": torch.arange(len(rows)).float()}
        episodes.append(Episode(torch.cat(obs), *columns, info, seed + number))
    return episodes


def save(path, source, episodes, **more):
    settings = {"observation_space": source.observation_space, "action_space": source.action_space, **more}
    return write_episodes(path, episodes, **settings)


def build(spec):
    return build_task(spec).it


def equal(a, b):
    names = ("obs", "actions", "rewards", "terminated", "truncated")
    assert len(a) == len(b) and a.info.keys() == b.info.keys()
    for name in names:
        x, y = getattr(a, name), getattr(b, name)
        assert x.dtype == y.dtype and torch.equal(x, y), name
    assert all(torch.equal(a.info[key], b.info[key]) for key in a.info)


WORLDS = [
    "cart_pole",
    "pendulum",
    "bit_flip",
    {"identity": {"space": "multi_discrete", "view": "pieces"}},
    {"identity": {"space": "multi_binary", "view": "picture"}},
    "gym:PointMaze_UMaze-v3",
    "gym:FrozenLake-v1",
]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_what_is_written_is_read_again(tmp_path, world, format):
    task = build(world)
    episodes = record(task)
    spec = world if isinstance(world, dict) else {task.name: {}}
    if isinstance(world, str) and world.startswith("gym:"):
        spec = {"gymnasium": {"id": world[4:]}}
    save(tmp_path / "set", task, episodes, task=spec, format=format)
    again = build({f"minari:{tmp_path / 'set'}": {"info": ["success"]}})
    found = again.transitions()
    assert found.lengths.tolist() == [len(episode) for episode in episodes]
    for number, episode in enumerate(episodes):
        equal(found[number], episode)
    assert "simulator" in again.capabilities and again.max_steps == task.max_steps, again.missing
    assert same_space(again.observation_space, task.observation_space)
    assert ("goal" in again.capabilities) == ("goal" in task.capabilities)
    assert torch.equal(again.make(1).reset([3]), task.make(1).reset([3]))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("world", [*WORLDS[:4], "large picture"], ids=str)
def test_minari_reads_what_is_written(tmp_path, monkeypatch, world, format):
    minari = pytest.importorskip("minari")
    if world == "large picture":
        space = Box.of(0, 255, (40, 32, 3), dtype=torch.uint8)
        obs = torch.randint(0, 256, (4, 40, 32, 3), dtype=torch.uint8)
        episodes = [
            Episode(obs, torch.zeros(3, dtype=torch.int64), torch.ones(3), *torch.zeros(2, 3, dtype=torch.bool))
        ]
        write_episodes(tmp_path / "mine-v0", episodes, observation_space=space, action_space=Discrete(2), format=format)
    else:
        task = build(world)
        episodes = record(task)
        save(tmp_path / "mine-v0", task, episodes, format=format, algorithm_name="random", ref_max_score=1.0)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    theirs = minari.load_dataset("mine-v0")
    assert (theirs.total_episodes, theirs.total_steps) == (len(episodes), sum(map(len, episodes)))
    for episode, own in zip(theirs.iterate_episodes(), episodes, strict=True):
        obs = episode.observations
        if isinstance(obs, dict):
            pieces = task.observation_space.pieces
            obs = np.concatenate([obs[name].reshape(len(own) + 1, -1) for name in pieces], 1)
        np.testing.assert_array_equal(obs, own.obs.numpy())
        np.testing.assert_array_equal(np.asarray(episode.actions), own.actions.numpy())
        np.testing.assert_array_equal(episode.rewards, own.rewards.numpy())
        np.testing.assert_array_equal(episode.terminations, own.terminated.numpy())
        if world != "large picture":
            np.testing.assert_array_equal(episode.infos["success"][1:], own.info["success"].numpy())
    sampled = next(iter(theirs.sample_episodes(1)))
    assert len(sampled) == len(episodes[sampled.id])
    if world != "large picture":
        metadata = next(iter(theirs.storage.get_episode_metadata([1])))
        assert (metadata["seed"], metadata["total_steps"]) == (1, len(episodes[1]))


@pytest.mark.parametrize("format", FORMATS)
def test_what_minari_writes_is_read(tmp_path, format):
    minari = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    seen = spaces.Dict({
        "see": spaces.Box(-1, 1, (2,), np.float64),
        "in": spaces.Discrete(3),
        "pic": spaces.Box(0, 255, (32, 32, 3), np.uint8),
    })  # fmt: skip
    acted = spaces.Discrete(4, start=2)
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    storage = MinariStorage.new(tmp_path / "data", seen, acted, data_format=format)
    buffers = []
    for steps in (3, 5):
        obs = {
            "see": rng.uniform(-1, 1, (steps + 1, 2)),
            "in": rng.integers(0, 3, steps + 1),
            "pic": np.full((steps + 1, 32, 32, 3), 100, np.uint8),
        }
        flags = [*[False] * (steps - 1), True]
        infos = {"score": np.arange(steps + 1.0)}
        buffers.append(
            EpisodeBuffer(
                None, 7, None, obs, rng.integers(2, 6, steps), rng.normal(size=steps), flags, [False] * steps, infos
            )
        )
    storage.update_episodes(buffers)
    storage.update_metadata({"dataset_id": "theirs-v0", "minari_version": minari.__version__})
    found = MinariSet(tmp_path).episodes(info=["score"])
    assert found.lengths.tolist() == [3, 5] and found.terminated.tolist() == [0, 0, 1, 0, 0, 0, 0, 1]
    assert found.actions.tolist() == [a - 2 for b in buffers for a in b.actions]
    assert found.info["score"].tolist() == [1, 2, 3, 1, 2, 3, 4, 5]
    assert found.obs.shape == (10, 3 + 3072 + 2)
    for key, columns in (("see", slice(3075, 3077)), ("in", slice(0, 3))):
        wanted = np.concatenate([b.observations[key] for b in buffers])
        wanted = np.eye(3)[wanted] if key == "in" else wanted
        np.testing.assert_allclose(found.obs[:, columns], wanted, rtol=1e-6)
    assert (found.obs[:, 3:3075] - 100).abs().max() < 3  # JPEG
    chosen = MinariSet(tmp_path).episodes(keys=["see"], limit=1)
    assert chosen.obs.shape == (4, 2) and len(chosen) == 1


def test_the_environment_comes_from_the_recorded_spec(tmp_path):
    task = build({"gym:Pendulum-v1": {"kwargs": {"g": 5.0}, "max_steps": 30}})
    spec = copy.deepcopy(gym.spec("Pendulum-v1"))  # what Gymnasium hands out is its own entry
    spec.kwargs, spec.max_episode_steps = {"g": 5.0, "render_mode": "human"}, 30
    save(tmp_path / "set", task, record(task), spec=spec, ref_min_score=-1500, ref_max_score=-150.0)
    again = build(f"minari:{tmp_path / 'set'}")
    assert again.inner.kwargs == {"g": 5.0} and again.max_steps == 30 and again.reference == (-1500.0, -150.0)
    assert again.capabilities == {"simulator", "transitions"}
    action = torch.ones(1, 1)
    envs = [t.make(1) for t in (task, again)]
    for env in envs:
        env.reset([1])
    assert torch.equal(*(env.step(action).obs for env in envs))
    with pytest.raises(AttributeError):
        _ = again.nothing


def test_a_data_set_without_an_environment_still_has_its_transitions(tmp_path):
    task = build("cart_pole")
    save(tmp_path / "set", task, record(task))
    again = build(f"minari:{tmp_path / 'set'}")
    assert again.capabilities == {"transitions"} and again.max_steps is None
    with pytest.raises(ValueError, match=r"does not say which environment.*task.env=gym:ID"):
        again.make(1)
    chosen = build({f"minari:{tmp_path / 'set'}": {"env": "cart_pole"}})
    assert "simulator" in chosen.capabilities and chosen.make(2).size == 2
    with pytest.raises(RecipeError, match=r"observation space of pendulum is Box\(3\), that of the data set Box\(4\)"):
        build({f"minari:{tmp_path / 'set'}": {"env": "pendulum"}})


@pytest.mark.parametrize(
    "told",
    [
        {"task": {"gymnasium": {"id": "os:path"}}},
        {"task": {"gymnasium": {"id": "CartPole-v1", "wrappers": ["os:system"]}}},
        {"env_spec": json.dumps({"id": "Nobody-v0", "entry_point": "os:system", "kwargs": {"command": "true"}})},
        {"env_spec": json.dumps({"id": "this:CartPole-v1"})},
        {"env_spec": json.dumps({"id": "CartPole-v1", "additional_wrappers": [{"entry_point": "os:system"}]})},
    ],
)
def test_nothing_that_a_file_names_is_imported(tmp_path, told):
    """An environment is made only where Gymnasium, or this package, knows it already."""
    task = build("cart_pole")
    save(tmp_path / "set", task, record(task, 1), **told)
    again = build(f"minari:{tmp_path / 'set'}")
    assert again.inner is None and "there is no environment" not in again.missing and again.missing
    assert "this" not in sys.modules


def test_parts_are_put_into_the_order_of_the_task(tmp_path):
    task = build("bit_flip")
    save(tmp_path / "set", task, record(task), task={"bit_flip": {}})
    raw = MinariSet(tmp_path / "set").episodes()
    again = build(f"minari:{tmp_path / 'set'}")
    assert not torch.equal(raw.obs, again.transitions().obs)
    pieces = again.observation_space.pieces
    goal = again.transitions().obs[:, pieces["desired_goal"].start : pieces["desired_goal"].stop]
    with h5py.File(tmp_path / "set" / "data" / HDF5) as file:
        assert np.array_equal(file["episode_0/observations/desired_goal"][()], goal[: len(raw[0]) + 1])


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path):
    task = build("cart_pole")
    save(tmp_path / "set", task, record(task))
    return tmp_path / "set" / "data"


def test_a_cut_file_is_said_so(written):
    file = written / HDF5
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"main_data.hdf5 cannot be read: it is cut"):
        MinariSet(written).episodes()
    file.write_text("no")
    with pytest.raises(ValueError, match="cannot be read"):
        MinariSet(written).episodes()


def change(name, value):
    def apply(folder):
        with h5py.File(folder / HDF5, "a") as file:
            group = file["episode_1"]
            if value is None:
                del group[name]
                return
            old = group[name][()]
            del group[name]
            group.create_dataset(name, data=value(old))

    return apply


def poison(row):
    def apply(values):
        values = values.astype(np.float32)
        values[row] = np.nan
        return values

    return apply


def rewrite(**changes):
    def apply(folder):
        path = folder / METADATA
        data = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))

    return apply


def rot(folder):
    """Every seventh byte behind the file's head is another one."""
    (file,) = folder.glob("*.hdf5")
    held = bytearray(file.read_bytes())
    held[600::7] = bytes(byte ^ 0x5A for byte in held[600::7])
    file.write_bytes(held)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (change("rewards", poison(2)), "episode 1: the reward of step 2 is not finite"),
        (change("observations", poison(4)), "episode 1: the observation of step 4 is not finite"),
        (change("observations", lambda v: v[:-1]), r"episode 1: .* there has to be one more"),
        (change("actions", lambda v: v[:-1]), r"episode 1: \d+ actions for \d+ rewards"),
        (change("terminations", lambda v: v[:2]), "episode 1: 2 terminations for"),
        (change("truncations", None), "episode 1 has no truncations"),
        (rewrite(total_episodes=9), "ends after 5 episodes, its metadata says 9"),
        (rewrite(total_episodes=None), "is no metadata of a Minari data set: KeyError"),
        (rewrite(total_episodes=0), "holds no episode"),
        (rewrite(data_format="csv"), "data_format 'csv' is not known"),
        (rewrite(action_space=None), "action_space cannot be read from metadata.json: the data set does not say"),
        (rewrite(action_space="{"), "action_space cannot be read"),
        (lambda folder: (folder / METADATA).write_text("{"), "is no metadata"),
        (lambda folder: (folder / METADATA).unlink(), "no Minari data set is here"),
        (rot, "cannot be read: it is cut, damaged or no HDF5 file"),
    ],
)
def test_damage_is_named(written, damage, says):
    damage(written)
    with pytest.raises(ValueError, match=says):
        MinariSet(written).episodes()


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_damage_of_tables_is_named(tmp_path, format):
    task = build("cart_pole")
    folder = save(tmp_path / "set", task, record(task), format=format)
    part = next((folder / "2").glob("part-0.*"))
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"2 cannot be read: it is missing, cut or damaged"):
        MinariSet(folder).episodes()
    part.unlink()
    (folder / "2" / METADATA).unlink()
    (folder / "2").rmdir()
    with pytest.raises(ValueError, match="2 cannot be read"):
        MinariSet(folder).episodes()


def test_a_fact_that_was_not_recorded_is_refused(written):
    with pytest.raises(ValueError, match="infos has no 'cost'; it has success"):
        MinariSet(written).episodes(info=["cost"])


# -- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_a_data_set_is_whole_or_not_there(tmp_path, format):
    task = build("cart_pole")

    def breaking():
        yield from record(task, 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "set", task, breaking(), format=format)
    assert list((tmp_path / "set").iterdir()) == []
    save(tmp_path / "set", task, record(task, 2), format=format)
    with pytest.raises(ValueError, match="holds a data set already"):
        save(tmp_path / "set", task, record(task, 2), format=format)


def test_wrong_episodes_are_not_written(tmp_path):
    task = build("cart_pole")
    (good,) = record(task, 1)
    wrong = {
        "one observation more than steps": Episode(good.obs[:-1], *_steps(good)),
        "at least one step": Episode(good.obs[:1], *(v[:0] for v in _steps(good))),
        "rewards holds numbers that are not finite": Episode(
            good.obs, good.actions, good.rewards * float("nan"), good.terminated, good.truncated
        ),
    }
    for says, episode in wrong.items():
        with pytest.raises(ValueError, match=says):
            save(tmp_path / "set", task, [good, episode])
    with pytest.raises(ValueError, match="there is no episode to write"):
        save(tmp_path / "set", task, [])
    with pytest.raises(ValueError, match="format must be one of"):
        save(tmp_path / "set", task, [good], format="csv")
    with pytest.raises(ValueError, match="there is no episode"):
        EpisodeSet.join([])


def _steps(episode):
    return episode.actions, episode.rewards, episode.terminated, episode.truncated


def test_names_become_ids_that_minari_takes(tmp_path):
    task = build("cart_pole")
    for name, id in (("a-v3", "a-v3"), ("my set", "my-set-v0")):
        folder = save(tmp_path / name, task, record(task, 1))
        assert json.loads((folder / METADATA).read_text())["dataset_id"] == id


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, 3, (2,), np.float64),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 5], start=[1, 0]),
        spaces.MultiBinary(4),
        spaces.Dict({"b": spaces.Box(0, 255, (2, 2), np.uint8), "a": spaces.Discrete(2)}),
    ],
)
def test_spaces_are_written_as_minari_writes_them(space):
    minari = pytest.importorskip("minari.serialization")
    ours = json.loads(json.dumps(space_data(space)))
    assert space_of(ours) == space == minari.deserialize_space(ours)
    assert ours == json.loads(minari.serialize_space(space))


@pytest.mark.parametrize(
    "space",
    [Box.of(-1, 1, (2, 2)), Discrete(4), MultiDiscrete((2, 3)), MultiBinary(3)],
)
def test_actions_come_back_as_rows(space):
    rows = torch.cat(random_actions(space, 3, 4))
    native = gym_space(space)
    assert torch.equal(torch.from_numpy(action_rows(native, acting(native).batch(rows.numpy()))), rows)
    nested = spaces.Tuple((spaces.Discrete(2, start=1), spaces.MultiDiscrete([3, 3])))
    rows = np.array([[1, 2, 0], [0, 1, 1]])
    assert action_rows(nested, acting(nested).batch(rows)).tolist() == rows.tolist()
