"""From rewards of rows and turns to rewards of decisions."""

from __future__ import annotations

import torch
from torch import Tensor


def place_on_last(values: Tensor, mask: Tensor) -> Tensor:
    """`values "B"` on the last true position of `mask "B T"`, zeros elsewhere; a row without one gets nothing."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, positions, -1).amax(1, keepdim=True)
    return torch.where((positions == last) & mask, values.unsqueeze(1).to(torch.float32), 0.0)


def settle_on_decisions(values: Tensor, mask: Tensor) -> Tensor:
    """`values "B T"` on decisions alone: what stands between two of them (tool output, padding) joins the one
    before it, or the row's first where there is none. NaN outside the mask is 0; a row without decisions loses all."""
    values = torch.where(mask, values, torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0))
    number = (mask.cumsum(1) - 1).clamp(min=0)
    sums = torch.zeros_like(values).scatter_add(1, number, values)
    return torch.where(mask, sums.gather(1, number), torch.zeros_like(values))


def place_on_turns(values: Tensor, turn: Tensor, mask: Tensor) -> Tensor:
    """`values "B U"` on the last decision of each turn, `"B T"`; a turn without a decision passes its
    reward to the last decision before it, or to the first one after it where there is none."""
    out = torch.zeros(mask.shape, device=mask.device)
    steps = torch.arange(mask.shape[1], device=mask.device)
    for index in range(values.shape[1]):
        before = torch.where(mask & (turn <= index), steps, -1).amax(1)
        after = torch.where(mask, steps, mask.shape[1]).amin(1)
        place = torch.where(before >= 0, before, after)
        valid = place < mask.shape[1]
        rows = torch.nonzero(valid).squeeze(1)
        out[rows, place[rows]] += values[rows, index]
    return out
