"""Reward terms made of the policy's own probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gainstage.ops.divergences import kl_estimate
from gainstage.ops.masked import masked_mean, masked_sum
from gainstage.ops.schedules import Schedule
from gainstage.registry import component
from gainstage.types import Batch


def token_kl(logp: Tensor, ref: Tensor, mask: Tensor, beta: float, clamp: bool = False) -> Tensor:
    """`-beta (log pi_old - log pi_ref)` on each decision, `Float "B T"`, zeros off the mask.

    The k1 estimate may be negative on single tokens; its mean is the KL (Stiennon et al., arXiv 2009.01325).

    Args:
        logp: log-probs at sampling time.
        ref: log-probs under the reference, same context and temperature.
        mask: decisions, `Bool "B T"`.
        beta: price of one nat.
        clamp: negative estimates count as 0, which overestimates the KL.
    """
    zero = torch.zeros_like(logp)
    k1 = kl_estimate(torch.where(mask.bool(), logp, zero), torch.where(mask.bool(), ref, zero), "k1")
    return -beta * (k1.clamp(min=0) if clamp else k1)


@component("reward")
@dataclass
class TokenKl:
    """The KL to a reference as a price on every token, before returns are formed (PPO-RLHF, REINFORCE++).

    Scores the reference where `ref_logprobs` is absent and writes that column. With a `target` the price
    follows the KL (Ziegler et al., arXiv 1909.08593, 2.2). Do not add a KL to the loss as well.
    """

    beta: float = 0.01
    """Price of one nat; higher stays closer to the reference."""
    role: str = "reference"
    """Role that is stayed close to."""
    target: float | None = None
    """Nats an answer that `beta` is steered to; absent: `beta` is fixed."""
    horizon: float = 10_000.0
    """Answers over which the controller closes a gap; higher is slower."""
    clamp: bool = False
    """Negative single-token estimates count as 0; biased."""

    level = "step"
    needs = ("mask", "behaviour_logprobs", "tokens?", "author?", "temperature?")
    writes = ("ref_logprobs",)

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise ValueError(f"token_kl.beta must not be negative, got {self.beta}")
        if self.target is not None and self.target <= 0:
            raise ValueError(f"token_kl.target must be positive, got {self.target}")
        self._beta = self.beta

    @property
    def uses(self) -> tuple[str, ...]:
        return (self.role,)

    @torch.no_grad()
    def shape(self, batch: Batch, ctx: Any) -> Tensor:
        if "ref_logprobs" not in batch:
            batch["ref_logprobs"] = ctx.models[self.role].evaluate(batch).logprobs.detach()
        mask, logp, ref = batch["mask"], batch["behaviour_logprobs"], batch["ref_logprobs"]
        rewards = token_kl(logp, ref, mask, self._beta, self.clamp)
        answers = int(mask.any(1).sum())
        kl = float(masked_sum(logp - ref, mask)) / max(answers, 1)
        ctx.log("token_kl/kl", kl)
        ctx.log("token_kl/beta", self._beta)
        self._steer(kl, answers)
        return rewards

    def _steer(self, kl: float, answers: int) -> None:
        if self.target is not None:
            error = min(max(kl / self.target - 1, -0.2), 0.2)
            self._beta *= 1 + error * answers / self.horizon

    def state_dict(self) -> dict[str, Any]:
        return {"beta": self._beta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._beta = float(state["beta"])


@component("reward")
@dataclass
class EntropyReward:
    """The policy's entropy as a part of the reward, before returns are formed (EnTRPO, arXiv 2110.13373).

    So an advantage also counts the entropy that is still to come: it pays to reach states where the policy is
    undecided. It is that of the weights that learn now, also on older experience. Returns that are reported do not
    hold it. Do not add an entropy term to the loss as well. Of continuous actions it is the differential entropy,
    which may be negative.
    """

    beta: float = 0.01
    """Worth of one nat, in units of the reward."""
    end: float | None = None
    """Its value at the end of the run, approached in a straight line; absent: it stays."""
    role: str = "policy"
    """Policy whose entropy counts."""

    level = "step"
    needs = ("mask", "obs", "actions")

    def __post_init__(self) -> None:
        if self.beta < 0 or (self.end is not None and self.end < 0):
            raise ValueError(f"beta and end must not be negative, got {self.beta} and {self.end}")
        self.schedule = Schedule("linear", self.beta, self.beta if self.end is None else self.end)

    @property
    def uses(self) -> tuple[str, ...]:
        return (self.role,)

    @torch.no_grad()
    def shape(self, batch: Batch, ctx: Any) -> Tensor:
        entropy = ctx.models[self.role].evaluate(batch, want=("entropy",)).entropy
        if entropy is None:
            raise ValueError(f"entropy_reward: the role {self.role!r} reports no entropy")
        beta = self.schedule(ctx.progress)
        ctx.log("entropy_reward/mean", beta * float(masked_mean(entropy, batch["mask"])))
        return torch.where(batch["mask"].bool(), beta * entropy, 0.0)
