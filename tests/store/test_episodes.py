"""The replay that knows its episodes: which are drawn, where they begin and end, and what a restart may not glue."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gainstage.registry import RecipeError
from gainstage.store.episodes import EpisodeReplay
from gainstage.types import Batch


def fragment(lengths: list[list[int]], steps: int, start: int = 0) -> Batch:
    """`steps` of each copy; copy c's episodes end after the given numbers of steps. Observations count the steps."""
    copies = len(lengths)
    number = torch.arange(start, start + steps + 1, dtype=torch.float32)
    obs = number.expand(copies, -1).unsqueeze(2) + 1000 * torch.arange(copies).reshape(-1, 1, 1)
    cut = torch.zeros(copies, steps, dtype=torch.bool)
    for copy, ends in enumerate(lengths):
        for end in ends:
            cut[copy, end - 1] = True
    none = torch.zeros_like(cut)
    return Batch({
        "obs": obs.clone(), "next_obs": obs[:, 1:].clone(), "actions": torch.zeros(copies, steps, 1),
        "rewards": number[:-1].expand(copies, -1).clone(), "terminated": none, "cut": cut, "mask": ~none,
    })  # fmt: skip


def drawn(store: EpisodeReplay, count: int = 4000) -> set[tuple[int, int]]:
    index = store.uniform(count)
    return set(zip(index.row.tolist(), index.step.tolist(), strict=True))


def test_only_ended_episodes_are_drawn_each_transition_alike():
    store = EpisodeReplay(capacity=100)
    store.add(fragment([[3], [2, 6]], 6), None)
    assert drawn(store) == {(0, 0), (0, 1), (0, 2), *((1, k) for k in range(6))}
    index = store.uniform(90_000)
    counts = torch.bincount(index.row * 6 + index.step, minlength=12)
    assert counts[counts > 0].float().std() < 4 * 10_000**0.5
    first, last = store.bounds(torch.tensor([1, 0, 3]), torch.tensor([0, 1, 1]))
    assert first.tolist() == [0, 0, 2] and last.tolist() == [2, 1, 5]


def test_an_episode_goes_on_in_the_next_fragment():
    store = EpisodeReplay(capacity=100)
    store.add(fragment([[], [4]], 4), None)
    assert drawn(store) == {(1, k) for k in range(4)}
    store.add(fragment([[], []], 4, start=4), None)
    store.add(fragment([[2], []], 4, start=8), None)
    first, last = store.bounds(torch.tensor([0, 5, 9]), torch.zeros(3, dtype=torch.long))
    assert first.tolist() == [0, 0, 0] and last.tolist() == [9, 9, 9]
    assert drawn(store) == {(1, k) for k in range(4)} | {(0, k) for k in range(10)}


def test_an_episode_that_was_left_is_cut_off_there_and_never_continued():
    """Copy 0 begins anew without an end, as where an environment could not be resumed; copy 1 had ended."""
    store = EpisodeReplay(capacity=100)
    store.add(fragment([[], [4]], 4), None)
    anew = fragment([[3], [3]], 4, start=4)
    anew["start"] = torch.tensor([[True, False, False, True]] * 2)
    store.add(anew, None)
    assert drawn(store) == {(c, k) for c in range(2) for k in range(7)}
    first, last = store.bounds(torch.tensor([2, 5, 7]), torch.zeros(3, dtype=torch.long))
    assert first.tolist() == [0, 4, 7] and last.tolist() == [3, 6, -1]
    assert store.at("cut", torch.tensor([2, 3]), torch.tensor([0, 0])).tolist() == [False, True]
    assert not store.at("terminated", torch.tensor([3]), torch.tensor([0])).any()


def test_books_read_off_a_ring_that_has_turned_are_those_that_were_kept():
    """At every cut, over random ends: which transitions have ended, and the bounds of each."""
    torch.manual_seed(3)
    ends = [[[k + 1 for k in range(5) if torch.rand(()) < 0.25] for _ in range(3)] for _ in range(12)]
    pieces = [fragment(ends[n], 5, start=5 * n) for n in range(12)]
    kept = EpisodeReplay(capacity=3 * 17)
    for piece in pieces:
        kept.add(piece, None)
        again = EpisodeReplay(capacity=3 * 17)
        again.load_state_dict(kept.state_dict())
        assert torch.equal(again.ended, kept.ended)
        where = torch.arange(kept.oldest, kept.clock).repeat_interleave(3), torch.arange(3).repeat(len(kept) // 3)
        for one, other in zip(kept.bounds(*where), again.bounds(*where), strict=True):
            assert torch.equal(one, other)


def test_the_ring_forgets_the_oldest_and_knows_what_is_left_of_an_episode():
    store = EpisodeReplay(capacity=10)
    for start in range(0, 24, 4):
        store.add(fragment([[4] if start % 8 else []], 4, start=start), None)
    assert store.oldest == 14
    first, last = store.bounds(torch.tensor([15, 16, 23]), torch.zeros(3, dtype=torch.long))
    assert first.tolist() == [14, 16, 16] and last.tolist() == [15, 23, 23]
    assert drawn(store) == {(0, k) for k in range(14, 24)}
    batch = store.draw(store.uniform(50))
    assert torch.equal(batch["obs"][:, 0, 0], batch.origin[1].float())


def test_a_restart_that_took_a_step_is_no_part_of_the_episode_it_begins():
    """Its observation is the last one of the episode before: no goal to be taken from there."""
    store = EpisodeReplay(capacity=100)
    piece = fragment([[3, 7], [2, 7]], 8)
    piece["mask"][0, 3] = False
    store.add(piece, None)
    assert drawn(store) == {*((0, k) for k in (0, 1, 2, 4, 5, 6)), *((1, k) for k in range(7))}
    first, last = store.bounds(torch.tensor([1, 4, 6, 4]), torch.tensor([0, 0, 0, 1]))
    assert first.tolist() == [0, 4, 4, 2] and last.tolist() == [2, 6, 6, 6]


def test_nothing_to_draw_is_said():
    store = EpisodeReplay(capacity=10)
    store.add(fragment([[]], 4), None)
    with pytest.raises(RecipeError, match="no complete episode stored, collect at least one before updating"):
        store.uniform(4)


def test_saved_and_loaded_it_goes_on_alike():
    store, other = EpisodeReplay(capacity=20), EpisodeReplay(capacity=20)
    store.add(fragment([[3], []], 6), None)
    other.load_state_dict(store.state_dict())
    for start in (6, 12):
        for one in (store, other):
            one.add(fragment([[2], [5]], 6, start=start), None)
    assert torch.equal(store.ended, other.ended)
    for a, b in zip(store.bounds(torch.arange(12, 18), torch.ones(6, dtype=torch.long)),
                    other.bounds(torch.arange(12, 18), torch.ones(6, dtype=torch.long)), strict=True):  # fmt: skip
        assert torch.equal(a, b)
    index = store.uniform(64, torch.Generator().manual_seed(1))
    again = other.uniform(64, torch.Generator().manual_seed(1))
    assert torch.equal(index.step, again.step)
    assert torch.equal(store.draw(index)["obs"], other.draw(again)["obs"])


def test_an_entry_that_chooses_transitions_is_refused_before_anything_is_collected():
    with pytest.raises(RecipeError, match=r"store\.episodes draws by itself.*prioritized"):
        EpisodeReplay().start(SimpleNamespace(choose=lambda n: None, folder=None))
    EpisodeReplay().start(SimpleNamespace(choose=None, folder=None))
