"""The search for a drift: stacked trainings equal single ones, and a search goes on from its file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gainstage.cli.main import app
from gainstage.regimes.drift_search import (
    InnerRun,
    StackedTraining,
    first_weights,
    load_search,
    save_drift,
    save_search,
    search,
)
from gainstage.registry import RecipeError
from gainstage.rollout.control.population import Population
from gainstage.tasks.control.classic import CartPole, Pendulum
from gainstage.update.objectives.policy.drift import learnt, load_params, unflatten
from gainstage.update.optimizers.evolution import OpenES

SHORT = InnerRun(env_steps=512, copies=4, horizon=64, minibatch=64, epochs=2, judged=4)


def some_drifts(count: int) -> torch.Tensor:
    es = OpenES(first_weights(4), population=2 * count, std=0.5)
    return es.ask()[:count]


def test_members_differ_by_their_drift_alone():
    """A member's training in a stack is its training alone, and equal drifts train alike."""
    theta = some_drifts(3)
    stacked = StackedTraining(CartPole(), theta, SHORT, seed=1, eps=0.2)
    fitness = stacked.train()
    alone = StackedTraining(CartPole(), theta[1:2], SHORT, seed=1, eps=0.2)
    assert torch.allclose(alone.train(), fitness[1:2])
    for name, value in alone.weights.items():
        assert torch.allclose(value[0], stacked.weights[name][1], atol=1e-4), name
    twins = StackedTraining(CartPole(), theta[:1].expand(2, -1), SHORT, seed=1).train()
    assert twins[0] == twins[1]


def test_the_drift_reaches_the_weights():
    """Many passes with a large rate: with the clip and without it the weights part."""
    run = InnerRun(env_steps=512, copies=4, horizon=64, minibatch=64, epochs=8, lr=1e-2, judged=2)
    zero = torch.zeros(1, 9)
    ends = []
    for eps in (None, 0.05):
        training = StackedTraining(CartPole(), zero, run, seed=0, eps=eps)
        training.train()
        ends.append(training.weights)
    assert max(float((ends[0][name] - ends[1][name]).detach().abs().max()) for name in ends[0]) > 1e-3


def test_training_pays():
    run = InnerRun(env_steps=16_384, judged=8)
    assert StackedTraining(CartPole(), torch.zeros(2, 9), run, seed=3, eps=0.2).train().min() > 60


def test_a_broken_training_has_no_fitness():
    theta = some_drifts(2)
    theta[1] = torch.nan
    fitness = StackedTraining(CartPole(), theta, SHORT, seed=0).train()
    assert torch.isfinite(fitness[0]) and torch.isnan(fitness[1])


def test_mirrored_draws_around_the_start_tell_something_apart():
    ratio, adv = torch.tensor([0.7, 1.0, 1.4]), torch.tensor([1.0, -1.0, 1.0])

    def drift(weights: torch.Tensor) -> torch.Tensor:
        return learnt(ratio, ratio.log(), adv, params={name: v[0] for name, v in unflatten(weights).items()}, eps=None)

    for start, apart in ((first_weights(4), True), (torch.zeros(36), False)):
        assert not drift(start[None]).any()
        plus, minus = OpenES(start, population=2, std=0.5).ask().split(1)
        assert bool((drift(plus) != drift(minus)).any()) == apart
    assert torch.equal(first_weights(4), first_weights(4)) and not torch.equal(
        first_weights(4), first_weights(4, seed=1)
    )


def test_a_search_goes_on_from_its_file(tmp_path: Path):
    tiny = InnerRun(env_steps=128, copies=2, horizon=32, minibatch=32, epochs=1, judged=2)

    def fresh() -> OpenES:
        return OpenES(first_weights(2), population=4, std=0.5)

    whole, first, second = fresh(), fresh(), fresh()
    seen: list[int] = []
    search(CartPole(), whole, tiny, 3, told=lambda g: seen.append(g.number))
    assert seen == [0, 1, 2]
    search(CartPole(), first, tiny, 1)
    save_search(first, tmp_path / "state.safetensors")
    load_search(second, tmp_path / "state.safetensors")
    assert torch.equal(search(CartPole(), second, tiny, 3), whole.mean)
    with pytest.raises(RecipeError, match="search of 18 weights, this one has 27"):
        load_search(OpenES(first_weights(3), population=4), tmp_path / "state.safetensors")
    save_drift(whole.mean, tmp_path / "drift.safetensors")
    with pytest.raises(RecipeError, match="remove it to start anew"):
        load_search(second, tmp_path / "drift.safetensors")  # no search's state
    assert torch.equal(load_params(str(tmp_path / "drift.safetensors"))["out"], whole.mean[16:])


def test_what_cannot_be_searched_on_is_said():
    with pytest.raises(RecipeError, match="tasks with choices; pendulum takes Box"):
        StackedTraining(Pendulum(), some_drifts(1), SHORT, seed=0)
    with pytest.raises(ValueError, match="exceeds the 64 decisions"):
        InnerRun(copies=2, horizon=32)
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        InnerRun(epochs=0)
    with pytest.raises(ValueError, match="2 members of 3 copies need 6"):
        Population(CartPole().make(4), 2, [1, 2, 3])


def test_the_command(tmp_path: Path):
    out = tmp_path / "d.safetensors"
    words = [
        "search-drift",
        "cart_pole",
        "--out",
        str(out),
        "--population",
        "2",
        "--env-steps",
        "1024",
        "--hidden",
        "2",
    ]
    done = CliRunner().invoke(app, [*words, "-n", "1"])
    assert done.exit_code == 0, done.output
    first = load_params(str(out))["hidden"]
    load_params.cache_clear()
    done = CliRunner().invoke(app, [*words, "-n", "2"])
    assert done.exit_code == 0, done.output
    assert not torch.equal(load_params(str(out))["hidden"], first)
    refused = CliRunner().invoke(app, ["search-drift", "arithmetic", "--out", str(out)])
    assert refused.exit_code != 0 and "is not; for instance cart_pole" in " ".join(refused.output.split())
