"""Decoding of unknown architectures: the model's own forward inside the same sampling loop."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def open_decoder(
    model: nn.Module, prompts: Sequence[list[int]], repeats: Sequence[int]
) -> CachedDecoder | PlainDecoder:
    """The model's key/value cache where left padding can be hidden from it, full forwards otherwise.

    Padding cannot be hidden from layers that carry a state along (recurrent, convolutional, linear attention).
    """
    base = _base(model)
    accepted = set(inspect.signature(base.forward).parameters)
    names = [name for name in ("cache", "past_key_values") if name in accepted]
    if names and {"attention_mask", "position_ids"} <= accepted and not getattr(base, "_is_stateful", False):
        cache = _attention_cache(base.config)
        if cache is not None:
            return CachedDecoder(model, prompts, repeats, names[0], cache)
    return PlainDecoder(model, prompts, repeats)


def _attention_cache(config: Any) -> Any:
    """An empty cache for the model, or None where some layer keeps anything but keys and values."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    cache = DynamicCache(config=config)
    plain = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)
    return cache if plain else None


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model


class CachedDecoder:
    """Left-padded prompts, positions that count real tokens, and transformers' dynamic cache."""

    def __init__(
        self, model: Any, prompts: Sequence[list[int]], repeats: Sequence[int], cache_name: str, cache: Any
    ) -> None:
        self.model, self.cache_name, self.cache = model, cache_name, cache
        device = next(model.parameters()).device
        longest = max(len(p) for p in prompts)
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=device)
        self.seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
        self.last_only = "logits_to_keep" in inspect.signature(_base(model).forward).parameters
        first = self._forward(ids, (self.seen.cumsum(1) - 1).clamp(min=0))
        self.group = torch.repeat_interleave(
            torch.arange(len(prompts), device=device), torch.tensor(repeats, device=device)
        )
        self.first = first[self.group]
        self._select(self.group)

    @property
    def rows(self) -> int:
        return len(self.seen)

    def start(self) -> Tensor:
        """Logits of the first new token, `Float "B V"`."""
        return self.first

    def step(self, ids: Tensor) -> Tensor:
        """Append one token to each row: `Int64 "B"` -> logits of the next, `Float "B V"`."""
        positions = self.seen.sum(1, keepdim=True)
        self.seen = torch.cat((self.seen, torch.ones_like(positions)), 1)
        return self._forward(ids.unsqueeze(1), positions)

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these; the live rows are then in this order."""
        self._select(rows)

    def _select(self, rows: Tensor) -> None:
        self.seen = self.seen[rows]
        self.cache.batch_select_indices(rows)

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        inputs = {"input_ids": ids, "attention_mask": self.seen, "position_ids": positions, "use_cache": True}
        if self.last_only:
            inputs["logits_to_keep"] = 1
        return self.model(**inputs, **{self.cache_name: self.cache}).logits[:, -1]


class PlainDecoder:
    """Right-padded full forwards: slow, and right for every causal model, recurrent ones included."""

    def __init__(self, model: Any, prompts: Sequence[list[int]], repeats: Sequence[int]) -> None:
        self.model = model
        device = next(model.parameters()).device
        rows = [list(p) for p, count in zip(prompts, repeats, strict=True) for _ in range(count)]
        self.lengths = torch.tensor([len(row) for row in rows], device=device)
        longest = int(self.lengths.max())
        self.ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)

    @property
    def rows(self) -> int:
        return len(self.ids)

    def start(self) -> Tensor:
        """Logits of the first new token, `Float "B V"`."""
        logits = self.model(input_ids=self.ids, use_cache=False).logits
        return logits[torch.arange(self.rows, device=logits.device), self.lengths - 1]

    def step(self, ids: Tensor) -> Tensor:
        """Append one token to each row: `Int64 "B"` -> logits of the next, `Float "B V"`."""
        if int(self.lengths.max()) == self.ids.shape[1]:
            self.ids = torch.nn.functional.pad(self.ids, (0, 1))
        self.ids[torch.arange(self.rows, device=ids.device), self.lengths] = ids
        self.lengths = self.lengths + 1
        return self.start()

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these; the live rows are then in this order."""
        self.ids, self.lengths = self.ids[rows], self.lengths[rows]
