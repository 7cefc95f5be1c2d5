"""The plain sampler: each problem once a pass, whatever the batch, the restart and the machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.select.helpers_select import context, problems_of

from gainstage.registry import build
from gainstage.select.data.shuffle import Shuffle, pass_order


def ids(requests) -> list[str]:
    return [request.problem.id for request in requests]


@given(st.integers(1, 12), st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 5))
def test_every_problem_comes_once_a_pass(size: int, calls: list[int], seed: int):
    ctx, sampler = context(problems_of(size), seed), Shuffle(samples=1)
    drawn = [name for n in calls for name in ids(sampler.next(n, ctx))]
    assert len(drawn) == sum(calls)
    for start in range(0, len(drawn), size):
        part = drawn[start : start + size]
        assert len(set(part)) == len(part)


def test_the_order_depends_on_seed_and_pass_alone():
    ctx = context(problems_of(20))
    once, in_parts = Shuffle(), Shuffle()
    whole = ids(once.next(40, ctx))
    assert whole == [name for n in (3, 7, 20, 10) for name in ids(in_parts.next(n, ctx))]
    assert whole[:20] != whole[20:]
    assert whole != ids(Shuffle().next(40, context(problems_of(20), seed=1)))
    assert whole[:20] == [f"p{i}" for i in pass_order(20, 0, 0)]


def test_the_order_is_the_same_on_every_machine():
    assert pass_order(8, seed=0, number=0) == [0, 3, 6, 4, 7, 1, 2, 5]
    assert sorted(pass_order(8, 3, 2)) == list(range(8))


def test_the_given_order_repeats():
    assert ids(Shuffle(order="given").next(5, context(problems_of(3)))) == ["p0", "p1", "p2", "p0", "p1"]


def test_the_cursor_survives_a_checkpoint():
    ctx, first = context(problems_of(7)), Shuffle()
    first.next(10, ctx)
    second = Shuffle()
    second.load_state_dict(first.state_dict())
    assert ids(first.next(9, ctx)) == ids(second.next(9, ctx))


def test_each_group_has_its_own_number_and_all_its_samples():
    requests = Shuffle(samples=4).next(3, context(problems_of(3)))
    assert [(r.samples, r.group, r.first, r.sampling) for r in requests] == [(4, g, 0, None) for g in range(3)]


def test_a_greedy_answer_joins_the_group_as_its_last_member():
    requests = Shuffle(samples=2, greedy=True).next(2, context(problems_of(2)))
    assert [(r.group, r.first, r.samples) for r in requests] == [(0, 0, 2), (0, 2, 1), (1, 0, 2), (1, 2, 1)]
    assert [r.sampling.temperature if r.sampling else None for r in requests] == [None, 0.0, None, 0.0]


def test_what_is_wrong_is_named():
    with pytest.raises(ValueError, match="no problem in its train split"):
        Shuffle().next(1, context([]))
    with pytest.raises(ValueError, match=r"shuffle\.samples"):
        Shuffle(samples=0)
    assert isinstance(build("select", "shuffle", {"samples": 3}), Shuffle)
