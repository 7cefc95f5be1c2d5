"""Generalised advantage estimation (Schulman et al., arXiv 1506.02438, eq. 16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gainstage.credit import STEP_REWARDS
from gainstage.credit.returns.discounted import Decisions
from gainstage.registry import component
from gainstage.types import Batch, column

column("bonus", "step")  # a stream of rewards of its own, beside `rewards`
column("stream_advantages", "step", dims="S")  # of each stream of rewards, before they are mixed
column("cut", "step")  # a time limit or a fragment's border cut the episode after this decision; a value may follow


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor | None = None,
    terminated: Tensor | None = None,
    truncated: Tensor | None = None,
    gamma: float | Sequence[float] = 1.0,
    lam: float | Sequence[float] = 0.95,
    mask: Tensor | None = None,
    episodic: bool | Sequence[bool] = True,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns (`advantage + value`), the shape of `rewards`, zeros off the mask.

    `delta = r + gamma V' (not terminated) - V`; the carry `gamma lam A'` stops at either flag and at the
    row's end. Positions between two decisions neither discount nor cut, and their values change nothing.

    Args:
        rewards: `Float "B T"`, or `"S B T"` for S reward streams.
        values: value before each decision, same shape.
        next_values: value after each decision, same shape: at a cut, that of the true last observation.
            Absent: the value at the row's next decision, and 0 after its last one (a text ends there).
        terminated: `Bool "B T"`, a real end: no value follows.
        truncated: `Bool "B T"`, cut off: the carry stops, the value stays. Where both flags are set it is a real end.
        gamma, lam: numbers, or one per stream.
        mask: `Bool "B T"`, decisions; all where absent.
        episodic: false lets a stream run through the ends of episodes into the row's next decision (intrinsic rewards
            of RND, arXiv 1810.12894).

    Raises:
        ValueError: a truncation before the row's last decision without `next_values`.
    """
    if rewards.dim() == 3:
        streams = [
            gae(
                rewards[s], values[s], None if next_values is None else next_values[s], terminated, truncated,
                _of_stream(gamma, s), _of_stream(lam, s), mask, bool(_of_stream(episodic, s)),
            )
            for s in range(rewards.shape[0])
        ]  # fmt: skip
        return torch.stack([a for a, _ in streams]), torch.stack([g for _, g in streams])
    assert not isinstance(gamma, Sequence) and not isinstance(lam, Sequence)
    decisions = Decisions.of(torch.ones_like(rewards, dtype=torch.bool) if mask is None else mask)
    ends, cuts = (_flags(flag if episodic else None, decisions) for flag in (terminated, truncated))
    r, v = decisions.settle(rewards), decisions.pull(values)
    following = torch.cat((v[:, 1:], torch.zeros_like(v[:, :1])), 1)
    inner = decisions.valid & torch.cat((decisions.valid[:, 1:], torch.zeros_like(decisions.valid[:, :1])), 1)
    if next_values is not None:
        after = decisions.pull(next_values)
        following = after if episodic else torch.where(inner, following, after)
    elif bool((cuts & ~ends & inner).any()):
        raise ValueError("gae: an episode is cut inside a row, so the value after the cut must come as next_values")
    following = torch.where(ends, torch.zeros_like(following), following)
    delta = torch.where(decisions.valid, r + gamma * following - v, torch.zeros_like(r))
    keep = gamma * lam * (~(ends | cuts)).to(delta.dtype)
    advantages = torch.zeros_like(delta)
    carry = torch.zeros_like(delta[:, 0])
    for k in reversed(range(delta.shape[1])):
        carry = delta[:, k] + keep[:, k] * carry
        advantages[:, k] = carry
    return decisions.push(advantages), decisions.push(advantages + v)


def _of_stream(setting: Any, stream: int) -> Any:
    return setting[stream] if isinstance(setting, (Sequence, Tensor)) else setting


def _flags(flag: Tensor | None, decisions: Decisions) -> Tensor:
    if flag is None:
        return torch.zeros_like(decisions.valid)
    return decisions.settle(flag.to(torch.float32)) > 0


@component("credit")
@dataclass
class Gae:
    """Advantages from a value function, with a dial between low variance (lam 0) and no bias (lam 1).

    With `streams` each stream of rewards has a value, a return and an advantage of its own (`stream_advantages`, which
    `mix` adds up); `gamma`, `lam` and `episodic` are then one number for all or a list.
    """

    gamma: float | list[float] = 1.0
    """Discount per decision; 1 for answers with one reward at the end, about 0.99 for control."""
    lam: float | list[float] = 0.95
    """Higher trusts rewards, lower trusts values; 1 is reward to go minus value."""
    role: str | None = None
    """Role whose value head scores the stored decisions; absent: the rollout has recorded `values`."""
    streams: list[str] | None = None
    """Columns of rewards, one for each value output, as `[rewards, bonus]`; absent: all rewards are one stream."""
    episodic: bool | list[bool] = True
    """False: the stream runs through the ends of episodes."""

    def __post_init__(self) -> None:
        for name, setting in (("gamma", self.gamma), ("lam", self.lam), ("episodic", self.episodic)):
            if isinstance(setting, list) and len(setting) != len(self.streams or ()):
                raise ValueError(
                    f"gae.{name} has {len(setting)} numbers for {len(self.streams or ())} streams; "
                    "give one for all, or one for each column that gae.streams names"
                )
            for value in setting if isinstance(setting, list) else [setting]:
                if not 0 <= value <= 1:
                    raise ValueError(f"gae.{name} must lie in [0, 1], got {value}")
        if self.streams is not None and not self.streams:
            raise ValueError("gae.streams names no column; leave it out for one stream of all rewards")

    @property
    def needs(self) -> tuple[str, ...]:
        named = [name for name in self.streams or () if name != "rewards"]
        return (*STEP_REWARDS, *named, "next_values?", "terminated?", "cut?", "values?" if self.role else "values")

    @property
    def writes(self) -> tuple[str, ...]:
        found = ("stream_advantages" if self.streams else "advantages", "returns")
        return ("values", "next_values?", *found) if self.role else found

    @property
    def uses(self) -> tuple[str, ...]:
        return (self.role,) if self.role else ()

    @torch.no_grad()
    def estimate(self, batch: Batch, ctx: Any) -> dict[str, Tensor]:
        written: dict[str, Tensor] = {}
        if self.role and "values" not in batch:
            out = ctx.models[self.role].evaluate(batch, want=("values", "next_values"))
            values = out.values
            if "next_values" in out.extras and "next_values" not in batch:
                written["next_values"] = out.extras["next_values"].detach()
            if values is None:
                raise ValueError(
                    f"gae.role={self.role!r} has no value head: name a role that has one, or give this one a head"
                )
            written["values"] = values.detach()
        values = written.get("values", batch.columns.get("values"))
        if values is None:
            raise ValueError("gae: the rollout has recorded no values; name the role that estimates them in gae.role")
        next_values, terminated, cut = (
            written.get(name, batch.columns.get(name)) for name in ("next_values", "terminated", "cut")
        )
        rewards, mask = self._rewards(batch), batch["mask"]
        if values.shape != rewards.shape:
            heads, wanted = (x.shape[2] if x.dim() == 3 else 1 for x in (values, rewards))
            raise ValueError(
                f"gae: {wanted} streams of rewards and {heads} values a decision; give the net as many value outputs "
                f"(models.{self.role or 'policy'}.streams={wanted}) and name as many columns in gae.streams"
            )
        after = None if next_values is None else _streams_first(next_values)
        advantages, returns = gae(
            _streams_first(rewards), _streams_first(values), after, terminated, cut, self.gamma, self.lam, mask,
            self.episodic,
        )  # fmt: skip
        advantages, returns = _streams_last(advantages), _streams_last(returns)
        return {**written, "stream_advantages" if self.streams else "advantages": advantages, "returns": returns}

    def _rewards(self, batch: Batch) -> Tensor:
        """`Float "B T"`, or `"B T S"` where streams are named; a column with an axis of its own brings several."""
        if not self.streams:
            return batch.rewards_at("step")
        found = [batch.rewards_at("step") if name == "rewards" else batch[name] for name in self.streams]
        return torch.cat([x if x.dim() == 3 else x.unsqueeze(-1) for x in found], -1)


def _streams_first(x: Tensor) -> Tensor:
    return x.movedim(-1, 0) if x.dim() == 3 else x


def _streams_last(x: Tensor) -> Tensor:
    return x.movedim(0, -1) if x.dim() == 3 else x
