"""Replay by priority: what surprised most is seen more often, and counts less (arXiv 1511.05952)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gainstage.ops.schedules import Schedule
from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx, Index, column

column("td_error", "step")  # by how much a learner's value misses its target

Array = NDArray[np.float64]


class SumTree:
    """Weights at the leaves of a binary tree, sums above: draws and changes in `log2 size` steps, all rows at once.

    Every inner node is the sum of its two children and nothing else, so the tree is a function of its leaves.

    Args:
        size: leaves.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.size = size
        self.depth = max(0, (size - 1).bit_length())
        self.base = 1 << self.depth
        self.nodes: Array = np.zeros(2 * self.base)

    @property
    def total(self) -> float:
        return float(self.nodes[1])

    @property
    def leaves(self) -> Array:
        return self.nodes[self.base : self.base + self.size]

    def set(self, index: NDArray[np.int64], weight: Array | float) -> None:
        """Give leaves new weights; of one that is named twice the last counts.

        Raises:
            ValueError: a weight that is negative or not finite.
        """
        weight = np.broadcast_to(np.asarray(weight, np.float64), index.shape)
        if not (np.isfinite(weight).all() and (weight >= 0).all()):
            raise ValueError("priorities must be finite and at least 0")
        node = index + self.base
        self.nodes[node] = weight
        for _ in range(self.depth):
            node = np.unique(node >> 1) if len(node) > 1 else node >> 1
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]

    def find(self, mass: Array) -> NDArray[np.int64]:
        """The leaf under each point of `[0, total)` where the weights lie end to end; never one of weight 0."""
        node = np.ones(len(mass), np.int64)
        for _ in range(self.depth):
            left = self.nodes[2 * node]
            right = (mass >= left) & (self.nodes[2 * node + 1] > 0)
            mass = np.where(right, mass - left, mass)
            node = 2 * node + right
        return node - self.base


@component("select")
@dataclass
class Prioritized:
    """Draws stored transitions with probability proportional to `(|error| + eps) ^ alpha`.

    A transition that was never drawn has the highest priority so far. Each row of a draw comes from its own slice of
    the sum, and carries the weight `(N P)^-beta`, over the largest of the draw, by which learners multiply its loss.
    Priorities are read from the column `td_error` after every minibatch.

    Args:
        alpha: 0 = uniform, 1 = in proportion to the error.
        beta: correction at the start of the run; it rises in a straight line to `beta_end` at its end.
        beta_end: 1 = the bias of the draws is corrected in full.
        eps: added to every error, so that nothing is never seen again.
    """

    alpha: float = 0.6
    beta: float = 0.4
    beta_end: float = 1.0
    eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "beta_end"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if not self.eps > 0:
            raise ValueError(f"eps must be positive, got {self.eps}")
        self.correction = Schedule("linear", self.beta, self.beta_end)
        self.tree: SumTree | None = None
        self.highest, self.known = 1.0, 0

    def start(self, ctx: Ctx) -> None:
        """Raises RecipeError: the store hands out no single draws."""
        if not hasattr(ctx.store, "draw"):
            raise RecipeError("select.prioritized chooses among stored transitions; use `store: replay`")

    def choose(self, store: Any, n: int, ctx: Ctx, inner: Callable[[int], Index] | None = None) -> Index:
        """A draw, one row from each of `n` equal slices of the sum of priorities."""
        tree = self._follow(store)
        slices = (np.arange(n) + torch.rand(n, dtype=torch.float64).numpy()) * (tree.total / n)
        leaf = tree.find(np.minimum(slices, np.nextafter(tree.total, 0)))
        share = tree.leaves[leaf] / tree.total
        beta = self.correction(ctx.progress)
        weight = (len(store) * share) ** -beta
        ctx.log("replay/beta", beta)
        return store.index(torch.from_numpy(leaf), torch.from_numpy(weight / weight.max()).float())

    def feedback(self, minibatch: Batch, ctx: Ctx) -> None:
        """New priorities of the rows that were learned from.

        Raises:
            RecipeError: no learner wrote `td_error`.
        """
        if "td_error" not in minibatch:
            raise RecipeError("select.prioritized needs a learner that writes td_error at every minibatch, such as td")
        assert minibatch.origin is not None and minibatch.origin[1] is not None and self.tree is not None
        copy, step = minibatch.origin[0], minibatch.origin[1]
        error = minibatch["td_error"].reshape(minibatch.rows, -1)[:, 0].abs().double().cpu().numpy() + self.eps
        self.highest = max(self.highest, float(error.max()))
        self.tree.set(ctx.store.place(step, copy).cpu().numpy(), error**self.alpha)

    def _follow(self, store: Any) -> SumTree:
        """The tree with all that was stored since the last look."""
        if self.tree is None:
            self.tree = SumTree(store.length * store.copies)
        if self.known < store.clock:
            step = torch.arange(max(self.known, store.oldest), store.clock).repeat_interleave(store.copies)
            copy = torch.arange(store.copies).repeat(len(step) // store.copies)
            weight = np.full(len(step), self.highest**self.alpha)
            if store.holes:
                weight *= store.at("mask", step, copy).numpy()
            self.tree.set(store.place(step, copy).numpy(), weight)
            self.known = store.clock
        return self.tree

    def state_dict(self) -> dict[str, Any]:
        size, leaves = 0, torch.zeros(0, dtype=torch.float64)
        if self.tree is not None:  # leaves of places that nothing was stored in yet are zeros at the end
            size, leaves = self.tree.size, torch.from_numpy(np.trim_zeros(self.tree.leaves, "b").copy())
        return {"size": size, "leaves": leaves, "highest": self.highest, "known": self.known}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.highest, self.known = float(state["highest"]), int(state["known"])
        self.tree = None
        if size := int(state.get("size", 0)):
            leaves = state["leaves"].numpy()
            self.tree = SumTree(size)
            self.tree.set(np.arange(len(leaves)), leaves)
