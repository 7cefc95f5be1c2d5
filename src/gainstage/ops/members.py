"""Several estimates of one value as one."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

Members = Literal["min", "mean", "max", "first"]


def one_value(q: Tensor, how: Members = "min") -> Tensor:
    """`q "M N"` of M members to `"N"`."""
    if how == "first":
        return q[0]
    return q.mean(0) if how == "mean" else q.amin(0) if how == "min" else q.amax(0)
