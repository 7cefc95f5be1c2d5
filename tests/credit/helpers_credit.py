"""Small batches for credit tests."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gainstage.types import Batch, PolicyOut


def batch_of(
    lengths: Sequence[int], reward: Sequence[float] | None = None, group: Sequence[int] | None = None, **columns: Any
) -> Batch:
    """Rows of `lengths` decisions (all real, padded on the right); further columns by keyword, `__` for `/`."""
    width = max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths).unsqueeze(1)
    made: dict[str, Tensor] = {"mask": mask, "group": torch.tensor(group if group is not None else [0] * len(lengths))}
    if reward is not None:
        made["reward"] = torch.tensor(reward)
    for name, value in columns.items():
        made[name.replace("__", "/")] = torch.as_tensor(value)
    return Batch(made)


class Scorer:
    """A role that gives fixed log-probs and values, and counts how often it is asked."""

    def __init__(self, logprobs: Tensor, values: Tensor | None = None) -> None:
        self.logprobs, self.values, self.calls = logprobs, values, 0

    def evaluate(self, batch: Batch, want: Sequence[str] = ()) -> PolicyOut:
        self.calls += 1
        return PolicyOut(self.logprobs.clone().requires_grad_(), values=self.values if "values" in want else None)


def context(**roles: Any) -> Any:
    """A context with roles and a log."""
    logged: dict[str, float] = {}
    return SimpleNamespace(models=roles, log=lambda name, value: logged.__setitem__(name, value), logged=logged)
