"""Running statistics of observations, kept as buffers of the net that reads them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ObservationNormalizer(nn.Module):
    """`(x - mean) / std`, cut at `clip` stds; a std below `floor` counts as `floor`.

    The statistics move by `update` alone, never by looking.
    Buffers: they are saved with the weights, and copies of the net carry them.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], clip: float = 10.0, eps: float = 1e-8, floor: float = 0.0) -> None:
        super().__init__()
        self.clip, self.eps, self.floor = clip, eps, floor
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        scale = (self.var.clamp(min=self.floor**2) + self.eps).rsqrt().to(torch.float32)
        return ((x - self.mean.to(torch.float32)) * scale).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take in observations `"N *"`; counts, means and variances of two samples are merged exactly."""
        if not len(x):
            return
        x = x.detach().to(torch.float64)
        if not bool(torch.isfinite(x).all()):
            raise ValueError("observation statistics: an observation is NaN or infinite")
        count, mean, var = float(len(x)), x.mean(0), x.var(0, unbiased=False)
        total = self.count + count
        gap = mean - self.mean
        spread = self.var * self.count + var * count + gap.square() * self.count * count / total
        self.mean.add_(gap * count / total)
        self.var.copy_(spread / total)
        self.count.copy_(total)


class GoalNormalizer(ObservationNormalizer):
    """For observations that hold a goal: the numbers of arXiv 1707.01495, std at least 0.01 and a cut at 5.

    Where goals are changed in hindsight the statistics have to see the changed ones too (`observation_statistics` of
    what is drawn), or the goals that are learned from lie far outside of what was asked for.
    """

    def __init__(self, shape: tuple[int, ...], clip: float = 5.0, eps: float = 0.0, floor: float = 0.01) -> None:
        super().__init__(shape, clip, eps, floor)
