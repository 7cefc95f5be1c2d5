"""Reward to go of recorded episodes."""

from __future__ import annotations

import torch
from torch import Tensor


def reward_to_go(rewards: Tensor, lengths: Tensor, gamma: float) -> Tensor:
    """`G_t = r_t + gamma G_{t+1}` within each of the episodes that lie end to end in `rewards "N"`, Float64 "N".

    A time limit ends the sum like a real end: what would have followed is not recorded.
    """
    offsets = (lengths.cumsum(0) - lengths).tolist()
    out = torch.empty(len(rewards), dtype=torch.float64)
    count, longest = len(lengths), int(lengths.max()) if len(lengths) else 0
    padded = torch.zeros(count, longest, dtype=torch.float64)
    for row, (start, size) in enumerate(zip(offsets, lengths.tolist(), strict=True)):
        padded[row, longest - size :] = rewards[start : start + size].double()
    running = torch.zeros(count, dtype=torch.float64)
    for t in reversed(range(longest)):
        running = padded[:, t] + gamma * running
        padded[:, t] = running
    for row, (start, size) in enumerate(zip(offsets, lengths.tolist(), strict=True)):
        out[start : start + size] = padded[row, longest - size :]
    return out
