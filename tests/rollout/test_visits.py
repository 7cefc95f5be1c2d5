"""What is told of places and rooms."""

from __future__ import annotations

import torch

from gainstage.rollout.control.visits import Visits
from gainstage.types import Batch


def fragment(rooms: list[list[int]], places: list[list[int]], ends: list[list[bool]]) -> Batch:
    flags = torch.tensor(ends)
    return Batch({
        "mask": torch.ones_like(flags), "info/room": torch.tensor(rooms), "info/place": torch.tensor(places),
        "terminated": flags, "cut": torch.zeros_like(flags),
    })  # fmt: skip


def test_places_of_the_run_and_rooms_of_an_episode():
    visits, logged = Visits(2), {}
    visits.look(fragment([[0, 1, 1], [0, -1, 0]], [[3, 4, 4], [3, 9, 3]], [[False, False, True], [False] * 3]),
                logged.__setitem__)  # fmt: skip
    assert logged == {"visits/places": 3.0, "episode/rooms": 2.0}
    other = Visits(2)
    other.load_state_dict(visits.state_dict())
    for one in (visits, other):
        logged = {}
        one.look(fragment([[2], [5]], [[4], [20]], [[False], [True]]), logged.__setitem__)
        assert logged == {"visits/places": 4.0, "episode/rooms": 2.0}  # rooms 0 and 5, over two fragments


def test_worlds_without_places_are_silent():
    flags = torch.zeros(2, 1, dtype=torch.bool)
    logged: dict[str, float] = {}
    Visits(2).look(Batch({"mask": ~flags, "terminated": flags, "cut": flags}), logged.__setitem__)
    assert not logged
