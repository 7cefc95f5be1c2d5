"""Packed forward: linear layers see real tokens only, attention sees one row per sequence.

A batch of sequences goes through the model as one row `[1, N]` of its N real tokens. An attention
function registered with transformers unpacks queries, keys and values to right-padded rows, where
causal attention needs no mask (padding stands to the right of everything real), and packs the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NAME = "gainstage_packed"


@dataclass(frozen=True)
class Layout:
    """Where the packed tokens stand in the padded rows: `flat "N"` indexes `rows * steps`."""

    rows: int
    steps: int
    flat: Tensor

    @classmethod
    def of(cls, real: Tensor) -> Layout:
        return cls(real.shape[0], real.shape[1], torch.nonzero(real.reshape(-1)).squeeze(1))

    def unpack(self, x: Tensor) -> Tensor:
        """`[1, H, N, D] -> [rows, H, steps, D]`, zeros on padding."""
        _, heads, _, width = x.shape
        padded = x.new_zeros(self.rows * self.steps, heads, width)
        padded = padded.index_copy(0, self.flat, x[0].transpose(0, 1))
        return padded.view(self.rows, self.steps, heads, width).transpose(1, 2)

    def pack(self, x: Tensor) -> Tensor:
        """`[rows, H, steps, D] -> [1, N, H, D]`."""
        _, heads, _, width = x.shape
        return x.transpose(1, 2).reshape(self.rows * self.steps, heads, width)[self.flat].unsqueeze(0)


_ACTIVE: list[Layout] = []


@contextmanager
def packed(layout: Layout) -> Iterator[None]:
    """While open, models prepared by `enable` treat their input as packed."""
    _ACTIVE.append(layout)
    try:
        yield
    finally:
        _ACTIVE.pop()


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> Any:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not _ACTIVE:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    layout = _ACTIVE[-1]
    out = torch.nn.functional.scaled_dot_product_attention(
        layout.unpack(query),
        layout.unpack(key),
        layout.unpack(value),
        dropout_p=kwargs.get("dropout", 0.0) or 0.0,
        scale=kwargs.get("scaling"),
        is_causal=True,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return layout.pack(out), None


def _mask(*args: Any, **kwargs: Any) -> Any:
    from transformers.masking_utils import sdpa_mask

    return None if _ACTIVE else sdpa_mask(*args, **kwargs)


def enable(model: Any) -> bool:
    """Prepare a Hugging Face causal LM for packed input; False where its attention is not plain causal."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if kinds != {"full_attention"} or windowed or getattr(config, "attn_logit_softcapping", None):
        return False
    if config.model_type not in PLAIN_CAUSAL:
        return False
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)
    config._attn_implementation = NAME
    return True


PLAIN_CAUSAL = {"llama", "qwen2", "qwen3", "gpt2", "mistral", "smollm3", "olmo2", "phi3", "gpt_neox", "granite"}
"""Families whose attention goes through transformers' attention interface and is nothing but causal."""
