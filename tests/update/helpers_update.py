"""Small batches and outputs that the update tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gainstage.types import Batch, PolicyOut
from gainstage.update.objectives.policy.aggregation import token_weights


def rows(values: list[list[float]], fill: float = 0.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Ragged rows to `[B, T]`, filled on the right."""
    longest = max(map(len, values))
    return torch.tensor([row + [fill] * (longest - len(row)) for row in values], dtype=dtype)


def mask_of(values: list[list[float]]) -> Tensor:
    longest = max(map(len, values))
    return torch.tensor([[i < len(row) for i in range(longest)] for row in values])


def random_case(
    seed: int = 0, lengths: tuple[int, ...] = (5, 3, 1, 4), dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Log-probs of four kinds and advantages on ragged rows; the policy has moved away from the others."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    mask = torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(1)

    def draw(scale: float) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype) * scale

    behaviour = -draw(1.0).abs() - 0.1
    return {
        "mask": mask,
        "behaviour_logprobs": behaviour,
        "old_logprobs": (behaviour + draw(0.05)).clamp(max=-1e-3),
        "ref_logprobs": (behaviour + draw(0.3)).clamp(max=-1e-3),
        "logprobs": (behaviour + draw(0.4)).clamp(max=-1e-3),
        "advantages": draw(1.0),
        "entropy": draw(1.0).abs(),
    }


def call(objective: Callable[..., Any], case: dict[str, Tensor], logprobs: Tensor | None = None) -> tuple[Tensor, dict]:
    """Terms and statistics of a registered objective on a case."""
    columns = {k: v for k, v in case.items() if k not in ("logprobs", "entropy")}
    out = PolicyOut(case["logprobs"] if logprobs is None else logprobs, entropy=case["entropy"])
    result = objective(out, Batch(columns))
    return result if isinstance(result, tuple) else (result, {})


def gradient(objective: Callable[..., Any], case: dict[str, Tensor], how: str = "token_mean") -> tuple[float, Tensor]:
    """Aggregated loss and its gradient with respect to the log-probs."""
    logprobs = case["logprobs"].clone().requires_grad_()
    weights = token_weights(case["mask"], how).to(logprobs.dtype)  # type: ignore[arg-type]
    loss = (call(objective, case, logprobs)[0] * weights).sum()
    loss.backward()
    assert logprobs.grad is not None
    return float(loss.detach()), logprobs.grad
