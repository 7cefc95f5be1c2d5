"""What every batched world must hold, as functions that a test calls; and random actions."""

from __future__ import annotations

import torch

from gainstage.tasks.control.recording import Random
from gainstage.types.spaces import contains

FIELDS = ("obs", "reward", "terminated", "truncated", "next_obs")


def actions(task, copies, steps, seed=0):
    """`steps` random actions of so many copies."""
    script = Random(task.action_space, seed)
    return [script.act(torch.empty(copies)) for _ in range(steps)]


def same(a, b):
    """Two steps are equal to the bit."""
    assert all(torch.equal(getattr(a, name), getattr(b, name)) for name in FIELDS)
    assert a.info.keys() == b.info.keys()
    assert all(torch.equal(a.info[key], b.info[key]) for key in a.info)


def check_outputs(task, copies=5, steps=60):
    """Shapes, kinds of numbers, spaces, constant info keys; `obs` is `next_obs` but where an episode ended."""
    env = task.make(copies)
    seen = env.reset(range(copies))
    assert contains(task.observation_space, seen)
    assert task.observation_space is env.observation_space and task.action_space is env.action_space
    keys, ended = None, 0
    for action in actions(task, copies, steps):
        got = env.step(action)
        keys = got.info.keys() if keys is None else keys
        done = got.terminated | got.truncated
        assert contains(task.observation_space, got.obs) and contains(task.observation_space, got.next_obs)
        assert got.reward.shape == (copies,) and got.reward.dtype == torch.float32
        assert got.terminated.dtype == got.truncated.dtype == torch.bool and done.shape == (copies,)
        assert got.info.keys() == keys and all(len(value) == copies for value in got.info.values())
        assert torch.equal(got.obs[~done], got.next_obs[~done])
        ended += int(done.sum())
    return ended


def check_repeats(task, copies=4, steps=60):
    """The same seeds and actions bring the same episodes."""
    one, two = task.make(copies), task.make(copies)
    assert torch.equal(one.reset(range(copies)), two.reset(range(copies)))
    for action in actions(task, copies, steps):
        same(one.step(action), two.step(action))
    two.reset(range(copies))
    assert torch.equal(one.reset(range(copies)), two.observation())


def check_batch_mates(task, steps=60):
    """Copy 3 of seven lives as it does alone, or elsewhere in a smaller batch."""
    many, alone, pair = task.make(7), task.make(1), task.make(2)
    first = many.reset(range(10, 17))
    assert torch.equal(first[3:4], alone.reset([13])) and torch.equal(first[3], pair.reset([99, 13])[1])
    for action in actions(task, 7, steps):
        got, own, other = many.step(action), alone.step(action[3:4]), pair.step(action[[0, 3]])
        for name in FIELDS:
            value = getattr(got, name)[3]
            assert torch.equal(value, getattr(own, name)[0]) and torch.equal(value, getattr(other, name)[1]), name


def check_resume(task, copies=4, before=30, after=40):
    """What was saved goes on bit for bit, and is not changed by what comes later."""
    env, fresh = task.make(copies), task.make(copies)
    env.reset(range(copies))
    drawn = actions(task, copies, before + after)
    for action in drawn[:before]:
        env.step(action)
    saved, here = env.state_dict(), env.observation().clone()
    onward = [env.step(action) for action in drawn[before:]]
    fresh.load_state_dict(saved)
    assert torch.equal(fresh.observation(), here)
    for action, expected in zip(drawn[before:], onward, strict=True):
        same(fresh.step(action), expected)


def check_masked(task, copies=5, steps=60):
    """The restart without waiting for the device (as an accelerator has it) makes the same episodes."""
    plain, masked = task.make(copies), task.make(copies)
    masked._restart_some = lambda state, after, ended: masked._restart_masked(
        state, after, torch.zeros(copies, dtype=torch.bool).index_fill(0, ended, True)
    )
    assert torch.equal(plain.reset(range(copies)), masked.reset(range(copies)))
    for action in actions(task, copies, steps):
        same(plain.step(action), masked.step(action))


ALL = (check_outputs, check_repeats, check_batch_mates, check_resume, check_masked)
