"""Policies that remember: a recurrent core between the layers that read an observation and those that answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gainstage.models.mlp import MLP
from gainstage.ops.distributions import Distribution
from gainstage.ops.masked import over
from gainstage.policies.control.action_heads import ActionHead, HeadKind
from gainstage.policies.control.actor_critic import ActorCriticPolicy, one_or_several, reshaped
from gainstage.policies.control.handle import Trunk, handle_of
from gainstage.registry import RecipeError, component
from gainstage.types import Act, Batch, PolicyOut
from gainstage.types.spaces import Space


class RecurrentCore(nn.Module):
    """A GRU or LSTM over rows that may hold several episodes; its memory of a copy is one vector `"B M"`.

    Args:
        width: of the input.
        hidden: of the output.
        kind: `gru` (M = hidden) or `lstm` (M = 2 hidden: output, then cell).
    """

    def __init__(self, width: int, hidden: int, kind: Literal["gru", "lstm"] = "gru") -> None:
        super().__init__()
        if hidden < 1:
            raise RecipeError(f"memory must be at least 1, got {hidden}")
        self.kind, self.hidden = kind, hidden
        self.size = hidden if kind == "gru" else 2 * hidden
        self.layer = (nn.GRU if kind == "gru" else nn.LSTM)(width, hidden, batch_first=True)
        for name, parameter in self.layer.named_parameters():
            nn.init.orthogonal_(parameter) if "weight" in name else nn.init.zeros_(parameter)

    def forward(self, x: Tensor, memory: Tensor, start: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """Outputs `"B T H"`, and the memory `"B M"` after the last step of every stretch without a new episode.

        Args:
            x: `"B T D"`.
            memory: `"B M"` before the first step.
            start: `Bool "B T"`, an episode begins with this step: what was remembered is forgotten first.
        """
        steps = x.shape[1]
        begun = [t for t in start.any(0).nonzero().flatten().tolist() if t]
        out, after = [], {}
        for a, b in itertools.pairwise((0, *begun, steps)):
            memory = torch.where(start[:, a].unsqueeze(1), 0.0, memory)
            y, memory = self.run(x[:, a:b], memory)
            out.append(y)
            after[b - 1] = memory
        return torch.cat(out, 1), after

    def run(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Steps of one episode each: outputs `"B T H"` and the memory after the last one."""
        if self.kind == "gru":
            y, last = self.layer(x, memory.unsqueeze(0).contiguous())
            return y, last.squeeze(0)
        parts = [part.unsqueeze(0).contiguous() for part in memory.chunk(2, 1)]
        y, last = self.layer(x, tuple(parts))
        return y, torch.cat(last, 2).squeeze(0)


class RecurrentNet(nn.Module):
    """Trunk, core, and on top of it an action head and values."""

    def __init__(self, spec: RecurrentActorCritic, observations: Space, actions: Space) -> None:
        super().__init__()
        gain = 2**0.5
        self.trunk = Trunk(observations, spec.hidden, spec.activation, gain=gain, normalise=spec.normalise)
        self.core = RecurrentCore(self.trunk.width, spec.memory, spec.core)
        self.head = ActionHead(spec.memory, actions, spec.head, spec.log_std, spec.state_std, gain=0.01)
        self.value = MLP([spec.memory, spec.streams], gain=1.0)

    def values(self, features: Tensor) -> Tensor:
        """`"N"`, or `"N S"` for several streams."""
        return one_or_several(self.value(features))


class RecurrentPolicy(ActorCriticPolicy):
    """Acts, scores stored actions and estimates values by what it remembers of the episode."""

    module: RecurrentNet  # type: ignore[assignment]
    markov = False

    def initial_state(self, copies: int) -> Tensor:
        """The memory of an episode that begins, `"copies M"`."""
        return torch.zeros(copies, self.module.core.size, device=self.device)

    @torch.no_grad()
    def act(self, obs: Tensor, state: Any = None, *, explore: bool = True) -> Act:
        """An action a copy with its log-prob, and what is remembered after it."""
        state = self.initial_state(len(obs)) if state is None else state
        y, memory = self.module.core.run(self.module.trunk(obs).unsqueeze(1), state)
        dist = self.module.head(y.squeeze(1))
        action = dist.sample() if explore else dist.mode()
        return Act(action, dist.log_prob(action), memory)

    def distribution(self, batch: Batch) -> Distribution:
        """The policy's distribution at every decision, batch axes `"B T"`."""
        y, _ = self._remember(batch)
        return reshaped(self.module.head(y.flatten(0, 1)), y.shape[:2])

    def evaluate(self, batch: Batch, want: Sequence[str] = ()) -> PolicyOut:
        """Log-probs of the stored actions; on request `entropy`, `values`, `next_values` (in `extras`).

        Raises:
            ValueError: rows are not fragments as they were collected.
        """
        y, after = self._remember(batch)
        lead = y.shape[:2]
        dist = self.module.head(y.flatten(0, 1))
        logprobs = dist.log_prob(batch["actions"].flatten(0, 1)).reshape(lead)
        entropy = dist.entropy().reshape(lead) if "entropy" in want else None
        values = self.module.values(y) if "values" in want or "next_values" in want else None
        extras = {}
        if "next_values" in want:
            assert values is not None
            extras["next_values"] = self._next_values(batch, values, after)
        return PolicyOut(logprobs, entropy, values, extras)

    def _remember(self, batch: Batch) -> tuple[Tensor, dict[int, Tensor]]:
        if "state0" not in batch:
            raise ValueError(
                f"role {self.role!r} remembers, so it needs rows as env_steps collected them, with what was remembered "
                "before (column state0): set plan.unit=row, and a store that keeps fragments whole (on_policy)"
            )
        obs, lead = self.decisions(batch)
        x = self.module.trunk(obs).reshape(*lead, -1)
        return self.module.core(x, batch["state0"], batch["start"])

    def _next_values(self, batch: Batch, values: Tensor, after: dict[int, Tensor]) -> Tensor:
        """Value after each decision: the row's next one; where an episode is cut or the row ends, of the true
        observation, remembered up to there. After a real end the number is not used."""
        out = torch.cat((values[:, 1:], torch.zeros_like(values[:, :1])), 1)
        anew = batch["cut"].clone()
        anew[:, -1] = True
        for t in anew.any(0).nonzero().flatten().tolist():
            y, _ = self.module.core.run(self.module.trunk(batch["next_obs"][:, t]).unsqueeze(1), after[t])
            found = self.module.values(y.squeeze(1))
            out[:, t] = torch.where(over(anew[:, t], found), found, out[:, t])
        return out


@component("net")
@dataclass
class RecurrentActorCritic:
    """Policy and value net with a memory, for tasks whose observation does not tell everything.

    Its rows are never cut into single decisions: minibatches are of rows (`plan.unit: row`).

    Args:
        core: `gru` or `lstm`.
        memory: width of the core.
        hidden: widths of the layers before it.
        activation: tanh, relu, elu, silu or gelu.
        head: `auto`; `tanh` squashes continuous actions into their bounds.
        log_std: start of the log-std of continuous actions.
        state_std: the log-std depends on the state.
        streams: value outputs, one for each stream of rewards.
        normalise: standardise vector observations by running statistics (moved by an `observation_statistics` entry).
        weights: folder of saved weights to start from.
    """

    core: Literal["gru", "lstm"] = "gru"
    memory: int = 64
    hidden: list[int] = field(default_factory=lambda: [64])
    activation: str = "tanh"
    head: HeadKind = "auto"
    log_std: float = 0.0
    state_std: bool = False
    streams: int = 1
    normalise: bool = False
    weights: str = ""

    fits_task = True
    """Is made for a task's spaces."""

    def make(
        self, *, role: str, meter: Any, device: torch.device, trained: bool, task: Any, of: Any = None
    ) -> RecurrentPolicy:
        net = RecurrentNet(self, task.observation_space, task.action_space)
        return handle_of(RecurrentPolicy, net, self, "recurrent_actor_critic", role, meter, device, trained)
