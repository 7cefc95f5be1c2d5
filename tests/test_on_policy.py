"""On-policy recipes on stepped tasks: they solve what must be solved, go on bit for bit, and say what does not fit."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from gainstage import checkpoint
from gainstage.chain import build_chain
from gainstage.episodes import play
from gainstage.recipe import load
from gainstage.registry import RecipeError, build
from gainstage.running import Run
from gainstage.tracking.folder import RunFolder
from gainstage.trainer import RunError, Trainer
from gainstage.types import Batch

FAST = "[{env_steps: {copies: 16, steps: 16}}]"
SPEED = {
    "ppo": ["update.policy.lr=5e-3", "plan.minibatch=64", "credit.gae.gamma=0"],
    "a2c": ["update.policy.lr=7e-3", "credit.gae.gamma=0"],
    "reinforce_control": ["update.policy.lr=2e-2", "credit.discounted.gamma=0"],
    "trpo": ["update.policy.delta=0.1", "credit.gae.gamma=0", "plan.epochs=3"],
    "entrpo": ["update.policy.delta=0.1", "credit.gae.gamma=0", "plan.epochs=3"],
}
"""Settings that make small tasks a matter of seconds."""
SMALL = ["iterations=3", "rollout.env_steps.steps=16", "evaluate.problems=4"]


def trained(name: str, *overrides: str) -> Trainer:
    made = Trainer(load(name, list(overrides)))
    made.run()
    return made


def mean_reward(made: Trainer, starts: int = 16) -> float:
    """Mean reward of a step over whole episodes with the likeliest action."""
    task = made.chain.task.it
    problems = [task.problems("validation")[i] for i in range(starts)]
    records = play(task, made.models["policy"], problems, 1, explore=False)
    return sum(a.reward for r in records for a in r.answers) / sum(a.length for r in records for a in r.answers)


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    return made.models["policy"].module.state_dict()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


# -- what must be solved ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ppo", "a2c", "reinforce_control", "trpo", "entrpo"])
def test_every_algorithm_learns_to_answer_what_is_shown(name: str):
    """A random policy has 1/3 of the reward."""
    made = trained(name, "task={identity: {}}", f"rollout={FAST}", "budget.env_steps=6000", *SPEED[name])
    assert mean_reward(made) > 0.95


def test_a3c_does_too():
    workers = "[{stale_actors: {workers: 4, lag: 3}}, {env_steps: {copies: 16, steps: 16}}]"
    made = trained("a3c", "task={identity: {}}", f"rollout={workers}", "budget.env_steps=6000", *SPEED["a2c"])
    assert mean_reward(made) > 0.95


SIGHTS = [(space, view) for space in ("multi_discrete", "multi_binary", "box") for view in ("plain", "pieces")]


@pytest.mark.parametrize(("space", "view"), [*SIGHTS, ("discrete", "picture")])
def test_ppo_answers_in_every_space_what_it_sees_in_every_view(space: str, view: str):
    """A random policy has -0.67 for numbers, 1/3 or 1/2 for choices."""
    eyes = ["models.policy.shared=true", "models.policy.hidden=[64]", "update.policy.lr=1e-3"]
    made = trained(
        "ppo", f"task={{identity: {{space: {space}, view: {view}}}}}", f"rollout={FAST}", "budget.env_steps=4000",
        "update.policy.schedule=constant", *SPEED["ppo"], *(eyes if view == "picture" else []),
    )  # fmt: skip
    assert mean_reward(made) > (-0.15 if space == "box" else 0.9)


def test_only_a_policy_that_remembers_answers_what_was_shown_before():
    task, steps = "task={memory_cue: {delay: 3}}", "budget.env_steps=8000"
    made = trained("ppo_recurrent", task, steps, "update.policy.lr=5e-3", "rollout.env_steps.steps=32")
    assert mean_reward(made, 64) * 4 > 0.95
    blind = trained("ppo", task, "budget.env_steps=4000", f"rollout={FAST}", *SPEED["ppo"])
    assert mean_reward(blind, 64) * 4 < 0.75


# -- going on ---------------------------------------------------------------------------------------------------------

RESUMED = {
    "plain": ("ppo", []),
    "truncated": ("ppo", ["task={cart_pole: {max_steps: 7}}"]),
    "recurrent": ("ppo_recurrent", []),
    "lstm": ("ppo_recurrent", ["models.policy.core=lstm"]),
    "normalised": ("ppo_continuous", ["plan.minibatch=8", "plan.epochs=2", "rollout.env_steps.copies=3"]),
    "rmsprop": ("a2c", []),
    "trust": ("trpo", ["plan.epochs=1"]),
    "whole": ("reinforce_control", ["rollout.env_steps.steps=40"]),
}


@pytest.mark.parametrize("kind", sorted(RESUMED))
def test_a_run_cut_after_every_iteration_ends_with_the_same_bits(kind: str, tmp_path: Path):
    name, overrides = RESUMED[kind]
    recipe = load(name, [*SMALL, *overrides])
    whole = Trainer(recipe)
    whole.run()
    cut = Trainer(recipe)
    for _ in range(whole.iteration):
        cut.stop_requested = False
        cut.on_mark = lambda t: setattr(t, "stop_requested", True) or {}
        cut.run()
        checkpoint.save(tmp_path, cut.state_dict(), cut.models, fingerprint="")
        state, saved, _ = checkpoint.load(checkpoint.latest(tmp_path))
        cut = Trainer(recipe)
        cut.load_state_dict(state, saved)
    assert cut.finished and same(weights(whole), weights(cut))
    spent = [{k: v for k, v in t.meter.snapshot().items() if k != "seconds"} for t in (whole, cut)]
    assert spent[0] == spent[1]
    other = trained(name, *SMALL, *overrides, "seed=1")
    assert not same(weights(whole), weights(other))


# -- statistics do not move by looking --------------------------------------------------------------------------------


def test_normalisers_are_frozen_in_evaluation_and_restored_to_the_bit(tmp_path: Path):
    """Mean 1, variance 1, count 1000: an observation of 5 is seen as 4, each time, before and after saving."""
    made = Trainer(load("ppo_continuous", ["task=pendulum"]))
    policy = made.models["policy"]
    statistics = policy.module.actor.encoder.statistics
    statistics.mean.fill_(1.0), statistics.var.fill_(1.0), statistics.count.fill_(1000.0)
    assert torch.equal(statistics(torch.full((2, 3), 5.0)), torch.full((2, 3), 4.0))
    task = made.chain.task.it
    problems = [task.problems("validation")[i] for i in range(3)]
    first, second = (play(task, policy, problems, 1, explore=False) for _ in range(2))
    assert first == second
    assert [float(x.flatten()[0]) for x in (statistics.mean, statistics.var, statistics.count)] == [1.0, 1.0, 1000.0]
    policy.save(tmp_path)
    other = Trainer(load("ppo_continuous", ["task=pendulum", f"models.policy.weights={tmp_path}", "seed=7"]))
    assert play(task, other.models["policy"], problems, 1, explore=False) == first
    assert same(weights(made), weights(other))


def test_statistics_follow_training_once_an_iteration_and_rewards_are_reported_raw():
    rows: list[dict] = []
    batches: list[Batch] = []
    made = Trainer(
        load("ppo_continuous", [*SMALL, "plan.minibatch=8", "plan.epochs=1"]), on_row=rows.append,
        on_batch=lambda i, batch: batches.append(batch),
    )  # fmt: skip
    made.run()
    statistics = made.models["policy"].module.actor.encoder.statistics
    seen = torch.cat([batch["obs"][:, :-1].flatten(0, 1) for batch in batches]).double()
    assert float(statistics.count) == len(seen) == 48
    assert torch.allclose(statistics.mean, seen.mean(0)) and torch.allclose(statistics.var, seen.var(0, unbiased=False))
    assert rows[0]["reward/mean"] < -1 and rows[0]["reward/scale"] > 1, "pendulum pays -8 a step or so"
    assert float(batches[0]["rewards"].mean()) == pytest.approx(
        rows[0]["reward/mean"] / rows[0]["reward/scale"], rel=1e-4
    )
    with pytest.raises(RecipeError, match=r"role 'policy' keeps no statistics; set models\.policy\.normalise=true"):
        trained("ppo_continuous", *SMALL, "models.policy.normalise=false")


# -- what a run leaves and says ---------------------------------------------------------------------------------------


def test_a_run_writes_no_answers_and_a_card_of_a_net(tmp_path: Path):
    recipe = load("ppo", [*SMALL, "evaluate.problems=5"])
    folder = RunFolder.create("a", parent=tmp_path)
    with folder:
        record = Run(recipe, folder).execute()
    assert not list((tmp_path / "a" / "rollouts").glob("*.parquet"))
    card = (tmp_path / "a" / "final" / "README.md").read_text()
    assert "library_name: gainstage" in card and "AutoModel" not in card and "5 starts" in card
    assert json.loads((tmp_path / "a" / "final" / "config.json").read_text())["net"] == "actor_critic"
    assert record.numbers()["eval/cart_pole/reward/mean"] > 0
    again = Trainer(load("ppo", [f"models.policy.weights={tmp_path / 'a' / 'final'}"]))
    assert all(bool(torch.isfinite(value).all()) for value in weights(again).values())


def test_a_loss_that_is_not_finite_stops_the_run_with_the_weights_as_before():
    made = Trainer(load("ppo", SMALL))
    made.enter()
    made.iterate()
    before = {key: value.clone() for key, value in weights(made).items()}
    part = made.chain.credit[-1].it
    whiten = part.assign
    part.assign = lambda batch: {"advantages": torch.full_like(whiten(batch)["advantages"], math.nan)}
    with pytest.raises(RunError, match=r"update\.policy: the loss is nan.*No weight was changed"):
        made.iterate()
    assert same(weights(made), before)


@pytest.mark.parametrize(
    ("name", "overrides", "says"),
    [
        ("ppo", ["task=arithmetic"], "rollout.env_steps needs a task that offers 'simulator'"),
        ("ppo", ["models.policy.head=tanh"], r"head tanh is for continuous actions; Discrete\(2\) takes head: auto"),
        ("ppo", ["models.policy.normalise=true", "task={identity: {view: picture}}"], "normalise is for vectors"),
        ("ppo", ["models.policy.streams=0"], "widths|streams"),
        ("ppo", ["models.policy.hidden=[0]"], "at least 1"),
        ("ppo", ["rollout.env_steps.copies=0"], "copies must be at least 1"),
        ("ppo", ["rollout=[{epsilon_greedy: {}}, {env_steps: {}}]", "task=pendulum"], "use gaussian_noise"),
        ("grpo", ["task=cart_pole"], "needs a task that offers"),
        ("ppo_recurrent", ["plan.unit=step"], "remembers what came before"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(name: str, overrides: list[str], says: str):
    with pytest.raises((RecipeError, ValueError), match=says):
        trained(name, "iterations=1", *overrides)


def test_paired_seeds_share_weights_and_starts():
    one, two = (Trainer(load(name, ["seed=3"])) for name in ("ppo", "trpo"))
    assert same(weights(one), weights(two))
    for made in (one, two):
        made.enter()
    assert torch.equal(one.chain.rollout[0].it.obs, two.chain.rollout[0].it.obs)
    assert build("task", "cart_pole").problems("train")[0] != build("task", "cart_pole").problems("validation")[0]


def test_a_reward_that_nobody_would_ask_is_refused():
    with pytest.raises(RecipeError, match=r"reward\.task_verdict would never be asked"):
        build_chain(load("ppo", ["reward=[task_verdict]"]))
