"""One reward as several: schemes that split a number into channels whose weighted sum is the number again.

Source: Fatemi and Tavakoli, orchestrated value mapping (arXiv 2203.07171), and its two schemes for rewards of unknown
scale.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TOPS = (1.0, 10.0, 100.0, 1000.0)
"""Upper ends of the bins of both schemes for unknown scales."""


@dataclass(frozen=True)
class Channels:
    """`L` channels: weights, and what each makes of a reward.

    Args:
        weights: of each channel in the sum; negative for channels of what is bad.
        split: `r "*"` to `"L *"`.
        top: size above which a reward cannot be told from `top`.
    """

    weights: tuple[float, ...]
    split: Callable[[Tensor], Tensor]
    top: float = float("inf")

    def __len__(self) -> int:
        return len(self.weights)

    def total(self, channels: Tensor) -> Tensor:
        """`"L *"` to `"*"`, what the channels add up to."""
        weights = torch.tensor(self.weights, dtype=channels.dtype, device=channels.device)
        return torch.tensordot(weights, channels, dims=1)

    def clipped(self, rewards: Tensor) -> Tensor:
        """Which rewards lie beyond the top, `Bool "*"`."""
        return rewards.abs() > self.top

    def check(self, probe: Tensor) -> None:
        """Whether the channels add up to the rewards of a probe, cut at the top.

        Raises:
            ValueError: they do not; the message names the first reward.
        """
        wanted = probe.double().clamp(-self.top, self.top)
        off = (self.total(self.split(probe.double())) - wanted).abs() > 1e-6 * wanted.abs().clamp(min=1.0)
        if bool(off.any()):
            raise ValueError(f"channels: the reward {float(probe[off][0]):g} is not the weighted sum of its channels")


def _signed(r: Tensor) -> tuple[Tensor, Tensor]:
    return r.clamp(min=0), (-r).clamp(min=0)


def whole() -> Channels:
    """One channel, the reward as it is."""
    return Channels((1.0,), lambda r: r.unsqueeze(0))


def polar() -> Channels:
    """What is good and what is bad, each cut at 1."""
    return ensemble(1)


def ensemble(members: int = 2) -> Channels:
    """`members` copies of both polar channels, each with its share of the weight."""
    if members < 1:
        raise ValueError(f"members must be at least 1, got {members}")
    share = 1 / members
    return Channels(
        (share,) * members + (-share,) * members,
        lambda r: torch.stack(_signed(r)).clamp(max=1).repeat_interleave(members, 0),
        top=1.0,
    )


def bins(tops: Sequence[float] = TOPS) -> Channels:
    """By size: the one channel is active in whose bin the reward lies, `r_j = v / top_j`. Both signs."""
    ends = _tops(tops)

    def half(v: Tensor) -> Tensor:
        v = v.clamp(max=ends[-1])
        lows = (0.0, *ends[:-1])
        return torch.stack(
            [torch.where((v > low) & (v <= top), v / top, 0.0) for low, top in zip(lows, ends, strict=True)]
        )

    return Channels((*ends, *(-e for e in ends)), lambda r: torch.cat([half(v) for v in _signed(r)]), top=ends[-1])


def stacked(tops: Sequence[float] = TOPS) -> Channels:
    """By size, filled from below: each channel takes what of the reward lies in its bin, over the bin's width."""
    ends = _tops(tops)
    lows = (0.0, *ends[:-1])
    widths = tuple(top - low for low, top in zip(lows, ends, strict=True))

    def half(v: Tensor) -> Tensor:
        return torch.stack([(v - low).clamp(0, wide) / wide for low, wide in zip(lows, widths, strict=True)])

    return Channels((*widths, *(-w for w in widths)), lambda r: torch.cat([half(v) for v in _signed(r)]), top=ends[-1])


def _tops(tops: Sequence[float]) -> tuple[float, ...]:
    ends = tuple(float(top) for top in tops)
    if not ends or ends[0] <= 0 or any(a >= b for a, b in itertools.pairwise(ends)):
        raise ValueError(f"tops must rise from above 0, got {list(tops)}")
    return ends


def named(scheme: str, members: int = 2, tops: Sequence[float] = TOPS) -> Channels:
    """A scheme by name.

    Raises:
        ValueError: no such scheme.
    """
    made: dict[str, Callable[[], Channels]] = {
        "whole": whole, "polar": polar, "ensemble": lambda: ensemble(members), "bins": lambda: bins(tops),
        "stacked": lambda: stacked(tops),
    }  # fmt: skip
    if scheme not in made:
        raise ValueError(f"scheme must be one of {', '.join(made)}, got {scheme!r}")
    return made[scheme]()
