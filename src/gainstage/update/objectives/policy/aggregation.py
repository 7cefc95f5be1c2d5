"""How per-decision terms become one number, fixed on the whole minibatch before any split.

With `weights = token_weights(mask, how)` the loss is `(weights * terms).sum()`: a sum, so that micro-batches
and ranks may be added in any split and order without changing loss or gradient.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from gainstage.ops.masked import over

Aggregation = Literal["sequence_mean", "token_mean", "sequence_sum", "sequence_sum_over_constant"]


def token_weights(
    mask: Tensor, how: Aggregation, constant: float | None = None, rows: int | None = None, kept: Tensor | None = None
) -> Tensor:
    """Weight of every decision, `Float "B T"`, zero where the mask is false.

    - `sequence_mean`: mean over rows of the mean over a row's decisions. Every answer counts the same, so a
      token of a short answer counts more (GRPO, arXiv 2402.03300, equation 3).
    - `token_mean`: mean over all decisions. Every token counts the same, so long answers count more (DAPO,
      arXiv 2503.14476, section 3.3).
    - `sequence_sum`: mean over rows of the sum over a row's decisions: the plain policy gradient of an answer's
      likelihood.
    - `sequence_sum_over_constant`: `sequence_sum` divided by `constant`, the same number for every answer
      (commonly the largest answer length), so that length is no incentive (Dr. GRPO, arXiv 2503.20783).

    A row without any decision leaves numerator and denominator. A row whose advantages are zero is a row like any
    other and stays in both; to leave it out, say so with `kept`.

    Args:
        mask: `Bool "B T"`, trained decisions of the whole minibatch.
        how: one of the four above.
        constant: tokens that `sequence_sum_over_constant` divides by.
        rows: number of rows to divide by where the minibatch is spread over several batches; counted from the
            mask where absent. Not for `token_mean`.
        kept: `Bool "B"`, rows that take part at all; all of them where absent.

    Raises:
        ValueError: unknown `how`, `constant` missing or misplaced, `rows` below one or with `token_mean`.
    """
    if how == "sequence_sum_over_constant":
        if constant is None or not constant > 0:
            raise ValueError(f"agg sequence_sum_over_constant needs a setting `constant` > 0 (tokens), got {constant}")
    elif constant is not None:
        raise ValueError(f"agg {how} takes no `constant`; only sequence_sum_over_constant does")
    if rows is not None and (how == "token_mean" or rows < 1):
        raise ValueError(f"token_weights: rows={rows} does not go with agg {how}")
    taken = mask.bool()
    if kept is not None:
        taken = taken & over(kept.bool(), mask)
    if how == "token_mean":
        return taken / taken.sum().to(torch.float32).clamp(min=1)
    lengths = over(taken.flatten(1).sum(1).to(torch.float32), mask)
    count = float(rows) if rows is not None else (lengths > 0).sum().clamp(min=1)
    if how == "sequence_mean":
        return taken / (lengths.clamp(min=1) * count)
    if how == "sequence_sum":
        return taken / (count * torch.ones((), device=mask.device))
    if how == "sequence_sum_over_constant":
        return taken / (count * torch.tensor(constant, dtype=torch.float32, device=mask.device))
    raise ValueError(f"agg must be one of {', '.join(get_args(Aggregation))}, got {how!r}")


def aggregate(
    loss: Tensor,
    mask: Tensor,
    how: Aggregation,
    constant: float | None = None,
    rows: int | None = None,
    kept: Tensor | None = None,
) -> Tensor:
    """Per-decision terms `loss "B T"` to a scalar; what stands where the mask is false (NaN included) is not read.

    Arguments as for `token_weights`. A batch without any decision gives 0.
    """
    weights = token_weights(mask, how, constant, rows, kept)
    return (torch.where(weights > 0, loss, 0.0) * weights).sum()
