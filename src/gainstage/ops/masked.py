"""Sums, means and quantiles over real positions. Padding may hold anything, NaN included."""

from __future__ import annotations

import torch
from torch import Tensor

Dim = int | tuple[int, ...] | None


def over(flags: Tensor, value: Tensor) -> Tensor:
    """Flags (or weights) of the leading axes with further axes of size 1, so that they broadcast over `value`."""
    return flags.reshape(*flags.shape, *[1] * (value.dim() - flags.dim()))


def masked_sum(x: Tensor, mask: Tensor, dim: Dim = None) -> Tensor:
    """Sum of `x "B T"` where `mask` is true; masked entries leave before the sum, so they may be NaN."""
    kept = torch.where(mask.bool(), x, torch.zeros_like(x))
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(x: Tensor, mask: Tensor, weight: Tensor | None = None, dim: Dim = None) -> Tensor:
    """Mean of `x "B T"` over the true positions of `mask`, 0 where there is none.

    Args:
        x: any shape.
        mask: Bool, broadcastable to `x`.
        weight: weights of the positions, `sum(w x) / sum(w)`; 0 where the weights sum to 0.
        dim: axis or axes to reduce; all where absent.
    """
    mask = mask.bool().expand_as(x)
    if weight is None:
        total, count = masked_sum(x, mask, dim), masked_sum(torch.ones_like(x), mask, dim)
    else:
        weight = torch.where(mask, weight.expand_as(x), torch.zeros_like(x))
        total, count = (
            masked_sum(torch.where(mask, x, torch.zeros_like(x)) * weight, mask, dim),
            masked_sum(weight, mask, dim),
        )
    return torch.where(
        count == 0, torch.zeros_like(total), total / torch.where(count == 0, torch.ones_like(count), count)
    )


def masked_var(x: Tensor, mask: Tensor, ddof: int = 0, dim: Dim = None) -> Tensor:
    """Variance over the true positions, divisor `n - ddof`; 0 where `n <= ddof` (nothing to estimate it from)."""
    mask = mask.bool().expand_as(x)
    dims = tuple(range(x.dim())) if dim is None else ((dim,) if isinstance(dim, int) else dim)
    clean = torch.where(mask, x, torch.zeros_like(x))
    count = mask.sum(dims, keepdim=True)
    mean = clean.sum(dims, keepdim=True) / count.clamp(min=1)
    square = torch.where(mask, (clean - mean) ** 2, torch.zeros_like(x)).sum(dims)
    free = (count.sum(dims) - ddof).to(square.dtype)
    return torch.where(free > 0, square / free.clamp(min=1), torch.zeros_like(square))


def masked_spread(x: Tensor, mask: Tensor) -> Tensor:
    """Largest minus smallest true entry, a scalar; 0 where there is none."""
    if not bool(mask.any()):
        return x.new_zeros(())
    kept = x[mask.bool()]
    return kept.max() - kept.min()


def masked_quantile(x: Tensor, mask: Tensor, q: float) -> Tensor:
    """The `q` quantile (linear interpolation) of the true entries, a scalar.

    `(x >= masked_quantile(x, mask, 0.8)) & mask` is the top fifth of the real positions, never empty.

    Raises:
        ValueError: `q` outside [0, 1], or no true entry.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"masked_quantile: q must lie in [0, 1], got {q}")
    if not bool(mask.any()):
        raise ValueError("masked_quantile: the mask is empty")
    kept = x[mask.bool()].sort().values
    place = q * (len(kept) - 1)
    low = int(place)
    high = min(low + 1, len(kept) - 1)
    return kept[low] + (kept[high] - kept[low]) * (place - low)
