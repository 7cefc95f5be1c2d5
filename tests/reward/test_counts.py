"""Counts and impact: worked numbers, what is one state, episodes, restarts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gainstage.checkpoint import pack, unpack
from gainstage.models.representation import (
    TransitionEmbedding,
    action_vector,
    action_width,
    forward_error,
    inverse_error,
)
from gainstage.ops.meters import NoMeter
from gainstage.policies.snapshots import weights
from gainstage.recipe import load
from gainstage.registry import RecipeError, build
from gainstage.reward.intrinsic.counts import CountBonus, Counter, Counting, count_bonus, impact, keys_of
from gainstage.reward.intrinsic.embeddings import ImpactBonus, reverts
from gainstage.trainer import Trainer
from gainstage.types import Batch
from gainstage.types.spaces import Box, Discrete, MultiBinary

PHI = torch.tensor([[0.0, 0.0], [0.3, 0.4], [0.3, 0.4], [0.0, 0.0], [0.6, 0.8]])
CTX: Any = SimpleNamespace(log=lambda *a: None, meter=NoMeter())


def walk(states: list[list[float]], starts: list[int] = [0]) -> Batch:  # noqa: B006
    """One copy that walks over states; an episode that begins at step s > 0 begins at the state itself."""
    obs = torch.tensor(states).unsqueeze(0)
    steps = obs.shape[1] - 1
    start = torch.zeros(1, steps, dtype=torch.bool)
    start[0, starts] = True
    return Batch({
        "mask": torch.ones(1, steps, dtype=torch.bool), "obs": obs, "next_obs": obs[:, 1:], "start": start,
        "rewards": torch.zeros(1, steps), "actions": torch.zeros(1, steps, dtype=torch.int64),
    })  # fmt: skip


WALK = [[0.0], [1.0], [1.0], [0.0], [2.0]]  # a, b, b, a, c


def test_impact_over_the_root_of_the_count():
    batch = walk(WALK)
    Counting("episode").observe(batch, CTX)
    assert batch["visit_counts"].tolist() == [[1, 2, 2, 1]]
    paid = impact(PHI[:-1], PHI[1:], batch["visit_counts"][0])
    assert torch.allclose(paid, torch.tensor([0.5, 0.0, 0.3535534, 1.0]))
    total = (torch.tensor([0.0, 0.0, 0.0, 1.0]) + 0.5 * paid).clamp(-1, 1)
    assert torch.allclose(total, torch.tensor([0.25, 0.0, 0.1767767, 1.0]))


def test_losses_of_the_embedding():
    guess, a = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])
    inverse = inverse_error(guess, a, Discrete(3))
    ahead = forward_error(torch.tensor([[0.25, 0.45]]), torch.tensor([[0.3, 0.4]]))
    assert abs(float(inverse) - 0.1698460) < 1e-6 and abs(float(ahead) - 0.0707107) < 1e-6
    assert abs(float(10 * ahead + 0.1 * inverse) - 0.7240914) < 1e-5


def test_gradients_of_both_losses_reach_the_embedding_and_are_finite_at_zero():
    nets = TransitionEmbedding(torch.nn.Linear(3, 4), 4, Discrete(2))
    obs, after, actions = torch.randn(5, 3), torch.randn(5, 3), torch.randint(2, (5,))
    for which in (0, 1):
        nets.zero_grad()
        nets.errors(obs, after, actions)[which].sum().backward()
        assert nets.trunk.weight.grad.abs().sum() > 0
    same = torch.zeros(2, 3, requires_grad=True)
    forward_error(same, same.detach()).sum().backward()
    assert torch.isfinite(same.grad).all()


def test_actions_of_other_kinds():
    box = Box.of(-1, 1, (2,))
    assert action_width(box) == 2 and action_width(MultiBinary(3)) == 3 and action_width(Discrete(4)) == 4
    actions = torch.tensor([[0.5, -0.5]])
    assert torch.equal(action_vector(actions, box), actions)
    assert torch.allclose(inverse_error(torch.zeros(1, 2), actions, box), torch.tensor([0.25]))


def test_a_visit_has_to_be_counted_before_it_is_paid_for():
    with pytest.raises(ValueError, match="counted before it is paid for"):
        count_bonus(torch.tensor([1, 0]))
    with pytest.raises(FloatingPointError, match="not finite"):
        impact(torch.full((1, 2), torch.nan), torch.zeros(1, 2), torch.ones(1))


def test_an_episode_starts_from_empty_counts_and_its_first_state_counts():
    batch = walk([[0.0], [1.0], [0.0], [1.0], [0.0]], starts=[0, 2])
    Counting("episode").observe(batch, CTX)
    # a | b 1, a 2 | begins at a: b 1, a 2
    assert batch["visit_counts"].tolist() == [[1, 2, 1, 2]]
    life = walk([[0.0], [1.0], [0.0], [1.0], [0.0]], starts=[0, 2])
    Counting("life").observe(life, CTX)
    assert life["visit_counts"].tolist() == [[1, 1, 2, 2]]


def test_counts_go_on_over_fragments_and_copies_do_not_mix():
    whole, parts = Counting("episode"), Counting("episode")
    batch = walk(WALK)
    whole.observe(batch, CTX)
    first = walk(WALK[:3])
    second = walk(WALK[2:], starts=[])
    parts.observe(first, CTX)
    parts.observe(second, CTX)
    assert torch.equal(torch.cat((first["visit_counts"], second["visit_counts"]), 1), batch["visit_counts"])
    table = Counter(2)
    assert table.update(torch.tensor([7, 7])).tolist() == [1, 1]
    table.reset([True, False])
    assert table.update(torch.tensor([7, 7])).tolist() == [1, 2]


def test_what_is_one_state():
    x = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [0.1, 1.0], [1.0, 0.0]])
    exact = keys_of(x)
    assert exact[0] == exact[1] and len(set(exact.tolist())) == 3
    cells = keys_of(x, torch.tensor([0.25, 1.0]))
    assert cells[0] == cells[2] != cells[3]
    pictures = torch.randint(0, 256, (500, 7, 7, 3), dtype=torch.uint8)
    assert len(set(keys_of(pictures).tolist())) == 500


def test_continuous_states_get_cells_of_a_quarter_std():
    torch.manual_seed(0)
    counting = Counting("episode")
    batch = walk((torch.randn(201, 2) * torch.tensor([1.0, 100.0])).tolist())
    counting.observe(batch, CTX)
    assert torch.allclose(counting.size, batch["next_obs"][0].double().std(0, unbiased=False) / 4)
    assert int(batch["visit_counts"].max()) > 1


def test_counts_that_never_exceed_one_are_said():
    counting = Counting("episode", cell="exact")
    with pytest.warns(UserWarning, match="never exceed 1"):
        for n in range(101):
            counting.observe(walk([[n + 0.5], [n + 0.25]]), CTX)


def test_degenerate_masks_and_facts():
    batch = walk(WALK)
    batch["mask"][0, 1] = False
    bonus = CountBonus("episode")
    bonus.observe(batch, CTX)
    paid = bonus.shape(batch, CTX)
    assert batch["visit_counts"].tolist() == [[1, 1, 2, 1]] and paid[0, 1] == 0
    with pytest.raises(RecipeError, match="does not tell it"):
        Counting("life", key="info/place").observe(walk(WALK), CTX)
    with pytest.raises(RecipeError, match="2 sizes for 1 dimensions"):
        Counting("life", cell=[1.0, 1.0]).observe(walk([[0.5], [0.7]]), CTX)
    for name, settings in (("count_bonus", {"cell": 0.0}), ("impact_bonus", {"clip": -1.0}),
                           ("impact_bonus", {"use_counts": False, "use_impact": False})):  # fmt: skip
        with pytest.raises(RecipeError):
            build("reward", name, settings)


def started(**settings: Any) -> ImpactBonus:
    torch.manual_seed(0)
    bonus = ImpactBonus(features=8, hidden=[8], **settings)
    task = SimpleNamespace(observation_space=Box.of(-5, 5, (1,)), action_space=Discrete(2))
    bonus.start(SimpleNamespace(task=task, device=torch.device("cpu")))  # type: ignore[arg-type]
    return bonus


def test_the_bonus_and_its_two_ablations():
    batch = walk(WALK)
    whole, no_counts, only_counts = started(), started(use_counts=False), started(use_impact=False)
    for bonus in (whole, no_counts, only_counts):
        bonus.observe(batch, CTX)
    change = torch.linalg.vector_norm(whole.embed(batch["next_obs"]) - whole.embed(batch["obs"][:, :-1]), dim=-1)
    root = batch["visit_counts"].float().sqrt()
    assert change[0, 1] == 0  # nothing changed
    assert torch.allclose(whole.bonus(batch), change / root)
    assert torch.allclose(no_counts.bonus(batch), change)
    assert torch.allclose(only_counts.bonus(batch), 1 / root)


def test_going_to_and_fro_is_seen():
    batch = walk([[0.0], [1.0], [0.0], [0.0], [0.0], [1.0], [0.0]], starts=[0, 4])
    assert reverts(batch["obs"], batch["next_obs"], batch["start"]).tolist() == [
        [False, True, False, False, False, True]
    ]


def test_it_says_how_much_more_deeds_change_than_moves_do():
    said: dict[str, float] = {}
    ctx: Any = SimpleNamespace(log=said.__setitem__, meter=NoMeter())
    batch, bonus = walk(WALK), started()
    bonus.observe(batch, ctx)
    assert said["bonus/reverts"] == 0 and "bonus/deeds" not in said
    batch.columns["info/opened"] = torch.tensor([[False, False, False, True]])
    bonus.observe(batch, ctx)
    change = torch.linalg.vector_norm(bonus.embed(batch["next_obs"]) - bonus.embed(batch["obs"][:, :-1]), dim=-1)[0]
    assert said["bonus/deeds"] == pytest.approx(float(change[3] / change[:3].mean()))


def test_a_clip_that_hides_the_tasks_rewards_is_refused():
    batch = walk(WALK)
    bonus = started(bonus_weight=1000.0)
    bonus.observe(batch, CTX)
    with pytest.raises(ValueError, match=r"lower reward\.impact_bonus\.bonus_weight"):
        bonus.shape(batch, CTX)
    open_ended = started(bonus_weight=1000.0, clip=0.0)
    assert float(open_ended.shape(batch, CTX).max()) > 1


def test_a_flat_embedding_is_said():
    bonus = started()
    for parameter in bonus.nets.trunk.parameters():
        parameter.data.zero_()
    batch = walk(WALK)
    batch.columns["actions"] = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.warns(UserWarning, match="tells no states apart"):
        bonus.fit(SimpleNamespace(fresh=batch, meter=NoMeter(), log=lambda *a: None))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ride", "ppo_counts"])
def test_a_restart_keeps_nets_and_counts(name: str):
    """Three iterations in one go, and two, a checkpoint's file, one more: bit for bit."""
    small = ["iterations=3", "rollout.env_steps.copies=4", "rollout.env_steps.steps=16", "plan.minibatch=16",
             "evaluate.problems=2"]  # fmt: skip
    whole, first, second = (Trainer(load(name, small)) for _ in range(3))
    whole.run()
    first.enter()
    for _ in range(2):
        first.iterate()
        first.schedule.advance()
    tensors: dict[str, Tensor] = {}
    saved = unpack(pack(first.state_dict(), tensors), tensors)
    second.load_state_dict(saved, {"policy": weights(first.models["policy"])})
    second.run()
    for key, value in whole.models["policy"].module.state_dict().items():
        assert torch.equal(value, second.models["policy"].module.state_dict()[key]), key
    counters = [part.it for part in (whole.chain.reward[-1], second.chain.reward[-1])]
    a, b = (getattr(it, "counting", it).counter for it in counters)
    assert a.tables == b.tables and a.distinct > 0


def test_curiosity_is_half_the_squared_forward_error():
    torch.manual_seed(0)
    bonus = build("reward", "curiosity_bonus", {"features": 4, "hidden": [4]})
    task = SimpleNamespace(observation_space=Box.of(-5, 5, (1,)), action_space=Discrete(2))
    bonus.start(SimpleNamespace(task=task, device=torch.device("cpu")))
    batch = walk(WALK)
    batch["mask"][0, 2] = False
    paid = bonus.shape(batch, CTX)
    ahead = bonus.nets.predict(bonus.embed(batch["obs"][:, :-1])[0], batch["actions"][0])
    want = 0.5 * (ahead - bonus.embed(batch["next_obs"])[0]).square().sum(-1)
    assert torch.allclose(paid[0, [0, 1, 3]], want[[0, 1, 3]]) and paid[0, 2] == 0
