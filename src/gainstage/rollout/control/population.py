"""A generation at once: N policies of one shape, their weights stacked, each in copies of its own.

Member n plays copies `n C .. (n + 1) C - 1`. The c-th copies of all members start from the same seed and every draw is
shared, so members differ by their weights alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gainstage.rollout.control.env_steps import Fragment

LogProbs = Callable[[Tensor], Tensor]
"""Log-probs of all choices, `"N C A"`, of the members at observations `"N C *"`."""


class Population:
    """`members` x `copies` environments and the policies that act in them.

    Args:
        env: made for `members * copies` copies.
        members: N.
        seeds: of the copies of one member.
    """

    def __init__(self, env: Any, members: int, seeds: Sequence[int]) -> None:
        self.env, self.members, self.copies = env, members, len(seeds)
        if env.size != members * len(seeds):
            raise ValueError(f"population: {members} members of {len(seeds)} copies need {members * len(seeds)}, "
                             f"the environment has {env.size}")  # fmt: skip
        self.obs = env.reset([int(seed) for _ in range(members) for seed in seeds])

    def act(self, logprobs: LogProbs) -> tuple[Tensor, Tensor]:
        """Choices `Int64 "N C"` and their log-probs, by Gumbel's trick with noise that the members share."""
        logp = logprobs(self.obs.unflatten(0, (self.members, self.copies)))
        noise = torch.empty(logp.shape[1:], device=logp.device).exponential_().log()
        action = (logp - noise).argmax(-1)
        return action, logp.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    @torch.no_grad()
    def collect(self, logprobs: LogProbs, steps: int) -> dict[str, Tensor]:
        """A fragment of every copy, columns `"NC T *"` as `env_steps` writes them."""
        kept = Fragment()
        for _ in range(steps):
            action, logp = self.act(logprobs)
            flat = action.flatten()
            stepped = self.env.step(flat)
            kept.add(
                mask=torch.ones_like(stepped.terminated), obs=self.obs, actions=flat, rewards=stepped.reward,
                terminated=stepped.terminated, cut=stepped.truncated & ~stepped.terminated,
                next_obs=stepped.next_obs, behaviour_logprobs=logp.flatten(),
            )  # fmt: skip
            self.obs = stepped.obs
        return kept.batch(last=self.obs).columns

    @torch.no_grad()
    def returns(self, logprobs: LogProbs, most: int) -> Tensor:
        """Mean return of the first episode of every copy, `Float64 "N"`; those that run on after `most` steps count
        as they stand."""
        total = torch.zeros(self.env.size, dtype=torch.float64, device=self.obs.device)
        running = torch.ones(self.env.size, dtype=torch.bool, device=self.obs.device)
        for _ in range(most):
            stepped = self.env.step(self.act(logprobs)[0].flatten())
            self.obs = stepped.obs
            total += torch.where(running, stepped.reward.double(), 0.0)
            running &= ~(stepped.terminated | stepped.truncated)
            if not bool(running.any()):
                break
        return total.unflatten(0, (self.members, self.copies)).mean(1)
