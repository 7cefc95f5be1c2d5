"""Learnt policy optimisation: evolution looks for the drift under which whole trainings end best.

The inner trainings of a generation are one stacked run: N actor-critics of the same start, seed and settings that
differ by their drift alone, differentiated by `torch.func.vmap` (Lu et al., arXiv 2210.05639, in small).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.func import functional_call, grad, vmap

from gainstage.credit.returns.gae import gae
from gainstage.ops.masked import over
from gainstage.ops.noise import mix
from gainstage.ops.seeding import stream
from gainstage.policies.control.actor_critic import ActorCritic, ActorCriticNet
from gainstage.registry import RecipeError
from gainstage.rollout.control.population import Population
from gainstage.types.spaces import Discrete, describe_space
from gainstage.update.objectives.policy.drift import LIMIT, learnt, standardised, unflatten
from gainstage.update.optimizers.evolution import OpenES

Weights = dict[str, Tensor]
"""Name -> weights of all members, `"N *"`."""


@dataclass
class InnerRun:
    """Settings of the trainings whose outcome is a drift's fitness: PPO with the drift in place of the clip.

    Args:
        env_steps: of one training.
        copies, horizon: environments of a member, steps of each an iteration.
        epochs, minibatch: passes over each rollout, decisions of one optimizer step.
        judged: episodes that a member's fitness is the mean return of.
    """

    env_steps: int = 20_000
    copies: int = 8
    horizon: int = 128
    epochs: int = 4
    minibatch: int = 256
    lr: float = 1e-3
    clip: float = 0.5
    gamma: float = 0.99
    lam: float = 0.95
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    judged: int = 16

    def __post_init__(self) -> None:
        for name in ("env_steps", "copies", "horizon", "epochs", "minibatch", "judged"):
            if getattr(self, name) < 1:
                raise ValueError(f"inner run: {name} must be at least 1, got {getattr(self, name)}")
        if self.minibatch > self.copies * self.horizon:
            raise ValueError(
                f"inner run: minibatch {self.minibatch} exceeds the {self.copies * self.horizon} decisions of an "
                "iteration (copies x horizon)"
            )


class StackedTraining:
    """N trainings side by side, one a drift.

    Args:
        task: a control task whose actions are choices.
        theta: the drifts' weights, `"N 9H"`.
        seed: of start, environments and draws, the same for all members.
        eps: a drift starts from PPO's clip of this width; None = from none.
    """

    def __init__(self, task: Any, theta: Tensor, run: InnerRun, seed: int, eps: float | None = None) -> None:
        if not isinstance(task.action_space, Discrete):
            raise RecipeError(f"drift search is for tasks with choices; {task.name} takes "
                              f"{describe_space(task.action_space)}")  # fmt: skip
        self.task, self.run, self.seed, self.eps = task, run, seed, eps
        self.drifts, self.members = unflatten(theta), len(theta)
        with stream(seed, "start"):
            self.net = _Both(ActorCriticNet(ActorCritic(), task.observation_space, task.action_space))
        self.weights: Weights = {
            name: value.detach().expand(self.members, *value.shape).clone().requires_grad_()
            for name, value in self.net.named_parameters()
        }
        self.adam = torch.optim.Adam(list(self.weights.values()), lr=run.lr, eps=1e-5)
        self.gradient = vmap(grad(self._loss))

    def logprobs(self, obs: Tensor) -> Tensor:
        """Of all choices, `"N M *"` to `"N M A"`."""
        return self._forward(obs)[0]

    def _forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        frozen = {name: value.detach() for name, value in self.weights.items()}
        return vmap(self._both)(frozen, obs)

    def _both(self, weights: Weights, obs: Tensor) -> tuple[Tensor, Tensor]:
        return functional_call(self.net, weights, (obs,))

    def _loss(self, weights: Weights, drift: Weights, mb: Mapping[str, Tensor]) -> Tensor:
        """One member's loss on its minibatch, columns `"M *"`."""
        logp, value = self._both(weights, mb["obs"])
        picked = mb["actions"].unsqueeze(-1) == torch.arange(logp.shape[-1], device=logp.device)
        chosen = torch.where(picked, logp, 0.0).sum(-1)
        difference = (chosen - mb["behaviour_logprobs"]).clamp(-LIMIT, LIMIT)
        ratio, adv = difference.exp(), standardised(mb["advantages"])
        surrogate = ratio * adv - learnt(ratio, difference, adv, params=drift, eps=self.eps)
        entropy = -(logp.exp() * logp).sum(-1)
        error = (value - mb["returns"]).square()
        return (self.run.value_weight * error - surrogate - self.run.entropy_weight * entropy).mean()

    def train(self) -> Tensor:
        """Run to the end; each member's fitness, `Float64 "N"`, NaN where its training broke."""
        run, each = self.run, self.run.copies * self.run.horizon
        iterations = max(1, round(run.env_steps / each))
        env = self.task.make(self.members * run.copies)
        place = Population(env, self.members, [mix("drift", self.seed, copy) for copy in range(run.copies)])
        for iteration in range(iterations):
            with stream(self.seed, iteration, "collect"):
                columns = self._credit(place.collect(self.logprobs, run.horizon))
            for group in self.adam.param_groups:
                group["lr"] = run.lr * (1 - iteration / iterations)
            for epoch in range(run.epochs):
                generator = torch.Generator().manual_seed(mix(self.seed, iteration, "split", epoch))
                for rows in torch.randperm(each, generator=generator).split(run.minibatch):
                    self._step({name: value[:, rows] for name, value in columns.items()})
        env.close()
        return self._judge()

    def _credit(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Advantages and returns; columns as `"N CT *"`, one block a member."""
        with torch.no_grad():
            after = columns["next_obs"]
            shape = (self.members, -1)
            both = torch.stack((columns["obs"][:, :-1], after)).flatten(1, 2)
            values = [self._forward(obs.unflatten(0, shape))[1].reshape(after.shape[:2]) for obs in both]
            advantages, returns = gae(
                columns["rewards"], values[0], values[1], columns["terminated"], columns["cut"],
                self.run.gamma, self.run.lam,
            )  # fmt: skip
        kept = {
            "obs": columns["obs"][:, :-1], "actions": columns["actions"], "advantages": advantages,
            "behaviour_logprobs": columns["behaviour_logprobs"], "returns": returns,
        }  # fmt: skip
        return {name: value.flatten(0, 1).unflatten(0, shape) for name, value in kept.items()}

    def _step(self, mb: Mapping[str, Tensor]) -> None:
        """One optimizer step of every member; each member's gradient is clipped by its own norm."""
        frozen = {name: value.detach() for name, value in self.weights.items()}
        found = self.gradient(frozen, self.drifts, mb)
        norm = torch.stack([g.flatten(1).square().sum(1) for g in found.values()]).sum(0).sqrt()
        scale = (self.run.clip / norm).clamp(max=1.0)
        for name, value in self.weights.items():
            value.grad = found[name] * over(scale, value)
        self.adam.step()

    def _judge(self) -> Tensor:
        env = self.task.make(self.members * self.run.judged)
        seeds = [mix("judged", self.seed, copy) for copy in range(self.run.judged)]
        with stream(self.seed, "judge"):
            fitness = Population(env, self.members, seeds).returns(self.logprobs, self.task.max_steps or 1000)
        env.close()
        sound = torch.stack([torch.isfinite(v.detach()).flatten(1).all(1) for v in self.weights.values()]).all(0)
        return torch.where(sound, fitness, torch.nan)


class _Both(torch.nn.Module):
    """Log-probs of all choices and the value, as tensors."""

    def __init__(self, net: ActorCriticNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        dist, value = self.net.both(obs)
        return dist.logp, value  # type: ignore[attr-defined]


def first_weights(hidden: int = 16, seed: int = 0) -> Tensor:
    """Where a search starts, `"9 H"`: hidden weights of unit scale, outputs 0, so that the net gives 0 everywhere.

    Not all 0: a net without biases gives the same for its weights and their negative, so mirrored draws around 0 tell
    nothing apart.
    """
    generator = torch.Generator().manual_seed(mix("first weights", seed))
    return torch.cat((torch.randn(8 * hidden, generator=generator) / 8**0.5, torch.zeros(hidden)))


def save_drift(theta: Tensor, path: Path) -> None:
    """Write weights as `drift: {kind: {learnt: {params: FILE}}}` reads them."""
    save_file({name: value.contiguous() for name, value in unflatten(theta.float()).items()}, path)


def save_search(es: OpenES, path: Path) -> None:
    """Write all that a search needs to go on bit for bit."""
    state = es.state_dict()
    numbers = {name: str(state.pop(name)) for name in ("generation", "count")}
    save_file({name: value.contiguous() for name, value in state.items()}, path, metadata=numbers)


def load_search(es: OpenES, path: Path) -> None:
    """Go on from `save_search`.

    Raises:
        RecipeError: the file cannot be read, or belongs to a search of another size.
    """
    try:
        with safe_open(path, "pt") as file:
            state: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            es_state = state | {name: int(file.metadata()[name]) for name in ("generation", "count")}
        same = es_state["mean"].shape == es.mean.shape
    except (OSError, SafetensorError, TypeError, KeyError, ValueError) as error:
        raise RecipeError(f"the search's state {path} cannot be read: {error!r}; remove it to start anew") from None
    if not same:
        raise RecipeError(
            f"{path} belongs to a search of {len(es_state['mean'])} weights, this one has {len(es.mean)}; "
            "give another --out, or remove it"
        )
    es.load_state_dict(es_state)


@dataclass
class Generation:
    """What one generation brought: fitness of the members in units of the task's return."""

    number: int
    best: float
    mean: float
    worst: float


def search(
    task: Any, es: OpenES, run: InnerRun, generations: int, *, eps: float | None = None, seed: int = 0,
    told: Callable[[Generation], None] = lambda generation: None,
) -> Tensor:  # fmt: skip
    """Move `es` up to `generations`; the mean vector in the end. New seeds for every generation."""
    while es.generation < generations:
        number = es.generation
        fitness = StackedTraining(task, es.ask(), run, mix("generation", seed, number), eps).train()
        es.tell(fitness)
        kept = fitness[torch.isfinite(fitness)]
        told(Generation(number, float(kept.max()), float(kept.mean()), float(kept.min())))
    return es.mean
