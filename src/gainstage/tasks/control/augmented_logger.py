"""A logger that tries shortcuts which it learned from its own log, while it logs (arXiv 2605.13401).

The hand-over between the script and the tries, and the guard against bad ones, are worked out here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from gainstage.models.mlp import MLP
from gainstage.ops.shortcuts import shortcuts
from gainstage.tasks.control.controller import Controller
from gainstage.tasks.control.positioning import Positioning
from gainstage.types.episodes import Episode

STEPS, BATCH, RATE = 400, 256, 3e-3
"""Of each fit: gradient steps, rows a step, learning rate of Adam."""


class Augmentor(nn.Module):
    """What shortcut an observation calls for: `"N *"` to moves `"N A"`, no longer than `reach`."""

    mean: Tensor
    std: Tensor

    def __init__(self, seen: int, dims: int, reach: float) -> None:
        super().__init__()
        self.reach = reach
        self.net = MLP([seen, 64, 64, dims], "relu")
        self.register_buffer("mean", torch.zeros(seen))
        self.register_buffer("std", torch.ones(seen))

    def forward(self, obs: Tensor) -> Tensor:
        return self.net((obs - self.mean) / self.std)

    @torch.no_grad()
    def move(self, obs: Tensor) -> Tensor:
        """The move, shortened to the reach."""
        out = self(obs)
        return out * (self.reach / out.norm(dim=1, keepdim=True).clamp(min=self.reach))

    def fit(self, obs: Tensor, moves: Tensor) -> None:
        """Regression by the Huber loss from the weights that are there."""
        self.mean.copy_(obs.mean(0))
        self.std.copy_(obs.std(0).clamp(min=1e-3))
        optimizer = torch.optim.Adam(self.net.parameters(), RATE)
        with torch.enable_grad():
            for _ in range(STEPS):
                rows = torch.randint(len(obs), (min(BATCH, len(obs)),))
                loss = huber_loss(self(obs[rows]), moves[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


class AugmentedLogger(Controller):
    """A script whose moves now and then give way to a learned shortcut, which is taken back where it did harm.

    After a try the script is told to search its axis anew from where it is (`resync`). Where a try was paid less than
    the step before it, the next move undoes it and the script is left alone for `rest` steps; all of it is logged.

    Args:
        task: positioning.
        logger: the script.
        chance: of a try at each step.
        first: episodes that are logged by the script alone.
        every: episodes after which the augmentor is fitted anew.
        tolerance: by how much a try may be paid less.
        rest: steps without a try after one that did harm.
        seed: of draws and fits.
    """

    def __init__(
        self, task: Positioning, logger: Controller, chance: float = 0.5, first: int = 10, every: int = 10,
        tolerance: float = 0.0, rest: int = 3, seed: int = 0,
    ) -> None:  # fmt: skip
        if not 0 <= chance <= 1:
            raise ValueError(f"chance must lie in [0, 1], got {chance}")
        if first < 1 or every < 1 or rest < 0 or tolerance < 0:
            raise ValueError("first and every must be at least 1, rest and tolerance at least 0")
        self.task, self.logger, self.chance, self.tolerance, self.rest = task, logger, chance, tolerance, rest
        self.first, self.chunk, self.seed = first, every, seed
        """`chunk`: episodes between two calls of `learn`."""
        self.generator = torch.Generator().manual_seed(seed)
        self.augmentor: Augmentor | None = None
        self.episodes = self.fits = self.probes = self.undone = self.size = 0
        self.obs: list[Tensor] = []
        self.moves: list[Tensor] = []

    # -- acting ---------------------------------------------------------------------------------------------------

    def reset(self, ended: Tensor) -> None:
        ended = ended.cpu()
        if len(ended) != self.size:
            self.size = len(ended)
            self.cool = torch.zeros(self.size, dtype=torch.int64)
            self.probing, self.back = torch.zeros(2, self.size, dtype=torch.bool)
            self.before = torch.full((self.size,), -torch.inf)
            self.last = torch.zeros(self.size, self.task.dims)
        self.logger.reset(ended)
        self.cool = torch.where(ended, 0, self.cool)
        self.probing, self.back = self.probing & ~ended, self.back & ~ended
        self.before = torch.where(ended, -torch.inf, self.before)

    def act(self, obs: Tensor) -> Tensor:
        if len(obs) != self.size:
            self.reset(torch.ones(len(obs), dtype=torch.bool))
        move = self.logger.act(obs).cpu()
        probe = torch.zeros(self.size, dtype=torch.bool)
        if self.augmentor is not None:
            drawn = torch.rand(self.size, generator=self.generator) < self.chance
            probe = drawn & (self.cool == 0) & ~self.back
            move = torch.where(probe.unsqueeze(1), self.augmentor.move(obs.cpu()), move)
        move = torch.where(self.back.unsqueeze(1), -self.last, move)
        if bool((probe | self.back).any()):
            self.logger.resync(probe | self.back)
        self.cool = (self.cool - 1).clamp(min=0)
        self.probes += int(probe.sum())
        self.probing, self.back, self.last = probe, torch.zeros_like(probe), move
        return move.to(obs.device)

    def rewarded(self, reward: Tensor) -> None:
        """What the last move was paid."""
        reward = reward.cpu()
        worse = self.probing & (reward < self.before - self.tolerance)
        self.undone += int(worse.sum())
        self.back = worse
        self.cool = torch.where(worse, self.rest + 1, self.cool)  # the way back is one step
        self.before = reward

    def resync(self, moved: Tensor) -> None:
        """Somebody else moved the copies."""
        self.logger.resync(moved)
        self.back &= ~moved.cpu()

    # -- learning -------------------------------------------------------------------------------------------------

    def learn(self, episodes: Sequence[Episode]) -> None:
        """Take in finished episodes; fit the augmentor where enough are there."""
        for episode in episodes:
            places = episode.obs if self.task.view == "state" else None
            for cut in shortcuts(episode.actions, episode.rewards, self.task.reach, places=places):
                self.obs.append(episode.obs[cut.start])
                self.moves.append(cut.action)
        self.episodes += len(episodes)
        if self.episodes < self.first or not self.obs:
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + self.fits)
            if self.augmentor is None:
                self.augmentor = Augmentor(self.obs[0].numel(), self.task.dims, self.task.reach)
            self.augmentor.fit(torch.stack(self.obs), torch.stack(self.moves).float())
        self.fits += 1

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on logging: script, augmentor and what it learns from, rests, draws."""
        kept = ("cool", "probing", "back", "before", "last") if self.size else ()
        return {
            "logger": self.logger.state_dict(), "generator": self.generator.get_state(),
            "augmentor": None if self.augmentor is None else self.augmentor.state_dict(),
            "obs": torch.stack(self.obs) if self.obs else None,
            "moves": torch.stack(self.moves) if self.moves else None,
            "counts": [self.episodes, self.fits, self.probes, self.undone],
            "copies": {name: getattr(self, name) for name in kept},
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.logger.load_state_dict(state["logger"])
        self.generator.set_state(state["generator"])
        self.obs = [] if state["obs"] is None else list(state["obs"])
        self.moves = [] if state["moves"] is None else list(state["moves"])
        self.episodes, self.fits, self.probes, self.undone = state["counts"]
        if state["augmentor"] is not None:
            self.augmentor = Augmentor(self.obs[0].numel(), self.task.dims, self.task.reach)
            self.augmentor.load_state_dict(state["augmentor"])
        for name, value in state["copies"].items():
            setattr(self, name, value.clone())
            self.size = len(value)
