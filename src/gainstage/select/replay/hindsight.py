"""Hindsight: stored transitions seen again with a goal that was reached later (arXiv 1707.01495)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx, column
from gainstage.types.spaces import Piece

Strategy = Literal["future", "final", "episode", "random", "geometric"]
column("relabelled", "row")


def new_goal_steps(
    step: Tensor, first: Tensor, last: Tensor, strategy: Strategy, chance: Tensor, gamma: float = 0.99
) -> tuple[Tensor, Tensor]:
    """Which step's outcome becomes the goal, `Int64 "N"`, and where it is that step's start instead, `Bool "N"`.

    With T transitions there are T + 1 achieved goals. `future` takes one of those after the transition's start, its
    own outcome included, `final` the last one, `episode` any of them. `geometric` takes the one `n` steps ahead with a
    chance proportional to `gamma^(n - 1)` (the goals of contrastive critics, arXiv 2206.07568).

    Args:
        step: of each transition.
        first, last: bounds of its episode, both included.
        chance: uniform in [0, 1), `Float "N"`.
        gamma: of `geometric`.
    """
    start = torch.zeros_like(step, dtype=torch.bool)
    if strategy == "final":
        return last, start
    if strategy == "geometric" and gamma < 1:
        left = last - step + 1
        ahead = (torch.log1p(-chance.double() * (1 - gamma ** left.double())) / math.log(gamma)).long()
        return step + torch.minimum(ahead, left - 1), start
    if strategy == "geometric":
        strategy = "future"
    if strategy == "future":
        return step + _below(last - step + 1, chance), start
    number = _below(last - first + 2, chance)  # 0 is where the episode started
    return (first + number - 1).clamp(min=0), number == 0


def _below(count: Tensor, chance: Tensor) -> Tensor:
    """A whole number from 0 to count - 1."""
    return torch.minimum((chance * count).long(), count - 1)


@component("select")
@dataclass
class Hindsight:
    """Gives k of k + 1 drawn transitions another goal and pays their reward, and ends them, anew.

    Args:
        k: relabelled draws to every one that keeps its goal; 0 = none.
        strategy: where new goals come from: `future` of the same episode, its `final` outcome, anywhere in the
            `episode`, or `random` ones of the whole store; `geometric` is `future` with near ones more often.
        gamma: of `geometric`: how much rarer the outcome of one step more is.
    """

    k: float = 4.0
    strategy: Strategy = "future"
    gamma: float = 0.99

    requires = ("goal",)

    def __post_init__(self) -> None:
        if not self.k >= 0:
            raise ValueError(f"k must be at least 0 (0 = nothing is relabelled), got {self.k}")
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma must lie in (0, 1], got {self.gamma}")

    def start(self, ctx: Ctx) -> None:
        """Raises RecipeError: the store keeps no episodes, or adds up the rewards of several steps."""
        if not hasattr(ctx.store, "bounds"):
            raise RecipeError("select.hindsight needs whole episodes; use `store: {episodes: {capacity: ...}}`")
        if getattr(ctx.store, "n_step", 1) != 1:
            raise RecipeError("select.hindsight: rewards of n steps were earned for another goal; set n_step to 1")
        self._pieces(ctx)

    def observe(self, fresh: Any, ctx: Ctx) -> None:
        """Check that goals are numbers, and that rewards are made of goals alone.

        Raises:
            FloatingPointError: an achieved or desired goal is not finite.
            RecipeError: what `compute_reward` says is not what the environment paid.
        """
        if not isinstance(fresh, Batch):
            return
        achieved, wanted = self._pieces(ctx)
        reached, goal = fresh["next_obs"][..., achieved], fresh["next_obs"][..., wanted]
        odd = ~torch.isfinite(torch.cat((reached, goal), -1)).all(-1)
        if bool(odd.any()):
            copy, step = torch.nonzero(odd)[0].tolist()
            raise FloatingPointError(f"task {ctx.task.name}: a goal of copy {copy} is not finite at step {step}")
        real = fresh["mask"].bool()
        paid, due = fresh["rewards"][real], reward_of(ctx.task, reached[real], goal[real])
        if not torch.allclose(paid, due, atol=1e-4):
            place = int((paid - due).abs().argmax())
            raise RecipeError(
                f"select.hindsight: the reward of {ctx.task.name} is not goal-computable: it paid "
                f"{float(paid[place]):g} where compute_reward says {float(due[place]):g}"
            )

    def relabel(self, batch: Batch, ctx: Ctx) -> Batch:
        """The draw with new goals in k of k + 1 rows. The store is as before."""
        if not self.k:
            return batch
        store: Any = ctx.store
        achieved = self._pieces(ctx)[0]
        assert batch.origin is not None and batch.origin[1] is not None
        copy, step = batch.origin[0].cpu(), batch.origin[1].cpu()
        chosen = torch.rand(len(step)) < self.k / (self.k + 1)
        copy, step = copy[chosen], step[chosen]
        if self.strategy == "random":
            other = store.uniform(len(step))
            goal = store.at("next_obs", other.step, other.row)[:, achieved]
        else:
            first, last = store.bounds(step, copy)
            place, at_start = new_goal_steps(step, first, last, self.strategy, torch.rand(len(step)), self.gamma)
            goal = store.at("next_obs", place, copy)[:, achieved]
            if self.strategy == "episode":
                goal = torch.where(at_start.unsqueeze(1), store.at("obs", first, copy)[:, achieved], goal)
        return self._written(batch, chosen.to(batch.device), goal.to(batch.device), ctx)

    def _written(self, batch: Batch, chosen: Tensor, goal: Tensor, ctx: Ctx) -> Batch:
        """The batch with the goals of the chosen rows replaced, their rewards and ends with them."""
        achieved, wanted = self._pieces(ctx)
        obs = batch["obs"].clone()
        before, reached, asked = (obs[chosen, 0][:, achieved], obs[chosen, 1][:, achieved], obs[chosen, 1][:, wanted])
        rewards, terminated = batch["rewards"].clone(), batch["terminated"].clone()
        rewards[chosen, 0] = reward_of(ctx.task, reached, goal)
        if hasattr(ctx.task, "compute_terminated"):
            # an end that the old goal does not explain has another cause, and remains
            other = terminated[chosen, 0] & ~ctx.task.compute_terminated(reached, asked)
            terminated[chosen, 0] = ctx.task.compute_terminated(reached, goal) | other
        rows = chosen.nonzero()
        obs[rows, torch.arange(2, device=obs.device), wanted] = goal.unsqueeze(1)
        ctx.log("her/relabelled", float(chosen.float().mean()))
        if len(goal):
            ctx.log("her/trivial_frac", float((reward_of(ctx.task, before, goal) == 0).float().mean()))
        columns = batch.columns | {"obs": obs, "rewards": rewards, "terminated": terminated, "relabelled": chosen}
        return Batch(columns, batch.problems, batch.info, batch.origin)

    def _pieces(self, ctx: Ctx) -> tuple[slice, slice]:
        """Where the achieved and the desired goal stand in an observation."""
        pieces: dict[str, Piece] = getattr(ctx.task.observation_space, "pieces", {})  # type: ignore[attr-defined]
        try:
            achieved, wanted = pieces["achieved_goal"], pieces["desired_goal"]
        except KeyError:
            raise RecipeError(
                f"select.hindsight: observations of {ctx.task.name} have no achieved_goal and desired_goal"
            ) from None
        return slice(achieved.start, achieved.stop), slice(wanted.start, wanted.stop)


def reward_of(task: Any, achieved: Tensor, goal: Tensor) -> Tensor:
    """The task's reward of many outcomes `"N G"` against as many goals, `Float32 "N"`.

    Raises:
        RecipeError: the task answers with another shape.
    """
    reward = task.compute_reward(achieved, goal)
    if reward.shape != achieved.shape[:1]:
        raise RecipeError(
            f"task {task.name}: compute_reward must accept batched goals; {len(achieved)} of them came back as "
            f"{tuple(reward.shape)}"
        )
    return reward.to(torch.float32)
