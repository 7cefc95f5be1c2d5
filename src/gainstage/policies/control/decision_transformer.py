"""A policy that is asked for a return: actions from the last steps and the return that is still to come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from gainstage.models.trajectory_transformer import TrajectoryTransformer, interleaved
from gainstage.ops.distributions import Categorical
from gainstage.policies.control.action_heads import rescale, unscale
from gainstage.policies.control.actors import bounded_box
from gainstage.policies.control.handle import Encoder, NetHandle, handle_of
from gainstage.registry import RecipeError, component
from gainstage.types import Act, Batch, PolicyOut
from gainstage.types.spaces import Box, Discrete, Space, describe_space


class DecisionNet(nn.Module):
    """Return to go, observation and action of each step as three tokens; the action is read off the observation's.

    Buffers `target` (return that is asked for at the start of an episode) and `scale` (what returns are divided by)
    are set from the data and travel with the weights.
    """

    target: Tensor
    scale: Tensor

    def __init__(
        self, observations: Space, actions: int, discrete: bool, longest: int, spec: DecisionTransformer
    ) -> None:
        super().__init__()
        self.actions, self.discrete = actions, discrete
        self.features = Encoder(observations, spec.normalise, spec.width)
        self.see, self.do, self.want = (
            nn.Linear(self.features.width, spec.width), nn.Linear(actions, spec.width), nn.Linear(1, spec.width),
        )  # fmt: skip
        self.clock = nn.Embedding(longest, spec.width)
        self.norm = nn.LayerNorm(spec.width)
        self.body = TrajectoryTransformer(spec.width, spec.layers, spec.heads, spec.dropout)
        self.out = nn.Linear(spec.width, actions)
        self.register_buffer("target", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, obs: Tensor, actions: Tensor, wanted: Tensor, step: Tensor, real: Tensor) -> Tensor:
        """Action of every step, in [-1, 1], or logits of choices: `"B T A"`.

        Args:
            obs, actions: `"B T *"`; the action of the last step is not looked at.
            wanted: return to go at each step, `"B T"`, as the environment pays it.
            step: number of the step in its episode, `Int64 "B T"`.
            real: `Bool "B T"`, no padding.
        """
        rows, length = obs.shape[:2]
        done = one_hot(actions, self.actions).float() if self.discrete else actions
        time = self.clock(step.clamp(0, self.clock.num_embeddings - 1))
        seen = self.features(obs.flatten(0, 1)).reshape(rows, length, -1)
        want = self.want((wanted / self.scale).unsqueeze(-1))
        tokens = interleaved(want + time, self.see(seen) + time, self.do(done) + time)
        hidden = self.body(self.norm(tokens), real.repeat_interleave(3, 1))
        out = self.out(hidden[:, 1::3])
        return out if self.discrete else torch.tanh(out)


class DecisionPolicy(NetHandle):
    """Acts on a memory of the last steps; `rewarded` tells it what an action brought, so that it wants that much less.

    The memory is one row of numbers a copy: step, return to go, count, then the windows of observations, actions and
    returns to go. All zeros = an episode begins.
    """

    module: DecisionNet
    markov = False

    def prepare(self, space: Space, observations: Space, context: int, factor: float) -> None:
        self.context, self.factor = context, factor
        self.obs_shape = tuple(observations.shape)
        self.obs_size = math.prod(self.obs_shape)
        self.obs_dtype = observations.dtype
        self.width = 1 if self.module.discrete else self.module.actions
        self.shape = space.shape
        if isinstance(space, Box):
            self.low, self.high = (b.reshape(-1).to(self.device) for b in (space.low, space.high))

    def initial_state(self, copies: int) -> Tensor:
        return torch.zeros(copies, 2 + self.context * (self.obs_size + self.width + 1), device=self.device)

    def _unpack(self, memory: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        rows, sizes = len(memory), [2, *(self.context * s for s in (self.obs_size, self.width, 1))]
        head, obs, actions, wanted = memory.split(sizes, 1)
        windows = (part.reshape(rows, self.context, -1) for part in (obs, actions))
        return head[:, 0], head[:, 1], *windows, wanted

    @torch.no_grad()
    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        memory = self.initial_state(len(obs)) if state is None else state
        step, wanted, seen, done, wants = self._unpack(memory)
        wanted = torch.where(step == 0, self.module.target * self.factor, wanted)
        flat = obs.reshape(len(obs), 1, -1).to(torch.float32)
        seen = torch.cat((seen[:, 1:], flat), 1)
        done = torch.cat((done[:, 1:], torch.zeros_like(done[:, :1])), 1)
        wants = torch.cat((wants[:, 1:], wanted.unsqueeze(1)), 1)
        times = step.long().unsqueeze(1) - torch.arange(self.context - 1, -1, -1, device=self.device)
        looked = seen.reshape(len(obs), self.context, *self.obs_shape).to(self.obs_dtype)
        given = done.squeeze(-1).long() if self.module.discrete else done
        was, _ = self.module.training, self.module.eval()
        out = self.module(looked, given, wants, times.clamp(min=0), times >= 0)[:, -1]
        self.module.train(was)
        self.charge(len(obs) * 3 * self.context, grad=False)
        if self.module.discrete:
            action = Categorical(out).sample() if explore else out.argmax(-1)
            done[:, -1, 0] = action.float()
        else:
            action = out
            done[:, -1] = action
        rest = (seen.flatten(1), done.flatten(1), wants)
        return Act(action, None, torch.cat((torch.stack((step + 1, wanted), 1), *rest), 1))

    def rewarded(self, memory: Tensor, reward: Tensor) -> Tensor:
        """The memory after an action was paid."""
        memory = memory.clone()
        memory[:, 1] -= reward.to(memory)
        return memory

    def to_env(self, action: Tensor) -> Tensor:
        return action if self.module.discrete else rescale(action, self.low, self.high).reshape(-1, *self.shape)

    def from_env(self, action: Tensor) -> Tensor:
        """Recorded actions as the net means them: choices as they are, numbers in [-1, 1]."""
        if self.module.discrete:
            return action
        return unscale(action.to(self.low).flatten(1), self.low, self.high).clamp(-1, 1)

    def evaluate(self, batch: Batch, want: Sequence[str] = ()) -> PolicyOut:
        """Log-probs of stored choices, or zeros and `extras["mean"]` for continuous actions."""
        obs, actions = batch["obs"][:, :-1], batch["actions"]
        self.charge(3 * obs.shape[0] * obs.shape[1])
        out = self.module(obs, actions, batch["returns_to_go"], batch["step"], batch["mask"])
        if not self.module.discrete:
            return PolicyOut(torch.zeros(obs.shape[:2], device=obs.device), None, None, {"mean": out})
        dist = Categorical(out)
        return PolicyOut(dist.log_prob(actions), dist.entropy(), None, {})


@component("net")
@dataclass
class DecisionTransformer:
    """A causal transformer over returns to go, observations and actions (Chen et al. 2021, arXiv 2106.01345).

    Args:
        context: steps that it sees.
        width: of the tokens.
        layers, heads: of the transformer.
        dropout: in training.
        factor: what is asked for at the start of an episode, as a share of the best recorded return.
        normalise: standardise vector observations by statistics of the data.
        weights: folder of saved weights to start from.
    """

    context: int = 20
    width: int = 128
    layers: int = 3
    heads: int = 1
    dropout: float = 0.1
    factor: float = 1.0
    normalise: bool = False
    weights: str = ""

    fits_task = True

    def __post_init__(self) -> None:
        if self.context < 1:
            raise ValueError(f"context must be at least 1, got {self.context}")

    def make(
        self, *, role: str, meter: Any, device: torch.device, trained: bool, task: Any, of: Any = None
    ) -> DecisionPolicy:
        space = task.action_space
        if not isinstance(space, Discrete):
            if not isinstance(space, Box):
                raise RecipeError(f"models.{role}: decision_transformer takes choices or bounded numbers, "
                                  f"not {describe_space(space)}")  # fmt: skip
            bounded_box(space, role)
        actions = space.n if isinstance(space, Discrete) else int(space.low.numel())
        net = DecisionNet(task.observation_space, actions, isinstance(space, Discrete), task.max_steps or 1000, self)
        handle = handle_of(DecisionPolicy, net, self, "decision_transformer", role, meter, device, trained)
        handle.prepare(space, task.observation_space, self.context, self.factor)
        return handle
