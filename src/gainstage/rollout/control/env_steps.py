"""Experience of environments: all copies are stepped together, and what they say becomes columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gainstage.ops.masked import over
from gainstage.ops.noise import mix
from gainstage.registry import component
from gainstage.rollout.control.visits import Visits
from gainstage.types import Batch, Ctx, column

column("next_obs", "step", dims="*")  # what the action led to: differs from the next row of obs where an episode ended
column("info/", "step", dims="*")
column("state0", "row", dims="*")  # a recurrent policy's memory before the first decision of the row
column("start", "step")  # an episode begins with this decision


@dataclass
class Episodes:
    """Return and length of the running episodes, and of those that ended since the last look."""

    size: int

    def __post_init__(self) -> None:
        self.returns, self.lengths = torch.zeros(self.size, dtype=torch.float64), torch.zeros(self.size)
        self.finished: list[list[float]] = []

    def see(self, batch: Batch, done: Tensor) -> None:
        """Take in a fragment `"B T"` of all copies; `done` says after which steps an episode was over."""
        done = done.cpu()
        paid = torch.cat((self.returns.unsqueeze(1), batch["rewards"].cpu().double()), 1).cumsum(1)
        lived = torch.cat((self.lengths.unsqueeze(1), batch["mask"].cpu().to(self.lengths)), 1).cumsum(1)
        copies, steps = done.nonzero(as_tuple=True)
        if len(copies):
            hit = batch["info/success"].cpu()[copies, steps] if "info/success" in batch else torch.nan * copies
            again = torch.cat((torch.zeros(1, dtype=torch.bool), copies[1:] == copies[:-1]))
            ended = [
                sums[copies, steps + 1] - torch.where(again, sums[copies, steps + 1].roll(1), 0.0)
                for sums in (paid, lived)
            ]
            self.finished += torch.stack((ended[0], ended[1].double(), hit.double()), 1).tolist()
        last = torch.where(done, torch.arange(1, done.shape[1] + 1), 0).amax(1, keepdim=True)
        open_from = [torch.where(last > 0, sums.gather(1, last), 0.0).squeeze(1) for sums in (paid, lived)]
        self.returns, self.lengths = paid[:, -1] - open_from[0], lived[:, -1] - open_from[1]

    def report(self, log: Callable[[str, float], None]) -> None:
        """Means over the episodes that ended since the last report."""
        if self.finished:
            table = torch.tensor(self.finished, dtype=torch.float64)
            log("episode/return", float(table[:, 0].mean()))
            log("episode/length", float(table[:, 1].mean()))
            if not bool(table[:, 2].isnan().any()):
                log("episode/success", float(table[:, 2].mean()))
        log("episode/count", float(len(self.finished)))
        self.finished = []


@component("rollout")
@dataclass
class EnvSteps:
    """Steps `copies` copies of the task's environment `steps` times: `copies x steps` transitions an iteration.

    A row of the batch is one copy's fragment. It may run through the end of an episode: `terminated` marks a real end,
    `cut` a time limit, `next_obs` what an action really led to.

    Args:
        copies: environments side by side.
        steps: steps of each an iteration.
        actor: role that acts.
    """

    copies: int = 8
    steps: int = 128
    actor: str = "policy"

    simulates = True
    """Brings columns, needs no problem to be picked."""
    requires = ("simulator",)
    writes = (
        "obs", "actions", "rewards", "terminated", "cut", "next_obs", "behaviour_logprobs", "mask", "start",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name in ("copies", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        self.uses = (self.actor,)
        self.env: Any = None

    @property
    def transitions(self) -> int:
        """Environment steps of an iteration."""
        return self.copies * self.steps

    def start(self, ctx: Ctx) -> None:
        """Make the copies and start their first episodes, each from a start of the train split of its own."""
        self.env = ctx.task.make(self.copies, ctx.device)  # type: ignore[attr-defined]
        starts = ctx.task.problems("train")
        picked = [starts[mix("copy", ctx.seed, copy) % len(starts)] for copy in range(self.copies)]
        self.obs = self.env.reset([mix(problem.meta["seed"], ctx.seed, n) for n, problem in enumerate(picked)])
        self.episodes, self.visits = Episodes(self.copies), Visits(self.copies)
        self.fresh = torch.ones(self.copies, dtype=torch.bool, device=self.obs.device)
        self.memory: Any = None

    def collect(self, requests: Sequence[Any], ctx: Ctx, inner: Any = None, model: Any = None) -> Batch:
        """The fragment of this iteration.

        Raises:
            FloatingPointError: the environment paid a reward that is not finite.
        """
        actor = ctx.models[self.actor] if model is None else model
        kept = Fragment()
        if self.memory is None and hasattr(actor, "initial_state"):
            self.memory = actor.initial_state(self.copies)
        state0 = self.memory
        for _ in range(self.steps):
            act = actor.act(self.obs, self.memory, explore=True)
            stepped = self.env.step(actor.to_env(act.action))
            done = stepped.terminated | stepped.truncated
            seen = {f"info/{name}": value for name, value in stepped.info.items()}
            if act.logprob is not None:
                seen["behaviour_logprobs"] = act.logprob
            if stepped.real is not None:
                seen["mask"] = stepped.real
            kept.add(
                obs=self.obs, actions=act.action, rewards=stepped.reward, terminated=stepped.terminated, cut=done,
                next_obs=stepped.next_obs, start=self.fresh, **seen,
            )  # fmt: skip
            self.obs, self.fresh, self.memory = stepped.obs, done, act.state
            if self.memory is not None and bool(done.any()):
                self.memory = torch.where(over(done, self.memory), 0.0, self.memory)
        batch = kept.batch(last=self.obs)
        _check_rewards(batch["rewards"], ctx.task.name)
        done = batch["cut"]
        if "mask" not in batch:
            batch["mask"] = torch.ones_like(done)
        batch["cut"] = done & ~batch["terminated"]
        self.episodes.see(batch, done)
        if state0 is not None:
            batch["state0"] = state0
        batch["version"] = torch.as_tensor(getattr(actor, "version", 0)).expand(self.copies).clone()
        ctx.meter.charge("env_steps", float(batch["mask"].sum()))
        if hasattr(actor, "charge"):
            actor.charge(self.transitions, grad=False)
        self.episodes.report(ctx.log)
        self.visits.look(batch, ctx.log)
        ctx.log("reward/mean", float(batch["rewards"].mean()))
        return batch

    def close(self) -> None:
        if self.env is not None:
            self.env.close()

    def state_dict(self) -> dict[str, Any]:
        return {
            "env": self.env.state_dict(), "obs": self.obs, "fresh": self.fresh, "memory": self.memory,
            "returns": self.episodes.returns, "lengths": self.episodes.lengths, "visits": self.visits.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.env.load_state_dict(state["env"])
        self.visits.load_state_dict(state["visits"])
        if not getattr(self.env, "exact_resume", True):  # every copy has begun a new episode
            self.obs = self.env.observation()
            return
        self.obs, self.fresh, self.memory = state["obs"], state["fresh"], state["memory"]
        self.episodes.returns, self.episodes.lengths = state["returns"].clone(), state["lengths"].clone()


class Fragment:
    """Columns in the making: `add` a step of all copies, `batch` them when all are there.

    What is added is kept as it is until then: environments and actors do not write to what they have handed out.
    """

    def __init__(self) -> None:
        self.steps: dict[str, list[Tensor]] = {}

    def add(self, **values: Tensor) -> None:
        if not self.steps:
            self.steps = {name: [] for name in values}
        for name, value in values.items():
            self.steps[name].append(value)

    def batch(self, last: Tensor) -> Batch:
        """Columns `"B T *"`; `last` is the observation after the last step."""
        self.steps["obs"].append(last)
        return Batch({name: torch.stack(self.steps.pop(name), 1) for name in list(self.steps)})


def _check_rewards(rewards: Tensor, task: str) -> None:
    if not bool(torch.isfinite(rewards).all()):
        copy, step = torch.nonzero(~torch.isfinite(rewards))[0].tolist()
        raise FloatingPointError(
            f"task {task}: copy {copy} paid the reward {float(rewards[copy, step])} at step {step} of this iteration; "
            "mend the environment, or wrap it so that it never does"
        )
