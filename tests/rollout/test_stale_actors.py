"""Workers with weights of earlier updates: the schedule, lag 0, and that a run goes on bit for bit."""

from __future__ import annotations

import pytest
import torch

from gainstage import checkpoint
from gainstage.recipe import load
from gainstage.rollout.control.stale_actors import Workers, shares, synced_at
from gainstage.trainer import Trainer

STEPS = ["iterations=6"]


def run(*overrides: str) -> Trainer:
    made = Trainer(load("a3c", [*STEPS, *overrides]))
    made.run()
    return made


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    return made.models["policy"].module.state_dict()


def test_workers_fetch_in_turns_and_never_lie_further_behind_than_the_lag():
    at = [[synced_at(i, worker, 3, 4) for worker in range(4)] for i in range(9)]
    assert at[0] == [0, 0, 0, 0] and at[4] == [4, 1, 2, 3] and at[8] == [8, 5, 6, 7]
    assert all(0 <= i - s <= 3 for i, row in enumerate(at) for s in row)
    assert [synced_at(i, 1, 0, 4) for i in range(3)] == [0, 1, 2]


def test_without_lag_the_entry_is_not_there_bit_for_bit():
    lagless = run("rollout.stale_actors.lag=0")
    plain = run("rollout=[{env_steps: {copies: 8, steps: 5}}]")
    assert all(torch.equal(weights(lagless)[key], value) for key, value in weights(plain).items())
    stale = run()
    assert any(not torch.equal(weights(stale)[key], value) for key, value in weights(plain).items())


def test_rows_say_whose_weights_acted():
    seen = []
    made = Trainer(load("a3c", STEPS), on_batch=lambda i, batch: seen.append(batch["version"].tolist()))
    made.run()
    assert seen[0] == [0] * 8 and seen[4] == [4, 4, 1, 1, 2, 2, 3, 3]


def test_a_run_that_was_cut_goes_on_bit_for_bit(tmp_path):
    whole = run()
    cut = Trainer(load("a3c", STEPS), on_mark=lambda t: setattr(t, "stop_requested", t.iteration == 3) or {})
    cut.run()
    checkpoint.save(tmp_path, cut.state_dict(), cut.models, fingerprint="")
    state, saved, _ = checkpoint.load(checkpoint.latest(tmp_path))
    again = Trainer(load("a3c", STEPS))
    again.load_state_dict(state, saved)
    again.run()
    assert all(torch.equal(weights(again)[key], value) for key, value in weights(whole).items())


def test_more_workers_than_copies_and_a_wrapper_around_them_are_refused():
    assert shares(8, 3) == [2, 3, 3]
    with pytest.raises(ValueError, match="4 workers need at least as many copies, env_steps has 2"):
        run("rollout.env_steps.copies=2")
    with pytest.raises(ValueError, match="put it first under rollout"):
        run("rollout=[{epsilon_greedy: {}}, {stale_actors: {}}, {env_steps: {copies: 8, steps: 5}}]")
    assert Workers([1]).sizes == []
