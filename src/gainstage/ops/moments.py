"""Running mean and standard deviation of a stream."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Kind = Literal["cumulative", "ema", "window"]


@dataclass
class RunningMoments:
    """Mean and (population) standard deviation of all values seen, in float64.

    Batches are merged exactly (Chan et al. 1983), so the result does not depend on how a stream was
    cut. Before the first value the mean is 0 and the std 1. `frozen` ignores updates (evaluation).
    """

    shape: tuple[int, ...] = ()
    """Shape of one value; () for scalars."""
    kind: Kind = "cumulative"
    """`cumulative`: all values alike; `ema`: older batches fade; `window`: the last `window` batches."""
    decay: float = 0.99
    """`ema`: weight that the past keeps at each update; higher forgets more slowly."""
    window: int = 100
    """`window`: how many updates count."""
    frozen: bool = False
    """True: updates are ignored."""
    prior: float = 0.0
    """`cumulative`: values of mean 0 and variance 1 that count as seen before the first; need not be whole."""
    count: Tensor = field(init=False)
    _mean: Tensor = field(init=False)
    _var: Tensor = field(init=False)
    _recent: deque[tuple[Tensor, Tensor, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        if self.kind not in ("cumulative", "ema", "window"):
            raise ValueError(f"moments kind must be cumulative, ema or window, got {self.kind!r}")
        if self.kind == "ema" and not 0 <= self.decay < 1:
            raise ValueError(f"moments decay must lie in [0, 1), got {self.decay}")
        if self.kind == "window" and self.window < 1:
            raise ValueError(f"moments window must be at least 1, got {self.window}")
        if self.prior < 0 or (self.prior and self.kind != "cumulative"):
            raise ValueError(f"moments prior must be at least 0, and only for kind cumulative, got {self.prior}")
        self.shape = tuple(self.shape)
        self.count = torch.tensor(self.prior, dtype=torch.float64)
        self._mean = torch.zeros(self.shape, dtype=torch.float64)
        self._var = torch.full(self.shape, float(self.prior > 0), dtype=torch.float64)
        self._recent = deque(maxlen=self.window)

    @property
    def mean(self) -> Tensor:
        return self._mean

    @property
    def std(self) -> Tensor:
        return self._var.sqrt() if self.count > 0 else torch.ones(self.shape, dtype=torch.float64)

    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Take in `x "N *shape"` (any number of leading axes); `mask` picks the leading entries that count.

        Raises:
            ValueError: a value that counts is not finite; the moments stay as they were.
        """
        if self.frozen:
            return
        lead = x.dim() - len(self.shape)
        values = x.detach().to("cpu", torch.float64)
        values = values[mask.bool().cpu()] if mask is not None else values.reshape(-1, *x.shape[lead:])
        if not len(values):
            return
        if not bool(torch.isfinite(values).all()):
            raise ValueError("running moments: a value is NaN or infinite")
        batch = (torch.tensor(float(len(values)), dtype=torch.float64), values.mean(0), values.var(0, unbiased=False))
        if self.kind == "cumulative":
            self.count, self._mean, self._var = merge((self.count, self._mean, self._var), batch)
        elif self.kind == "window":
            self._recent.append(batch)
            self.count, self._mean, self._var = self._recent[0]
            for other in list(self._recent)[1:]:
                self.count, self._mean, self._var = merge((self.count, self._mean, self._var), other)
        else:
            self._fade(batch)

    def _fade(self, batch: tuple[Tensor, Tensor, Tensor]) -> None:
        """Mixture of past and batch with weights `decay` and `1 - decay`; the first batch counts alone."""
        keep = self.decay if self.count > 0 else 0.0
        gap = batch[1] - self._mean
        self._mean = keep * self._mean + (1 - keep) * batch[1]
        self._var = keep * self._var + (1 - keep) * batch[2] + keep * (1 - keep) * gap**2
        self.count = self.count + batch[0]

    def state_dict(self) -> dict[str, Any]:
        """Tensors only."""
        state = {"count": self.count, "mean": self._mean, "var": self._var}
        for name, position in (("recent_count", 0), ("recent_mean", 1), ("recent_var", 2)):
            if self._recent:
                state[name] = torch.stack([batch[position] for batch in self._recent])
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self._mean, self._var = state["count"], state["mean"], state["var"]
        recent = zip(*(state[f"recent_{name}"] for name in ("count", "mean", "var"))) if "recent_count" in state else ()
        self._recent = deque(recent, maxlen=self.window)


def merge(a: tuple[Tensor, Tensor, Tensor], b: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and population variance of two samples put together."""
    count = a[0] + b[0]
    gap = b[1] - a[1]
    mean = a[1] + gap * b[0] / count
    var = (a[0] * a[2] + b[0] * b[2] + gap**2 * a[0] * b[0] / count) / count
    return count, mean, var
