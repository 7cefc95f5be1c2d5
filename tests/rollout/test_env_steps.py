"""Fragments of stepped environments: columns, ends of episodes, returns, and what a bad reward does."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gainstage.recipe import load
from gainstage.registry import build
from gainstage.rollout.control.env_steps import Episodes
from gainstage.trainer import Trainer
from gainstage.types import Batch

ROWS = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=12)


def fragments(trainer: Trainer, count: int) -> list[Batch]:
    trainer.enter()
    part = trainer.chain.rollout[-1].it
    found = []
    for number in range(count):
        trainer.ctx.iteration = number
        found.append(part.collect((), trainer.ctx))
    return found


def test_columns_are_true_transitions_and_fragments_join():
    trainer = Trainer(load("ppo", ["task={cart_pole: {max_steps: 9}}", "rollout.env_steps.steps=30"]))
    first, second = fragments(trainer, 2)
    done = first["terminated"] | first["cut"]
    assert bool(first["cut"].any()) and bool(done.any(1).all()) and not bool((first["terminated"] & first["cut"]).any())
    inner = ~done[:, :-1]
    assert torch.equal(first["next_obs"][:, :-1][inner], first["obs"][:, 1:-1][inner])
    assert not torch.equal(first["next_obs"][:, :-1][~inner], first["obs"][:, 1:-1][~inner])
    assert torch.equal(first["start"][:, 1:], done[:, :-1]) and bool(first["start"][:, 0].all())
    assert torch.equal(first["obs"][:, -1], second["obs"][:, 0])
    assert torch.equal(second["start"][:, 0], done[:, -1])
    assert bool(first["mask"].all()) and trainer.meter.total("env_steps") == 2 * 8 * 30


@pytest.mark.parametrize("name", ["cart_pole", "pendulum", "acrobot", "identity", "memory_cue"])
def test_what_an_environment_handed_out_is_never_written_to(name: str):
    task = build("task", name)
    env = task.make(4)
    kept = [env.reset([1, 2, 3, 4])]
    copies = [kept[0].clone()]
    for _ in range(30):
        action = torch.zeros(4, *task.action_space.shape, dtype=task.action_space.dtype)
        stepped = env.step(action)
        kept += [stepped.obs, stepped.next_obs, stepped.reward, stepped.terminated, stepped.truncated]
        copies += [value.clone() for value in kept[-5:]]
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


@settings(deadline=None)
@given(ROWS, ROWS)
def test_returns_of_episodes_equal_those_of_a_slow_count(one: list, two: list):
    """Two fragments of two copies: sums and lengths carry over the border, each copy's own."""
    episodes = Episodes(2)
    want, running = [], [[0.0, 0.0], [0.0, 0.0]]
    for part in (one, two):
        rewards = torch.tensor([[r for r, _ in part], [2 * r for r, _ in part]], dtype=torch.float32)
        done = torch.tensor([[d for _, d in part], [not d for _, d in part]])
        episodes.see(Batch({"rewards": rewards, "mask": torch.ones_like(done)}), done)
        for copy in range(2):
            for t in range(len(part)):
                running[copy] = [running[copy][0] + float(rewards[copy, t]), running[copy][1] + 1]
                if done[copy, t]:
                    want.append(tuple(running[copy]))
                    running[copy] = [0.0, 0.0]
    assert sorted((r, n) for r, n, _ in episodes.finished) == sorted(want)
    assert episodes.returns.tolist() == [r for r, _ in running] and episodes.lengths.tolist() == [n for _, n in running]


def test_success_is_counted_where_the_environment_says_it():
    episodes, said = Episodes(1), {}
    rows = {"rewards": torch.ones(1, 3), "mask": torch.ones(1, 3).bool(), "info/success": torch.tensor([[0, 1, 1]])}
    episodes.see(Batch(rows), torch.tensor([[True, False, True]]))
    episodes.report(said.__setitem__)
    assert said == {"episode/return": 1.5, "episode/length": 1.5, "episode/success": 0.5, "episode/count": 2.0}
    episodes.report(said.__setitem__)
    assert said["episode/count"] == 0.0


def test_a_reward_that_is_no_number_stops_the_run_and_names_the_place():
    trainer = Trainer(load("ppo", ["rollout.env_steps.steps=4"]))
    trainer.enter()
    part = trainer.chain.rollout[-1].it
    step = part.env.step

    def broken(action):
        stepped = step(action)
        stepped.reward[3] = math.nan
        return stepped

    part.env = SimpleNamespace(step=broken)
    with pytest.raises(FloatingPointError, match="task cart_pole: copy 3 paid the reward nan at step 0"):
        trainer.iterate()
