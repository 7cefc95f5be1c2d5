"""Synthetic transitions beside recorded ones: shortcuts through logs of positioning."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gainstage.ops.noise import mix
from gainstage.ops.shortcuts import Shortcut, arrivals_differ, candidates, warn_unverified
from gainstage.registry import RecipeError, component
from gainstage.types import Batch
from gainstage.types.spaces import Box


@component("select")
@dataclass
class Shortcuts:
    """Puts shortcuts into a share of every drawn minibatch: skips between visited states that are one legal move.

    For logs of tasks in which moves add up and only arriving pays (arXiv 2605.13401). From every step the shortcut with
    the largest gain is kept, and `drawn` others. The draws of the recorded rest stay what they were.

    Args:
        share: of a minibatch, in [0, 1); 0 = none.
        margin: gain that is asked for; higher keeps fewer, infinity none.
        gamma: discount of one step.
        a_max: longest legal move, in the environment's units; null = the upper bound of the action space.
        per_axis: `a_max` bounds each axis instead of the length.
        drawn: further shortcuts from each step, all legal ones alike.
        kappa: share by which the way made may differ in length from the moves; null = not checked.
        history: last moves that an observation ends with, latest first; the one after a shortcut is rebuilt.
        action_cost: weight of the squared move in the rewards, where there is such a term.
        gain_matrix: what becomes of a move, where it is known and linear, row by row; lengths are compared after it.
        place: pieces of the observation: the place, and what its distance is paid for, as `[achieved_goal,
            desired_goal]` of a reaching arm; empty = the observation is the place as seen from the target.
    """

    share: float = 0.5
    margin: float = 0.0
    gamma: float = 0.99
    a_max: float | None = None
    per_axis: bool = False
    drawn: int = 1
    kappa: float | None = 0.1
    history: int = 0
    action_cost: float = 0.0
    gain_matrix: list[list[float]] | None = None
    place: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"share must lie in [0, 1), got {self.share}")
        if self.a_max is not None and not self.a_max > 0:
            raise ValueError(f"a_max must be above 0, got {self.a_max}")
        if self.drawn < 0 or self.history < 0:
            raise ValueError("drawn and history must be at least 0")
        if self.gain_matrix is not None and len({*map(len, self.gain_matrix)}) != 1:
            raise ValueError(
                f"gain_matrix must have one number for each axis of a move in every row, got {self.gain_matrix}"
            )
        if len(self.place) > 2:
            raise ValueError(f"place names the place and what it is seen from, got {self.place}")
        self.columns: dict[str, Tensor] | None = None

    def relabel(self, batch: Batch, ctx: Any) -> Batch:
        """The batch with its first rows replaced.

        Raises:
            RecipeError: no recorded episodes, choices for actions, or observations that are no places.
        """
        if self.columns is None:
            self.columns = self._make(ctx)
        there, count = len(self.columns["rewards"]), int(self.share * batch.rows + 0.5)
        if not there or not count:
            return batch
        picked = torch.randint(there, (count,))
        out = {
            name: torch.cat((self.columns[name][picked].to(value.device), value[count:]))
            if name in self.columns
            else value
            for name, value in batch.columns.items()
        }
        return Batch(out, batch.problems, batch.info, batch.origin)

    def _make(self, ctx: Any) -> dict[str, Tensor]:
        store, space = ctx.store, ctx.task.action_space
        if not hasattr(store, "lengths"):
            raise RecipeError("select.shortcuts looks for skips in recorded episodes; it needs the store offline")
        if not isinstance(space, Box):
            raise RecipeError("select.shortcuts adds up moves; the task's actions are choices")
        log = ctx.task.transitions()
        self.space, size = ctx.task.observation_space, int(space.low.numel())
        self.reach = float(space.high.min()) if self.a_max is None else self.a_max
        self.places = not self.history and self.kappa is not None
        matrix = self.gain_matrix or [[0.0] * size] * size
        if len(matrix[0]) != size:
            raise RecipeError(f"select.shortcuts.gain_matrix: rows of {len(matrix[0])} numbers; moves have {size}")
        shown = self._place(log.obs[:1]).shape[1]
        if self.places and shown != len(matrix):
            raise RecipeError(
                f"select.shortcuts: what is taken for the place has {shown} numbers, moves {len(matrix)}: these are no "
                "places; set place to the pieces that tell it, gain_matrix to what moves do, or kappa=null where moves "
                "add up all the same, and history to the moves that are shown"
            )
        if not self.places:
            warn_unverified()
        else:
            self._check(log)
        generator = torch.Generator().manual_seed(mix("shortcuts", ctx.seed) % 2**63)
        found = [(row, cut) for row in range(len(log)) for cut in self._episode(log[row], generator)]
        ctx.log("shortcuts/per_step", len(found) / len(store))
        if not found:
            said = "select.shortcuts: no shortcut was accepted, so that only recorded steps are drawn"
            warnings.warn(said, stacklevel=2)
            return {"rewards": torch.zeros(0)}
        return self._columns(ctx, found)

    def _place(self, obs: Tensor) -> Tensor:
        """Where observations `"N *"` say that one is, as seen from what is aimed at, `"N D"`.

        Raises:
            RecipeError: the observations have no such piece.
        """
        flat = obs.flatten(1)
        pieces = getattr(self.space, "pieces", {})
        for name in self.place:
            if name not in pieces:
                known = ", ".join(pieces) or "no pieces"
                raise RecipeError(f"select.shortcuts.place: the observations have no piece {name!r}, but {known}")
        parts = [flat[:, pieces[name].start : pieces[name].stop] for name in self.place]
        return flat if not parts else parts[0] - sum(parts[1:])

    def _check(self, log: Any) -> None:
        """Raises RecipeError: rewards hang on the move, not on the place that is reached."""
        arrived = self._place(torch.cat([log[row].obs[1:] for row in range(len(log))]))
        paid = log.rewards + self.action_cost * log.actions.flatten(1).square().sum(-1)
        if arrivals_differ(arrived, paid):
            raise RecipeError(
                "select.shortcuts: the reward depends on the action, because arriving at one place was paid "
                "differently; set action_cost to the weight of the squared move, or pass your own cost to "
                "gainstage.ops.shortcuts.candidates"
            )

    def _episode(self, episode: Any, generator: torch.Generator) -> list[Shortcut]:
        if len(episode) < 2:
            return []
        moves = episode.actions.flatten(1)
        if not self.per_axis:  # what is longer was shortened when it was made
            moves = moves * (self.reach / moves.norm(dim=-1, keepdim=True).clamp(min=self.reach))
        found = candidates(
            moves, episode.rewards, self.reach, self.gamma, self.margin, kappa=self.kappa, per_axis=self.per_axis,
            places=self._place(episode.obs) if self.places else None, action_cost=self.action_cost,
            matrix=None if self.gain_matrix is None else torch.tensor(self.gain_matrix),
        )  # fmt: skip
        return [*found.best(), *(cut for _ in range(self.drawn) for cut in found.drawn(generator))]

    def _columns(self, ctx: Any, found: list[tuple[int, Shortcut]]) -> dict[str, Tensor]:
        """Rows `"N 1 *"` as the store hands them out: what the last skipped step says, with the new move and reward."""
        store = ctx.store
        row = torch.tensor([row for row, _ in found])
        first, last = (torch.tensor([getattr(cut, end) for _, cut in found]) for end in ("start", "stop"))
        moves = torch.stack([cut.action for _, cut in found])
        out = {name: store.at(name, last - 1, row).unsqueeze(1) for name in store.columns if name != "obs"}
        before, after = store.at("obs", first, row), store.at("next_obs", last - 1, row)
        if self.history:
            size = moves.shape[1]
            shown = before[:, -self.history * size :]
            after = torch.cat((after[:, : -self.history * size], moves, shown[:, : (self.history - 1) * size]), 1)
        policy = ctx.models[store.role]
        shaped = moves.reshape(-1, *ctx.task.action_space.shape)
        out["actions"] = (policy.from_env(shaped).cpu() if hasattr(policy, "from_env") else shaped).unsqueeze(1)
        out["rewards"] = torch.tensor([cut.reward for _, cut in found]).unsqueeze(1)
        out["obs"] = torch.stack((before, after), 1)
        return out
