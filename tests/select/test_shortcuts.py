"""Shortcuts through positioning logs: worked numbers, the closed form of the gain, what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gainstage.ops.shortcuts import arrivals_differ, candidates, shortcuts
from gainstage.recipe import load
from gainstage.trainer import Trainer

MOVES = torch.tensor([[-1.0, 0]] * 4 + [[0, -1.0]] * 3)
PLACES = torch.cat((torch.zeros(1, 2), MOVES.cumsum(0))) + torch.tensor([4.0, 3.0])
REWARDS = -PLACES[1:].norm(dim=1)


def listed(found):
    return [(s.start, s.stop, tuple(round(x, 4) for x in s.action.tolist()), round(s.gain, 4)) for s in found]


def test_worked_example():
    far = listed(shortcuts(MOVES, REWARDS, 5, 0.9, places=PLACES))
    assert far[0] == (0, 7, (-4.0, -3.0), 14.1388) and far[4] == (4, 7, (0.0, -3.0), 2.9)
    near = listed(shortcuts(MOVES, REWARDS, 2, 0.9, places=PLACES))
    assert near == [
        (0, 2, (-2.0, 0.0), 3.1431), (1, 3, (-2.0, 0.0), 2.7844), (2, 4, (-2.0, 0.0), 2.6013),
        (3, 5, (-1.0, -1.0), 2.71), (4, 6, (0.0, -2.0), 1.9), (5, 7, (0.0, -2.0), 1.0),
    ]  # fmt: skip


@given(st.integers(0, 10_000), st.floats(0.5, 1.0))
def test_gain_is_what_was_skipped(seed, gamma):
    """`(1 - gamma^m) (r_j + gamma G_j)` less the discounted rewards of the m steps left out."""
    g = torch.Generator().manual_seed(seed)
    steps = 6
    moves = torch.randn(steps, 2, generator=g) * 0.3
    rewards = -torch.rand(steps, generator=g).double()
    found = candidates(moves, rewards, 10.0, gamma, margin=-1e9)
    togo = [0.0] * (steps + 1)
    for t in reversed(range(steps)):
        togo[t] = float(rewards[t]) + gamma * togo[t + 1]
    for i in range(steps - 1):
        for j in range(i + 2, steps + 1):
            skipped = j - i - 1
            plain = (1 - gamma**skipped) * (float(rewards[j - 1]) + gamma * togo[j])
            plain -= sum(gamma ** (k - i - 1) * float(rewards[k - 1]) for k in range(i + 1, j))
            # the log pays the skipped steps and then reaches j late: both sides count from step i
            assert float(found.gain[i, j]) == pytest.approx(plain, abs=1e-9)
    undiscounted = candidates(moves, rewards, 10.0, 1.0, margin=-1e9)
    upper = torch.ones(steps + 1, steps + 1).triu(2).bool()
    assert bool((undiscounted.gain[upper] >= -1e-12).all())


def test_distortion_is_seen_and_a_known_one_allowed():
    half = torch.cat((torch.zeros(1, 2), (MOVES * 0.5).cumsum(0)))
    assert shortcuts(MOVES, REWARDS, 5, 0.9, places=half) == []
    assert shortcuts(MOVES, REWARDS, 5, 0.9, places=half, matrix=0.5 * torch.eye(2))
    assert shortcuts(MOVES, REWARDS, 5, 0.9, places=half, kappa=None)
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    turned = torch.cat((torch.zeros(1, 2), (MOVES @ turn).cumsum(0)))
    assert shortcuts(MOVES, REWARDS, 5, 0.9, places=turned)  # keeps lengths


def test_degenerate_logs():
    assert shortcuts(MOVES[:1], REWARDS[:1], 5) == []
    assert shortcuts(MOVES, REWARDS, 5, margin=float("inf")) == []
    assert shortcuts(MOVES, REWARDS, 0.5) == []  # nothing skips a step
    with pytest.raises(ValueError, match="a_max"):
        shortcuts(MOVES, REWARDS, 0.0)
    sparse = torch.tensor([0.0] * 6 + [1.0])
    assert {s.stop for s in shortcuts(MOVES, sparse, 5, 0.9)} == {7}  # only arriving pays


def test_per_axis_bound_and_action_cost():
    assert not candidates(MOVES, REWARDS, 4.0).allowed[0, 7]
    assert candidates(MOVES, REWARDS, 4.0, per_axis=True).allowed[0, 7]
    cost = 0.1
    paid = REWARDS - cost * MOVES.square().sum(1)
    found = candidates(MOVES, paid, 5.0, 0.9, action_cost=cost)
    assert float(found.reward[0, 7]) == pytest.approx(0 - cost * 25, abs=1e-6)


def test_any_cost_of_moves_can_be_told():
    fee = REWARDS - 0.3 * MOVES.norm(dim=1)  # a fee for the way, not its square
    found = candidates(MOVES, fee, 5.0, 0.9, action_cost=lambda moves: 0.3 * moves.norm(dim=-1))
    assert float(found.reward[0, 7]) == pytest.approx(-1.5, abs=1e-6)  # as long as the way straight: 5


def test_rewards_that_hang_on_the_move_are_noticed():
    places = torch.tensor([[1.0, 0], [2, 0], [1, 0], [0, 0]])
    pays = -places.norm(dim=1)
    assert not arrivals_differ(places, pays)
    assert arrivals_differ(places, pays - torch.tensor([0.0, 0, 0.5, 0]))
    assert not arrivals_differ(places[1:], pays[1:] - torch.tensor([0.0, 0.5, 0]))  # no place twice: nothing is known


LOG = "task={recorded: {task: {positioning: {dims: 2}}, mix: walk, episodes: 4}}"
SMALL = [
    LOG,
    "iterations=2",
    "plan.updates=3",
    "plan.minibatch=16",
    "models.policy.hidden=[8]",
    "models.critic.hidden=[8]",
]


SAME = [  # what the recipe changes beside the shortcuts
    "credit.smoothed_target.noise=0.05", "credit.smoothed_target.noise_clip=0.1", "update.td.schedule=cosine",
    "update.behaviour_term.schedule=cosine",
]  # fmt: skip


def final(method, *more):
    trainer = Trainer(load(method, [*SMALL, *more]))
    trainer.run()
    return trainer, {k: v.clone() for k, v in trainer.models["policy"].module.state_dict().items()}


def test_no_shortcut_is_the_raw_learner_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("GAINSTAGE_CACHE", str(tmp_path))
    _, raw = final("td3_bc", *SAME)
    with pytest.warns(UserWarning, match="no shortcut was accepted"):
        _, none = final("shortcut_augmentation", "select.shortcuts.margin=1e12")
    _, some = final("shortcut_augmentation")
    assert all(torch.equal(raw[name], none[name]) for name in raw)
    assert any(not torch.equal(raw[name], some[name]) for name in raw)


def test_rows_of_a_minibatch_are_true_shortcuts(tmp_path, monkeypatch):
    monkeypatch.setenv("GAINSTAGE_CACHE", str(tmp_path))
    trainer, _ = final("shortcut_augmentation", "select.shortcuts.share=0.5")
    part = trainer.chain.select[0].it
    rows = part.columns
    before, after, move = rows["obs"][:, 0], rows["obs"][:, 1], rows["actions"][:, 0]
    torch.testing.assert_close(before + move, after, rtol=0, atol=1e-4)  # the target is the origin, moves add up
    torch.testing.assert_close(rows["rewards"][:, 0], -after.norm(dim=1), rtol=0, atol=1e-4)
    assert float(move.norm(dim=1).max()) <= 1 + 1e-5
    there = after.norm(dim=1) <= 0.1
    assert torch.equal(rows["terminated"][:, 0], there)  # the end is copied, so nothing is valued beyond it


def test_signal_windows_are_rebuilt(tmp_path, monkeypatch):
    monkeypatch.setenv("GAINSTAGE_CACHE", str(tmp_path))
    log = (
        "task={recorded: {task: {positioning: {dims: 2, view: signal, history: 3, noise: 0}}, mix: walk, episodes: 4}}"
    )
    with pytest.warns(UserWarning, match="not observed"):
        trainer, _ = final("shortcut_augmentation", log, "select.shortcuts.history=3", "select.shortcuts.kappa=null")
    rows = trainer.chain.select[0].it.columns
    before, after, move = rows["obs"][:, 0], rows["obs"][:, 1], rows["actions"][:, 0]
    torch.testing.assert_close(after[:, 1:3], move, rtol=0, atol=1e-6)
    torch.testing.assert_close(after[:, 3:], before[:, 1:5])


def test_observations_that_are_no_places_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GAINSTAGE_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="no places"):
        final("shortcut_augmentation", "task={recorded: {task: pendulum, mix: random, episodes: 2}}")
    with pytest.raises(ValueError, match="share"):
        load_part("select.shortcuts.share=1")


def load_part(text):
    Trainer(load("shortcut_augmentation", [LOG, text]))


def test_a_known_scaling_is_taken_into_account(tmp_path, monkeypatch):
    monkeypatch.setenv("GAINSTAGE_CACHE", str(tmp_path))
    log = "task={recorded: {task: {positioning: {dims: 2, distortion: scaling}}, mix: walk, episodes: 4}}"
    blind, _ = final("shortcut_augmentation", log)
    told, _ = final("shortcut_augmentation", log, "select.shortcuts.gain_matrix=[[0.75, 0], [0, 0.5]]")
    rows = [len(t.chain.select[0].it.columns["rewards"]) for t in (blind, told)]
    assert rows[0] < rows[1]  # a length that shrinks looks like a distortion to those who were not told
    with pytest.raises(ValueError, match="every row"):
        load_part("select.shortcuts.gain_matrix=[[1.0, 0.0], [1.0]]")
    with pytest.raises(ValueError, match="rows of 3 numbers"):
        final("shortcut_augmentation", log, "select.shortcuts.gain_matrix=[[1.0, 0.0, 0.0]]")


def test_places_may_be_a_part_of_what_is_seen(tmp_path, monkeypatch):
    """A maze shows where one is and where to go; a move is half a cell a step."""
    monkeypatch.setenv("GAINSTAGE_CACHE", str(tmp_path))
    world = (
        "{point_maze: {maze: open, start: drawn, goal: drawn, reward: dense, ends_on_success: false, max_steps: 20}}"
    )
    log = f"task={{recorded: {{task: {world}, mix: medium, episodes: 4}}}}"
    told = "place: [achieved_goal, desired_goal], per_axis: true, gain_matrix: [[0.5, 0], [0, 0.5]]"

    def run(select):
        trainer = Trainer(load("td3_bc", [log, *SMALL[1:], f"select=[{select}]"]))
        trainer.run()
        return trainer

    trainer = run(f"{{shortcuts: {{{told}}}}}")
    rows = trainer.chain.select[0].it.columns
    pieces = trainer.chain.task.it.observation_space.pieces
    here, goal = (rows["obs"][..., pieces[n].start : pieces[n].stop] for n in ("achieved_goal", "desired_goal"))
    made, meant = (here[:, 1] - here[:, 0]).norm(dim=1), 0.5 * rows["actions"][:, 0].norm(dim=1)
    assert float(((made - meant).abs() - 0.1 * meant).max()) < 1e-4
    torch.testing.assert_close(rows["rewards"][:, 0], -(here - goal)[:, 1].norm(dim=1), rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="no places"):
        run("shortcuts")
    with pytest.raises(ValueError, match="no piece 'gripper'"):
        run("{shortcuts: {place: [gripper]}}")
