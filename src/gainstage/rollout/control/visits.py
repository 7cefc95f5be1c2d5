"""Where the copies have been, by the facts that a world tells of its steps: `place` and `room`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gainstage.types import Batch

ROOMS = 62
"""Rooms that fit into the bits of a number."""


class Visits:
    """Distinct places of a run so far, and distinct rooms of an episode. Silent where a world tells neither."""

    def __init__(self, copies: int) -> None:
        self.places = torch.zeros(0, dtype=torch.bool)
        self.rooms = torch.zeros(copies, dtype=torch.int64)

    def look(self, batch: Batch, log: Callable[[str, float], None]) -> None:
        """Take in a fragment, a row a copy; logs `visits/places`, and `episode/rooms` over episodes that ended."""
        if "info/place" in batch:
            self._places(batch["info/place"][batch["mask"].bool()].cpu())
            log("visits/places", float(self.places.sum()))
        if "info/room" in batch:
            ended = self._rooms(batch["info/room"].cpu(), (batch["terminated"] | batch["cut"]).cpu())
            if ended:
                log("episode/rooms", sum(ended) / len(ended))

    def _places(self, places: Tensor) -> None:
        top = int(places.max()) + 1 if places.numel() else 0
        if top > len(self.places):
            self.places = torch.cat((self.places, torch.zeros(top - len(self.places), dtype=torch.bool)))
        self.places[places] = True

    def _rooms(self, rooms: Tensor, ends: Tensor) -> list[int]:
        bits = torch.where((rooms >= 0) & (rooms < ROOMS), 1 << rooms.clamp(0, ROOMS - 1), 0)
        ended = []
        for t in range(rooms.shape[1]):
            self.rooms = self.rooms | bits[:, t]
            ended += [int(seen).bit_count() for seen in self.rooms[ends[:, t]].tolist()]
            self.rooms = torch.where(ends[:, t], 0, self.rooms)
        return ended

    def state_dict(self) -> dict[str, Any]:
        return {"places": self.places, "rooms": self.rooms}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.places, self.rooms = state["places"].clone(), state["rooms"].clone()
