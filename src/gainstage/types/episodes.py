"""Recorded episodes: one, and many end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

STEPS = ("obs", "actions", "rewards", "terminated", "truncated")
"""Columns that every episode has."""


@dataclass(frozen=True)
class Episode:
    """What happened from a reset on, `T` decisions.

    Attributes:
        obs: `"T+1 *"`, the last one is what the last action led to.
        actions: `"T *"`, as the environment took them.
        rewards: `Float32 "T"`.
        terminated, truncated: `Bool "T"`.
        info: further facts of each step, `"T *"`.
        seed: what the environment was reset with.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    info: Mapping[str, Tensor] = field(default_factory=dict)
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.rewards)


@dataclass(frozen=True)
class EpisodeSet:
    """`E` episodes end to end, `N` decisions in all.

    Attributes:
        lengths: decisions of each, `Int64 "E"`.
        obs: `"N+E *"`, one more than decisions an episode.
        actions, rewards, terminated, truncated, info: as an episode has them, `"N *"`.
    """

    lengths: Tensor
    obs: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    info: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def join(cls, episodes: Sequence[Episode]) -> EpisodeSet:
        """Put episodes end to end.

        Raises:
            ValueError: there is none, or they have different facts.
        """
        if not episodes:
            raise ValueError("there is no episode")
        names = set(episodes[0].info)
        if any(set(episode.info) != names for episode in episodes):
            raise ValueError("the episodes do not all have the same facts in info")
        return cls(
            lengths=torch.tensor([len(episode) for episode in episodes]),
            **{name: torch.cat([getattr(episode, name) for episode in episodes]) for name in STEPS},
            info={name: torch.cat([episode.info[name] for episode in episodes]) for name in sorted(names)},
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> Episode:
        """The n-th episode, as views."""
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        number %= len(self)
        begin, count = int(self.lengths[:number].sum()), int(self.lengths[number])
        steps = slice(begin, begin + count)
        return Episode(
            obs=self.obs[begin + number : begin + number + count + 1],
            actions=self.actions[steps],
            rewards=self.rewards[steps],
            terminated=self.terminated[steps],
            truncated=self.truncated[steps],
            info={name: value[steps] for name, value in self.info.items()},
        )
