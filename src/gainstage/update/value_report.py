"""What a critic promises beside what is really paid: its over-estimation, measured while it learns."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gainstage.ops.members import one_value
from gainstage.ops.noise import mix
from gainstage.registry import RecipeError, component
from gainstage.types import Ctx

LONGEST = 10_000
"""Steps after which an episode that nothing ends is given up."""


def paid_returns(
    rewards: Tensor, running: Tensor, terminated: Tensor, gamma: float, tail: float = 0.05
) -> tuple[Tensor, Tensor]:
    """Discounted reward to go of every step, and of which steps it is known: Float64 and Bool, `"T B"`.

    A step's return is known where its episode really ends, or where what follows the record counts less than `tail`.

    Args:
        rewards: `"T B"`.
        running: `Bool "T B"`, the copy's episode was still on at this step.
        terminated: `Bool "T B"`, it really ended with this step.
    """
    steps, copies = rewards.shape
    paid, known = torch.zeros(steps, copies, dtype=torch.float64), torch.zeros(steps, copies, dtype=torch.bool)
    togo = torch.zeros(copies, dtype=torch.float64)
    rest = torch.ones(copies, dtype=torch.float64)  # what the first reward after the record would count
    for t in reversed(range(steps)):
        togo = torch.where(running[t], rewards[t].double() + gamma * togo, togo)
        rest = torch.where(running[t], gamma * torch.where(terminated[t], 0.0, rest), rest)
        paid[t], known[t] = togo, running[t] & (rest <= tail)
    return paid, known


@component("update")
@dataclass
class ValueReport:
    """Plays the policy now and then and sets the critic's values of its actions beside the returns that followed.

    Logs means over steps whose discounted return is known: `values/promised`, `values/paid` and `values/gap`, the
    first less the second; above 0 the critic over-estimates. The episodes start where training may, count as
    evaluation, and teach nothing.

    Args:
        critic, actor: roles.
        gamma: discount of the critic's targets.
        episodes: that are played, side by side.
        every: iterations between two reports.
    """

    critic: str = "critic"
    actor: str = "policy"
    gamma: float = 0.99
    episodes: int = 16
    every: int = 50

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < 1:
            raise ValueError(f"gamma must lie in [0, 1), got {self.gamma}")
        if self.episodes < 1 or self.every < 1:
            raise ValueError(f"episodes and every must be at least 1, got {self.episodes} and {self.every}")
        self.uses = (self.critic, self.actor)

    def start(self, ctx: Ctx) -> None:
        """Raises RecipeError: recorded episodes without an environment, or a critic that values no actions."""
        if "simulator" not in ctx.task.capabilities:
            raise RecipeError(f"update.value_report: {ctx.task.name} has no environment to play in")
        if not hasattr(ctx.models[self.critic], "q"):
            raise RecipeError(f"update.value_report: models.{self.critic} values no actions")

    @torch.no_grad()
    def fit(self, ctx: Ctx) -> None:
        if (ctx.iteration + 1) % self.every:
            return
        with ctx.meter.account("evaluation"):
            promised, rewards, running, terminated = self._play(ctx)
        paid, known = paid_returns(rewards, running, terminated, self.gamma)
        if not bool(known.any()):
            warnings.warn(
                f"update.value_report: episodes of {len(rewards)} steps are too short to know a return at gamma "
                f"{self.gamma}; take a smaller gamma or a larger max_steps",
                stacklevel=2,
            )
            return
        means = float(promised.double()[known].mean()), float(paid[known].mean())
        for name, value in zip(("promised", "paid", "gap"), (*means, means[0] - means[1]), strict=True):
            ctx.log(f"values/{name}", value)

    def _play(self, ctx: Ctx) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Values, rewards, and whether each copy was running and really ended, `"T B"` each."""
        task: Any = ctx.task
        starts = task.problems("train")
        first = mix("value_report", ctx.seed, ctx.iteration)
        seeds = [int(starts[(first + n) % len(starts)].meta["seed"]) for n in range(self.episodes)]
        env, actor, critic = task.make(self.episodes, ctx.device), ctx.models[self.actor], ctx.models[self.critic]
        rows: list[tuple[Tensor, ...]] = []
        try:
            obs, running = env.reset(seeds), torch.ones(self.episodes, dtype=torch.bool)
            while bool(running.any()) and len(rows) < LONGEST:
                act = actor.act(obs, None, explore=False)
                value = one_value(critic.q(obs, act.action))
                stepped = env.step(actor.to_env(act.action))
                ended = stepped.terminated.cpu()
                rows.append((value.cpu(), stepped.reward.cpu(), running, ended))
                running = running & ~(ended | stepped.truncated.cpu())
                obs = stepped.obs
            ctx.meter.charge("env_steps", float(sum(int(row[2].sum()) for row in rows)))
        finally:
            env.close()
        promised, rewards, on, ended = (torch.stack(column) for column in zip(*rows, strict=True))
        return promised, rewards, on, ended & on
