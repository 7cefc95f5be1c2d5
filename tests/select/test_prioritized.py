"""Replay by priority: the tree against a naive one, the draws against their probabilities, weights, restarts."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gainstage.registry import RecipeError
from gainstage.select.replay.own_streams import OwnStreams
from gainstage.select.replay.prioritized import Prioritized, SumTree
from gainstage.store.replay import Replay
from gainstage.types import Batch


def naive_find(weights, mass):
    """The first leaf whose running sum lies above the mass."""
    return int(np.argmax(np.cumsum(weights) > mass))


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), min_size=1, max_size=20).filter(any),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=30),
)
def test_the_tree_finds_what_a_naive_search_finds(weights, points):
    tree = SumTree(len(weights))
    tree.set(np.arange(len(weights)), np.array(weights))
    assert tree.total == pytest.approx(sum(weights))
    mass = np.array(points) * tree.total
    found = tree.find(mass)
    assert found.tolist() == [naive_find(weights, m) for m in mass]  # the weights are sums of quarters: exact
    assert all(weights[leaf] > 0 for leaf in found)


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 39), st.floats(0, 1e6)), max_size=60))
def test_changes_leave_the_tree_that_its_leaves_alone_would_make(size, changes):
    tree, leaves = SumTree(size), np.zeros(size)
    for place, weight in changes:
        tree.set(np.array([place % size]), weight)
        leaves[place % size] = weight
    rebuilt = SumTree(size)
    rebuilt.set(np.arange(size), leaves)
    assert np.array_equal(tree.nodes, rebuilt.nodes) and np.array_equal(tree.leaves, leaves)


def test_of_a_leaf_that_is_named_twice_the_last_weight_counts():
    tree = SumTree(3)
    tree.set(np.array([1, 2, 1]), np.array([5.0, 1.0, 2.0]))
    assert tree.leaves.tolist() == [0.0, 2.0, 1.0] and tree.total == 3.0


def test_the_tree_refuses_what_is_no_weight():
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite and at least 0"):
            SumTree(2).set(np.array([0]), wrong)
    with pytest.raises(ValueError, match="size"):
        SumTree(0)


def steps(first, copies=2, count=4, holes=()):
    number = (100 * torch.arange(copies).unsqueeze(1) + torch.arange(first, first + count)).float()
    flags = torch.zeros(copies, count, dtype=torch.bool)
    mask = ~flags
    for c, s in holes:
        mask[c, s - first] = False
    obs = torch.zeros(copies, count + 1, 1)
    return Batch({
        "obs": obs, "next_obs": obs[:, 1:], "actions": flags.long(), "rewards": number, "terminated": flags,
        "cut": flags, "mask": mask,
    })  # fmt: skip


def context(store, progress=0.0):
    log = {}
    return SimpleNamespace(store=store, progress=progress, log=log.__setitem__, seen=log)


def learned(store, index, error):
    batch = store.draw(index)
    batch["td_error"] = error.unsqueeze(1)
    return batch


def key(index):
    return [(int(c), int(s)) for c, s in zip(index.row, index.step, strict=True)]


def test_rows_come_by_priority_and_weigh_what_corrects_for_it():
    torch.manual_seed(0)
    store = Replay(capacity=8)
    store.add(steps(0), None)
    chooser, ctx = Prioritized(alpha=1.0, beta=1.0, eps=1e-12), context(store)
    first = chooser.choose(store, 8, ctx)
    assert sorted(key(first)) == sorted((c, s) for c in range(2) for s in range(4))  # all alike: each slice has its own
    assert first.weight.tolist() == [1.0] * 8
    error = torch.tensor([{(0, 0): -6.0, (1, 3): 2.0}.get(k, 0.0) for k in key(first)])
    chooser.feedback(learned(store, first, error), ctx)
    drawn = chooser.choose(store, 8000, ctx)
    share = np.mean([k == (0, 0) for k in key(drawn)])
    assert share == pytest.approx(6 / 8, abs=1e-3) and set(key(drawn)) == {(0, 0), (1, 3)}
    heavy = drawn.weight[[k == (1, 3) for k in key(drawn)]]
    light = drawn.weight[[k == (0, 0) for k in key(drawn)]]
    assert heavy.tolist() == pytest.approx([1.0] * len(heavy)) and float(light[0]) == pytest.approx(1 / 3)


def test_alpha_beta_and_their_schedule():
    torch.manual_seed(0)
    store = Replay(capacity=4)
    store.add(steps(0, copies=1), None)
    chooser = Prioritized(alpha=0.5, beta=0.4, eps=1e-12)
    ctx = context(store, progress=0.5)
    index = chooser.choose(store, 4, ctx)
    assert ctx.seen["replay/beta"] == pytest.approx(0.7)
    order = torch.argsort(index.step)
    error = torch.zeros(4)
    error[order] = torch.tensor([16.0, 1.0, 1.0, 1.0])
    chooser.feedback(learned(store, index, error), ctx)
    drawn = chooser.choose(store, 7000, ctx)
    assert np.mean(drawn.step.numpy() == 0) == pytest.approx(4 / 7, abs=1e-3)
    light = drawn.weight[drawn.step == 0][0]
    assert float(light) == pytest.approx((1 / 4) ** 0.7)  # probabilities 4 to 1, weighted to the largest of the draw
    assert chooser.choose(store, 4, context(store, 1.0)) and Prioritized(alpha=0.0).alpha == 0


def test_new_rows_get_the_highest_priority_and_replace_the_old_ones_places():
    torch.manual_seed(0)
    store = Replay(capacity=8)
    chooser, ctx = Prioritized(alpha=1.0), context(store)
    store.add(steps(0), None)
    index = chooser.choose(store, 8, ctx)
    chooser.feedback(learned(store, index, torch.full((8,), 3.0)), ctx)
    store.add(steps(4, count=3), None)  # three of the four places turn over
    drawn = chooser.choose(store, 800, ctx)
    assert set(key(drawn)) == {(c, s) for c in range(2) for s in range(3, 7)}
    assert chooser.tree.leaves.tolist() == pytest.approx([3.0] * 8, abs=1e-5)
    assert torch.equal(store.draw(drawn)["rewards"][:, 0], 100.0 * drawn.row + drawn.step)


def test_steps_that_are_no_transitions_have_no_priority():
    torch.manual_seed(0)
    store = Replay(capacity=8)
    store.add(steps(0, holes=[(0, 1), (1, 2)]), None)
    drawn = Prioritized().choose(store, 600, context(store))
    assert set(key(drawn)) == {(c, s) for c in range(2) for s in range(4)} - {(0, 1), (1, 2)}


def test_a_restart_draws_the_same_rows():
    def run(cut):
        store = Replay(capacity=12)
        chooser = Prioritized()
        rows = []
        for iteration in range(8):
            if iteration == cut:
                saved = copy.deepcopy((store.state_dict(), chooser.state_dict()))
                store, chooser = Replay(capacity=12), Prioritized()
                store.load_state_dict(saved[0])
                chooser.load_state_dict(saved[1])
            store.add(steps(4 * iteration), None)
            torch.manual_seed(iteration)
            ctx = context(store, iteration / 8)
            index = chooser.choose(store, 5, ctx)
            chooser.feedback(learned(store, index, index.step.float() % 7), ctx)
            rows.append((key(index), index.weight.tolist()))
        return rows

    straight = run(None)
    assert all(run(cut) == straight for cut in (0, 1, 4, 7))


def test_prioritized_says_what_it_lacks():
    store = Replay(capacity=8)
    store.add(steps(0), None)
    chooser, ctx = Prioritized(), context(store)
    index = chooser.choose(store, 4, ctx)
    with pytest.raises(RecipeError, match="writes td_error"):
        chooser.feedback(store.draw(index), ctx)
    with pytest.raises(RecipeError, match="store: replay"):
        chooser.start(context(object()))
    for wrong in ({"alpha": 1.1}, {"beta": -0.1}, {"beta_end": 2.0}, {"eps": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Prioritized(**wrong)


def test_every_member_draws_from_its_own_copies_or_from_all():
    torch.manual_seed(0)
    store = Replay(capacity=24)
    for first in (0, 4):
        store.add(steps(first, copies=6), None)  # the ring holds four steps of each copy
    index = OwnStreams(members=3).choose(store, 200, context(store))
    assert len(index.row) == 600 and set(index.step.tolist()) == {4, 5, 6, 7}
    for member in range(3):
        assert set(index.row[200 * member : 200 * (member + 1)].tolist()) == {2 * member, 2 * member + 1}
    shared = OwnStreams(members=3, buffers="shared").choose(store, 200, context(store))
    blocks = shared.row.reshape(3, 200)
    assert all(len(set(block.tolist())) == 6 for block in blocks) and not torch.equal(blocks[0], blocks[1])
    with pytest.raises(RecipeError, match="6 copies cannot be shared by 4 members"):
        OwnStreams(members=4).choose(store, 8, context(store))
    with pytest.raises(ValueError, match="members"):
        OwnStreams(members=0)
