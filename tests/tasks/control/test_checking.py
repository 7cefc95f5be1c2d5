"""What check-env says of environments that do one thing wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gainstage.tasks.control.batched_env import Simulation, TorchEnv
from gainstage.tasks.control.checking import check_single
from gainstage.tasks.control.checking_batched import check_task
from gainstage.types.spaces import Box, Discrete

gym = pytest.importorskip("gymnasium")
spaces = gym.spaces


class Good(gym.Env):
    """A noisy walk that ends beyond 1."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Discrete(3)
    limit = 50

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-0.5, 0.5)
        self.steps = 0
        return self.see(), {"at": self.at}

    def see(self):
        return np.array([self.at, self.steps / 100], np.float32)

    def step(self, action):
        self.at += 0.2 * (action - 1) + self.np_random.normal(0, 0.05)
        self.steps += 1
        return self.see(), float(-abs(self.at)), abs(self.at) > 1, False, {"at": self.at}


def variant(**methods):
    return type("Variant", (Good,), methods)


def stepping(change):
    """The good environment with what a step returns changed."""

    def step(self, action):
        return change(self, *Good.step(self, action))

    return variant(step=step)


counter = iter(range(10**6))


def drifting_reset(self, *, seed=None, options=None):
    out = Good.reset(self, seed=seed)
    self.at += next(counter) * 1e-3
    return self.see(), out[1]


def unseeded_step(self, action):
    out = Good.step(self, action)
    self.at += np.random.normal(0, 0.01)
    return self.see(), *out[1:]


def self_restarting(self, action):
    out = Good.step(self, action)
    return (self.reset()[0], *out[1:]) if out[2] else out


def restarting_in_silence(self, action):
    seen, reward, ended, cut, info = Good.step(self, action)
    return (self.reset()[0], reward, False, cut, info) if ended else (seen, reward, ended, cut, info)


def reusing(self):
    if not hasattr(self, "kept"):
        self.kept = np.zeros(2, np.float32)
    self.kept[:] = self.at, 0
    return self.kept


def ending_at_five(self, seen, reward, ended, cut, info):
    return seen, reward, self.steps >= 5, False, info


ERRORS = {
    "observation: lies outside its space: 99 at entry 1, allowed are -10 to 10, at step 1 of episode 0": stepping(
        lambda self, seen, *rest: (np.array([0, 99], np.float32), *rest)
    ),
    "observation: is nan at entry 0 at step 1": stepping(lambda self, seen, *rest: (seen * np.nan, *rest)),
    "observation: has shape (3,), not (2,), at step 1": stepping(lambda s, seen, *rest: (np.zeros(3, "f"), *rest)),
    "observation: is float64, its space says float32, after reset": variant(see=lambda self: np.array([self.at, 0.0])),
    "observation: is a list, not an array of float32, after reset": variant(see=lambda self: [self.at, 0.0]),
    "reward: is nan at step 1": stepping(lambda s, o, r, *rest: (o, float("nan"), *rest)),
    "reward: is NoneType None, not a number, at step 1": stepping(lambda s, o, r, *rest: (o, None, *rest)),
    "reward: is ndarray array([1.]), not a number": stepping(lambda s, o, r, *rest: (o, np.ones(1), *rest)),
    "reset: reset returns ndarray": variant(reset=lambda self, **kw: Good.reset(self, **kw)[0]),
    "reset: reset(seed=0) raises TypeError": variant(reset=lambda self: Good.reset(self)),
    "step: step returns 4 values at step 1": stepping(lambda s, o, r, e, c, i: (o, r, e, i)),
    "step: step raises RuntimeError at step 1 of episode 0: broken": variant(
        step=lambda self, action: (_ for _ in ()).throw(RuntimeError("broken"))
    ),
    "seed: reset(seed=0) starts a different episode the second time, in the same environment": variant(
        reset=drifting_reset
    ),
    "seed: the same seed and the same actions lead somewhere else from step 1 on": variant(step=unseeded_step),
    "end: step restarts the episode by itself and returns the next one's first observation": variant(
        step=self_restarting
    ),
    "end: step restarts the episode at step": variant(step=restarting_in_silence),
    "observation space: the observation space Text cannot": variant(
        observation_space=spaces.Text(3), see=lambda s: "a"
    ),
    "action space: the action space": variant(
        action_space=spaces.Sequence(spaces.Discrete(2)), step=lambda self, action: Good.step(self, 2)
    ),
}

NOTES = {
    "observation: the same array is returned again with other contents": variant(see=reusing),
    "info: the keys of info change at step 3": stepping(
        lambda s, o, r, e, c, i: (o, r, e, c, i | ({"odd": 1} if s.steps == 3 else {}))
    ),
    "end: terminated is int 0, not a bool": stepping(lambda s, o, r, e, c, i: (o, r, int(e), c, i)),
    "were terminated after exactly 5 steps": stepping(ending_at_five),
    "end: no episode ended within 300 steps and nothing limits them": stepping(
        lambda s, o, r, e, c, i: (o, r, False, c, i)
    ),
    "action space: the bounds are not finite": variant(
        action_space=spaces.Box(-np.inf, np.inf, (1,)), step=lambda self, action: Good.step(self, 2)
    ),
    "start from the same observation": variant(
        reset=lambda self, seed=None, **kw: (
            (Good.reset(self, seed=seed), setattr(self, "at", 0.0)) and (np.zeros(2, np.float32), {"at": 0.0})
        )
    ),
    "action: step changes the action that it is given": variant(
        action_space=spaces.Box(-1, 1, (1,)),
        step=lambda self, action: (Good.step(self, 2), action.fill(0))[0],
    ),
}


def texts(findings, error):
    return [f"{c.about}: {c.text}" for c in findings.complaints if c.error == error]


def test_a_good_environment_is_left_alone():
    for limit in (None, 20):
        out = check_single(Good, steps=300, limit=limit)
        assert not out.complaints
        assert (out.steps, out.errors) == (300, 0) and len(out.lengths) > 3 and out.seconds > 0


@pytest.mark.parametrize("said", ERRORS)
def test_errors(said):
    out = check_single(ERRORS[said], steps=300)
    found = texts(out, True)
    assert any(said in text for text in found), found
    assert len(found) == 1, found


@pytest.mark.parametrize("said", NOTES)
def test_notes(said):
    out = check_single(NOTES[said], steps=300)
    assert any(said in text for text in texts(out, False)), out.complaints
    assert not texts(out, True) and len(out.complaints) == 1


def test_a_limit_of_time_counts_as_an_end():
    """Cut off from outside, nothing is said to be without an end, and lengths are counted."""
    endless = stepping(lambda s, o, r, e, c, i: (o, r, False, c, i))
    out = check_single(endless, steps=100, limit=20)
    assert not out.complaints and out.lengths == [20] * 5


def test_wrappers_that_restart():
    """Gymnasium's own one takes a step for it; one that keeps the final observation in info is fine."""
    out = check_single(lambda: gym.wrappers.Autoreset(Good()), steps=300)
    assert texts(out, True) == [] and "a step after the end restarts" in texts(out, False)[0]

    class Keeping(gym.Wrapper):
        def step(self, action):
            seen, reward, ended, cut, info = self.env.step(action)
            if ended or cut:
                info["final_obs"] = seen
                seen, _ = self.env.reset()
            return seen, reward, ended, cut, info

    assert not check_single(lambda: Keeping(Good()), steps=300).errors


def test_repeated_complaints_are_counted():
    out = check_single(stepping(lambda s, o, r, *rest: (o, float("inf"), *rest)), steps=300)
    assert [(c.text, c.times) for c in out.complaints] == [("is inf at step 1 of episode 0", 300)]


# -- batched ----------------------------------------------------------------------------------------------------------


class Walk(TorchEnv):
    observation_space = Box.of(-50, 50, (1,))
    action_space = Discrete(3)

    def start(self):
        return {"at": self.draw(1)}

    def advance(self, state, action):
        at = state["at"] + action.unsqueeze(1) - 1 + 0.1 * self.draw(1)
        return {"at": at}, at.squeeze(1), at.squeeze(1).abs() > 3, {"at": at.squeeze(1)}

    def observe(self, state):
        return state["at"]


class WalkTask(Simulation):
    name = "walk"
    max_steps = 10
    observation_space, action_space = Walk.observation_space, Walk.action_space

    def __init__(self, env=Walk, **settings):
        self.env, self.settings = env, {"max_steps": 10, **settings}

    def make(self, copies, device="cpu"):
        return self.env(copies, device, **self.settings)


def walking(**methods):
    return WalkTask(type("Variant", (Walk,), methods))


def changed(**fields):
    def step(self, action):
        out = Walk.step(self, action)
        for name, change in fields.items():
            setattr(out, name, change(self, out))
        return out

    return walking(step=step)


BATCHED = {
    "observation: lies outside its space: entry 0 of copy 0 is": changed(next_obs=lambda self, out: out.next_obs + 100),
    "observation: lies outside of Box(1), torch.float32: (4, 1) torch.float64": walking(
        observe=lambda self, state: state["at"].double()
    ),
    "step: reward is torch.float64": changed(reward=lambda self, out: out.reward.double()),
    "step: terminated is torch.float32": changed(terminated=lambda self, out: out.terminated.float()),
    "reward: is nan at step 1": changed(reward=lambda self, out: out.reward * float("nan")),
    "info: the keys of info change": changed(info=lambda self, out: {} if self.elapsed[0] == 2 else out.info),
    "info: at is no tensor with a row for each": changed(info=lambda self, out: {"at": 0.0}),
    "observation: obs and next_obs differ where no episode ended": changed(obs=lambda self, out: out.obs + 0.5),
    "seed: the same seeds and actions bring other steps": changed(reward=lambda self, out: torch.rand(self.size)),
    "copies: a copy does something else alone than in a batch": changed(
        reward=lambda self, out: out.reward + out.reward.mean()
    ),
    "end: obs is next_obs at every end of an episode": changed(next_obs=lambda self, out: out.obs),
    "end: an episode goes on after 10 steps": WalkTask(max_steps=None),
    "state: a saved state cannot be loaded: KeyError": walking(state_dict=lambda self: {"keys": self.keys}),
    "state: a loaded state does not go on as before": walking(load_state_dict=lambda self, state: None),
    "step: raises ZeroDivisionError at step 1": walking(advance=lambda self, state, action: 1 / 0),
}


def test_a_good_task_is_left_alone():
    out = check_task(WalkTask(), steps=400)
    assert not out.complaints and out.steps == 400 and len(out.lengths) > 40


@pytest.mark.parametrize("said", BATCHED)
def test_batched_errors(said):
    found = texts(check_task(BATCHED[said], steps=200), True)
    assert len(found) >= 1 and said in found[0], found


def test_batched_notes():
    one = walking(start=lambda self: {"at": torch.zeros(self.starting, 1)})
    assert "all seeds start" in texts(check_task(one), False)[0]
    inexact = walking(exact_resume=False)
    assert "a resumed run starts new episodes" in texts(check_task(inexact), False)[0]
