"""SAC, TD3, DDPG and hindsight: they solve what must be solved, go on bit for bit, and say what does not fit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from gainstage import checkpoint
from gainstage.episodes import play
from gainstage.ops.distributions import TanhGaussian, gaussian_log_prob, log_squash
from gainstage.recipe import load
from gainstage.registry import RecipeError
from gainstage.running import Run
from gainstage.trainer import RunError, Trainer
from gainstage.types import Batch

CONTINUOUS = ["sac", "td3", "ddpg"]
SMALL = [
    "models.policy.hidden=[32]", "models.critic.hidden=[32]", "plan.minibatch=32", "plan.updates=4",
    "rollout.env_steps.steps=10", "rollout.uniform_warmup.steps=20", "store.replay.least=20",
    "store.replay.capacity=40", "iterations=5", "budget={}",
]  # fmt: skip
GOALS = [
    "plan.minibatch=16", "plan.updates=3", "rollout.env_steps.steps=7", "rollout.env_steps.copies=3", "iterations=6",
    "budget={}", "store.episodes.capacity=90",
]  # fmt: skip
RESUMED = {
    "sac": ("sac", SMALL),
    "td3": ("td3", SMALL),
    "ddpg": ("ddpg", [*SMALL, "models.policy.normalise=true"]),
    "her": ("her", [*GOALS, "task={bit_flip: {bits: 5}}"]),
    "her_ddpg": ("her_ddpg", [*GOALS, "task={reach: {max_steps: 9}}", "models.policy.hidden=[16]"]),
    "sac_her": ("sac_her", [*GOALS, "task={reach: {max_steps: 9}}", "store.episodes.least=20"]),
}


def trained(name: str, *overrides: str) -> Trainer:
    made = Trainer(load(name, list(overrides)))
    made.run()
    return made


def weights(made: Trainer, role: str = "policy") -> dict[str, torch.Tensor]:
    return made.models[role].module.state_dict()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_every_algorithm_learns_to_answer_what_is_shown(name: str):
    """Two numbers have to be repeated; a random policy has -0.67 a step."""
    quick = ["rollout.env_steps.copies=16", "rollout.env_steps.steps=2", "rollout.uniform_warmup.steps=320"]
    quick += ["models.policy.hidden=[64]", "models.critic.hidden=[64]", "plan.updates=16", "plan.minibatch=64"]
    quick += [f"update.{part}.lr=5e-3" for part in ("td", "actor_value")]
    noise = ["update.entropy_temperature.lr=2e-2"] if name == "sac" else ["rollout.gaussian_noise.std=0.3"]
    made = trained(
        name, "task={identity: {space: box}}", f"credit.{'soft' if name == 'sac' else 'smoothed'}_target.gamma=0",
        "store.replay.least=320", "budget.env_steps=2000", *quick, *noise,
    )  # fmt: skip
    task = made.chain.task.it
    problems = [task.problems("validation")[i] for i in range(16)]
    records = play(task, made.models["policy"], problems, 1, explore=False)
    assert sum(a.reward for r in records for a in r.answers) / sum(a.length for r in records for a in r.answers) > -0.05


@pytest.mark.parametrize("kind", sorted(RESUMED))
def test_a_run_cut_after_every_iteration_ends_with_the_same_bits(kind: str, tmp_path: Path):
    """Weights, lagging copies, optimizers, the ring and its episodes all go on."""
    name, overrides = RESUMED[kind]
    recipe = load(name, overrides)
    whole = Trainer(recipe)
    whole.run()
    assert whole.meter.total("gradient_steps") > 0
    cut = Trainer(recipe)
    for _ in range(whole.iteration):
        cut.stop_requested = False
        cut.on_mark = lambda t: setattr(t, "stop_requested", True) or {}
        cut.run()
        checkpoint.save(tmp_path, cut.state_dict(), cut.models, fingerprint="")
        state, saved, _ = checkpoint.load(checkpoint.latest(tmp_path))
        cut = Trainer(recipe)
        cut.load_state_dict(state, saved)
    assert cut.finished
    for role in whole.models.handles:
        assert same(weights(whole, role), weights(cut, role)), role
    store, again = whole.chain.store.it, cut.chain.store.it
    assert store.clock == again.clock > store.length, "the ring has gone round"
    for column in store.columns:
        assert torch.equal(store.column(column), again.column(column)), column
    assert not same(weights(whole), weights(trained(name, *overrides, "seed=1")))


def test_copies_that_cannot_be_resumed_begin_anew_and_nothing_is_glued(tmp_path: Path):
    """They act on what they see, not on what was saved; the episodes that ran are cut off where they stopped."""
    pytest.importorskip("gymnasium")
    recipe = load("dqn", [
        "task={gymnasium: {id: CartPole-v1, exact_resume: false, stack: 2}}", "rollout.env_steps.copies=3",
        "rollout.env_steps.steps=5", "store.replay.n_step=3", "store.replay.least=10000", "budget={}", "iterations=2",
    ])  # fmt: skip
    first = Trainer(recipe)
    first.enter()
    first.iterate()
    checkpoint.save(tmp_path, first.state_dict(), first.models, fingerprint="")
    state, saved, _ = checkpoint.load(tmp_path / "000001")
    again = Trainer(recipe)
    with pytest.warns(UserWarning, match="every copy starts a new one"):
        again.load_state_dict(state, saved)
    engine, store = again.chain.rollout[-1].it, again.chain.store.it
    shown = engine.env.observation()
    assert torch.equal(engine.obs, shown) and torch.equal(shown[:, :4], shown[:, 4:]), "a stack of first observations"
    open_before = ~(store.columns["terminated"][4] | store.columns["cut"][4])
    assert open_before.any()
    again.iterate()
    assert torch.equal(store.columns["obs"][5], shown)
    assert torch.equal(store.columns["cut"][4], open_before) and not store.columns["terminated"][4].any()
    assert float(engine.episodes.lengths.max()) <= 5


def test_log_prob_of_squashed_actions():
    """Densities after the squash, at the mean, far out, and where tanh is 1 in float32."""
    one = TanhGaussian(torch.zeros(1, 1), torch.zeros(1, 1)).log_prob(torch.tensor([[1.0]]))
    assert one.item() == pytest.approx(-0.55138, abs=1e-5)
    assert one.item() - math.log(2) == pytest.approx(-1.24452, abs=1e-5), "in an action space of [-2, 2]"
    far = TanhGaussian(torch.full((1, 1), 10.0), torch.zeros(1, 1)).log_prob(torch.tensor([[10.0]]))
    assert torch.tanh(torch.tensor(10.0)) == 1
    assert far.item() == pytest.approx(17.6948, abs=1e-4)
    assert log_squash(torch.tensor(10.0)).item() == pytest.approx(-18.6137, abs=1e-4)
    raw = torch.linspace(-30, 30, 601, dtype=torch.float64)
    exact = 2 * (math.log(2) - raw.abs() - torch.log1p(torch.exp(-2 * raw.abs())))
    assert torch.allclose(log_squash(raw.float()).double(), exact, atol=1e-5, rtol=1e-6)


def test_the_actor_says_the_log_prob_of_what_it_drew():
    """Against the density of the draw before the squash and the exact correction, also where the mean is 10."""
    actor = Trainer(load("sac", SMALL)).models["policy"]
    actor.module.out.bias.data[:1] = 10.0
    torch.manual_seed(0)
    obs = torch.randn(500, 3)
    action, logp = actor.sample(obs)
    torch.manual_seed(0)
    torch.randn(500, 3)
    mean, log_std = actor.module(obs)
    raw = (mean + log_std.exp() * torch.randn_like(mean)).double()
    exact = gaussian_log_prob(raw, mean.double(), log_std.double()) - log_squash(raw).sum(-1)
    assert torch.allclose(action.double(), torch.tanh(raw), atol=1e-6)
    assert torch.allclose(logp.double(), exact, atol=2e-5) and bool(torch.isfinite(logp).all())
    logp.sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in actor.module.parameters())


def test_the_integral_of_the_density_is_one():
    mean, log_std = torch.tensor([[0.4]]), torch.tensor([[-0.5]])
    edges = torch.linspace(-1 + 1e-6, 1 - 1e-6, 200_001, dtype=torch.float64)
    density = TanhGaussian(mean.double(), log_std.double()).log_prob(torch.atanh(edges).unsqueeze(1)).exp()
    assert torch.trapezoid(density, edges).item() == pytest.approx(1.0, abs=1e-4)


def test_td3_moves_its_actor_and_all_lagging_copies_at_every_second_step():
    made = Trainer(load("td3", [*SMALL, "plan.updates=1"]))
    made.enter()
    for _ in range(2):  # fills the ring; the second iteration makes the first update
        made.iterate()
    seen = {role: {k: v.clone() for k, v in weights(made, role).items()} for role in made.models.handles}
    made.iterate()
    moved = {role: not same(weights(made, role), old) for role, old in seen.items()}
    assert made.due == {"update.td": 2, "update.actor_value": 2}
    assert moved == {"policy": True, "critic": True, "policy_target": True, "critic_target": True}
    seen = {role: {k: v.clone() for k, v in weights(made, role).items()} for role in made.models.handles}
    made.iterate()
    moved = {role: not same(weights(made, role), old) for role, old in seen.items()}
    assert moved == {"policy": False, "critic": True, "policy_target": False, "critic_target": False}


def test_the_lagging_critic_follows_by_tau_and_critics_get_no_gradient_from_the_actor():
    made = Trainer(load("sac", [*SMALL, "plan.updates=1"]))
    made.enter()
    made.iterate()
    lagging = {k: v.clone() for k, v in weights(made, "critic_target").items()}
    made.iterate()
    for key, value in weights(made, "critic_target").items():
        assert torch.allclose(value, lagging[key].lerp(weights(made, "critic")[key], 0.005), atol=1e-8)
    assert all(p.requires_grad for p in made.models["critic"].module.parameters())
    assert not any(p.requires_grad for p in made.models["critic_target"].module.parameters())


def test_a_target_that_is_not_finite_stops_the_run_with_the_weights_as_before():
    made = Trainer(load("sac", SMALL))
    made.enter()
    for _ in range(3):
        made.iterate()
    before = {role: {k: v.clone() for k, v in weights(made, role).items()} for role in made.models.handles}
    part = made.chain.credit[0].it
    part.estimate = lambda batch, ctx: {"returns": torch.full((batch.rows, 1), math.nan)}
    with pytest.raises(RunError, match=r"update\.td: the loss is nan.*No weight was changed"):
        made.iterate()
    assert all(same(weights(made, role), old) for role, old in before.items())
    assert isinstance(made.failed_batch, Batch)


@pytest.mark.parametrize(
    ("name", "overrides", "says"),
    [
        ("sac", ["task=cart_pole"], r"acts in continuous bounds; the task's actions are Discrete\(2\)"),
        ("td3", ["task=acrobot"], "Use a method for choices"),
        ("her", ["task=reach"], "q_network values choices"),
        ("sac", ["task=arithmetic"], "needs a task that offers 'simulator'"),
        ("td3", ["rollout.gaussian_noise.std=-1"], "std must be a finite number of at least 0, got -1"),
        ("td3", ["rollout.gaussian_noise.std=.inf"], "std must be a finite number of at least 0, got inf"),
        ("sac", ["rollout.uniform_warmup.steps=-1"], "steps must be at least 0, got -1"),
        ("sac", ["update.td.weight_decay=0.1"], "optimizer adam has no weight decay"),
        ("her_ddpg", ["update.actor_value.action_l2=-1"], "action_l2 must be at least 0"),
        ("her_ddpg", ["update.observation_statistics.fit_at=before_update"], "set fit_at to after_update"),
        ("her_ddpg", ["rollout.random_actions.share=2"], r"share must lie in \[0, 1\]"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(name: str, overrides: list[str], says: str):
    with pytest.raises((RecipeError, ValueError), match=says):
        trained(name, "iterations=1", "budget={}", *overrides)


def test_a_run_that_never_learned_says_so():
    said: list[str] = []
    run = Run(load("dqn", ["budget.env_steps=300", "evaluate.problems=1", "evaluate.every=1"]), warn=said.append)
    record = run.execute()
    assert any("no optimizer step was made" in text for text in said)
    assert any("no optimizer step was made" in note for note in record.notes)


def test_goal_statistics_see_goals_in_hindsight():
    """The asked goals spread over the whole square; those of hindsight lie where the point has been."""
    small = [*GOALS, "task={reach: {max_steps: 9}}", "models.policy.hidden=[16]", "models.critic.hidden=[16]"]
    drawn, fresh = (
        Trainer(load("her_ddpg", [*small, f"update.observation_statistics.of={of}", "select.hindsight.k=50"]))
        for of in ("draws", "fresh")
    )
    spreads = []
    for made in (drawn, fresh):
        made.run()
        statistics = made.models["policy"].module.trunk.encoder.statistics
        assert type(statistics).__name__ == "GoalNormalizer" and statistics.clip == 5 and statistics.floor == 0.01
        assert float(statistics.count) > 0
        spreads.append(float(statistics.var[-2:].mean()))
    assert spreads[0] < 0.5 * spreads[1]


def test_a_goal_of_little_spread_is_seen_within_bounds():
    from gainstage.policies.control.normalizers import GoalNormalizer

    seen = GoalNormalizer((2,))
    seen.update(torch.tensor([[1.0, 0.0], [1.0, 2.0]]))
    assert torch.allclose(seen(torch.tensor([[1.02, 1.0], [9.0, -9.0]])), torch.tensor([[2.0, 0.0], [5.0, -5.0]]))


def test_actions_at_random_come_as_often_as_asked():
    made = trained(
        "her_ddpg", *GOALS, "rollout.gaussian_noise.std=0", "rollout.random_actions.share=0.3", "iterations=1"
    )
    actor = made.chain.rollout[1].it.wrap(made.models["policy"], made.ctx)
    obs = torch.rand(4000, 8)
    plain = made.models["policy"].act(obs).action
    other = (actor.act(obs).action != plain).any(1).float().mean()
    assert float(other) == pytest.approx(0.3, abs=0.03)
    assert torch.equal(actor.act(obs, explore=False).action, plain)
