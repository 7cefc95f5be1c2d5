"""How nets of intrinsic rewards learn: a few passes over each rollout, with an optimizer of their own."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def passes(count: int, epochs: int, minibatches: int, device: torch.device) -> Iterator[Tensor]:
    """Places `Int64 "n"` of the minibatches of several passes over `count` rows, in an order of chance."""
    for _ in range(epochs):
        yield from torch.randperm(count, device=device).chunk(minibatches)


def descend(opt: torch.optim.Optimizer, loss: Tensor, whose: str) -> float:
    """One step down a loss, and what it was.

    Raises:
        FloatingPointError: the loss is not finite; the message says `whose`, and the weights are as before.
    """
    if not bool(torch.isfinite(loss)):
        raise FloatingPointError(f"{whose} loss is not finite; lower its lr")
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return float(loss.detach())
