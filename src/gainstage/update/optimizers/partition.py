"""Blocks of weights that share one second moment: found by what a matrix is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Literal

import torch
from torch import Tensor, nn

from gainstage.update.optimizers.roles import Owner, is_norm, owners

QUERY = frozenset({"q_proj", "wq", "q", "query", "to_q", "q_lin", "q_attn"})
KEY = frozenset({"k_proj", "wk", "k", "key", "to_k", "k_lin"})
VALUE = frozenset({"v_proj", "wv", "v", "value", "to_v", "v_lin"})
FUSED = frozenset({"c_attn", "qkv_proj", "qkv", "Wqkv", "in_proj_weight", "query_key_value"})
INTERLEAVED = frozenset({"GPTNeoXAttention", "BloomAttention"})
"""Attention classes whose fused matrix holds query, key and value of one head side by side."""
LARGEST_VECTOR = 65_536
RULES = ("element", "tensor", "rows", "columns", "heads", "kv_heads")


@dataclass(frozen=True)
class Blocks:
    """How one tensor is cut: `index "out"` gives the block of each unit of `axis`; without it each unit is a block.

    `rule` says it in words and is stored with the optimizer, so that a resumed run cuts alike.
    """

    rule: str
    count: int
    axis: int | None = None
    index: Tensor | None = None

    def means(self, square: Tensor) -> Tensor:
        """Mean of `square` (shape of the weight) over every block, `Float "count"`; element-wise unchanged."""
        if self.rule == "element":
            return square
        if self.axis is None:
            return square.mean().reshape(1)
        others = [a for a in range(square.dim()) if a != self.axis]
        units = square.mean(others)
        if self.index is None:
            return units
        index = self.index.to(units.device)
        sizes = torch.bincount(index, minlength=self.count)
        return torch.zeros(self.count, dtype=units.dtype, device=units.device).index_add_(0, index, units) / sizes

    def spread(self, values: Tensor, shape: torch.Size) -> Tensor:
        """One value a block, ready to broadcast over a weight of `shape`."""
        if self.rule == "element" or self.axis is None:
            return values
        units = values if self.index is None else values[self.index.to(values.device)]
        return units.reshape([shape[a] if a == self.axis else 1 for a in range(len(shape))])


@dataclass
class Partition:
    """Name, parameter -> `Blocks`, by module type first and names second (Adam-mini, arXiv 2406.16793).

    Query and key of attention: one block a head. Every other matrix, embedding and head included: one block an
    output unit (a row; a column in GPT-2's `[in, out]` layout). Norms and other vectors: one block. Biases and
    scalars: element-wise. Convolutions: one block an output channel. Fused query-key-value matrices are cut first.

    Args:
        module: the module that owns the parameters; without it names decide and `heads` must be given.
        heads, kv_heads: attention heads of query and key, read from the module's configuration where absent.
        value: `tensor` gives each value matrix a single block (advised for runs below some 10,000 steps).
        rules: glob pattern of a name -> one of element, tensor, rows, columns, heads, kv_heads; first match wins.
    """

    module: nn.Module | None = None
    heads: int | None = None
    kv_heads: int | None = None
    value: Literal["rows", "tensor"] = "rows"
    rules: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if wrong := sorted(set(self.rules.values()) - set(RULES)):
            raise ValueError(f"adam_mini.rules: unknown rule {wrong[0]!r}; rules are {', '.join(RULES)}")
        self.owner = owners(self.module)

    def __call__(self, name: str, parameter: nn.Parameter) -> Blocks:
        """Raises ValueError: head counts unknown or not dividing, or a tensor of more than two axes without a rule."""
        shape, owner = parameter.shape, self.owner.get(id(parameter))
        for pattern, rule in self.rules.items():
            if fnmatch(name, pattern):
                return self._ruled(name, rule, shape, owner)
        if parameter.numel() == 1 or name.endswith("bias"):
            return Blocks("element", parameter.numel())
        if parameter.dim() == 1 or is_norm(owner):
            if parameter.numel() > LARGEST_VECTOR and not is_norm(owner):
                raise ValueError(
                    f"adam_mini: {name} {tuple(shape)} would be a single block; give it a rule under `rules`"
                )
            return Blocks("tensor", 1)
        if owner is not None and isinstance(owner.module, nn.modules.conv._ConvNd):
            if owner.module.transposed and owner.module.groups > 1:
                raise ValueError(f"adam_mini: {name} is a grouped transposed convolution; give it a rule under `rules`")
            return self._units(shape, int(owner.module.transposed))
        if parameter.dim() > 2:
            raise ValueError(
                f"adam_mini: {name} has {parameter.dim()} axes {tuple(shape)}; give it a rule under `rules`"
            )
        return self._matrix(name, shape, owner)

    def _matrix(self, name: str, shape: torch.Size, owner: Owner | None) -> Blocks:
        axis = int(owner is not None and type(owner.module).__name__ == "Conv1D")
        parts = name.split(".")
        short = parts[-1] if parts[-1] in FUSED or len(parts) < 2 else parts[-2]
        if not self._in_attention(parts, owner):
            return self._units(shape, axis)
        if short in FUSED:
            return self._fused(name, shape, axis, owner)
        if short in QUERY:
            return self._heads(name, shape, axis, self._counts(name, owner)[0])
        if short in KEY:
            return self._heads(name, shape, axis, self._counts(name, owner)[1])
        if short in VALUE and self.value == "tensor":
            return Blocks("tensor", 1)
        return self._units(shape, axis)

    def _ruled(self, name: str, rule: str, shape: torch.Size, owner: Owner | None) -> Blocks:
        if rule == "element":
            return Blocks("element", shape.numel())
        if rule == "tensor":
            return Blocks("tensor", 1)
        if rule in ("rows", "columns"):
            return self._units(shape, int(rule == "columns"))
        return self._heads(name, shape, 0, self._counts(name, owner)[int(rule == "kv_heads")])

    @staticmethod
    def _units(shape: torch.Size, axis: int) -> Blocks:
        return Blocks("columns" if axis else "rows", shape[axis], axis)

    @staticmethod
    def _heads(name: str, shape: torch.Size, axis: int, heads: int) -> Blocks:
        index = _head_index(name, shape[axis], heads)
        return Blocks(f"{'column ' if axis else ''}heads({heads})", heads, axis, index)

    def _fused(self, name: str, shape: torch.Size, axis: int, owner: Owner | None) -> Blocks:
        heads, kv_heads = self._counts(name, owner)
        out = shape[axis]
        if out % (heads + 2 * kv_heads):
            raise ValueError(
                f"adam_mini: {name} has {out} outputs, which {heads} query, {kv_heads} key and {kv_heads} value heads "
                "do not divide; set `heads` and `kv_heads`, or give it a rule under `rules`"
            )
        size = out // (heads + 2 * kv_heads)
        values = (
            torch.arange(kv_heads * size) if self.value == "rows" else torch.zeros(kv_heads * size, dtype=torch.long)
        )
        query = _head_index(name, heads * size, heads)
        key = _head_index(name, kv_heads * size, kv_heads) + heads
        value = values + heads + kv_heads
        attention = type(owner.parent).__name__ if owner is not None else ""
        if attention in INTERLEAVED and heads == kv_heads:
            index = torch.stack([part.reshape(heads, size) for part in (query, key, value)], 1).reshape(-1)
        elif "query_key_value" in name:
            raise ValueError(f"adam_mini: the layout of {name} is not known; give it a rule under `rules`")
        else:
            index = torch.cat((query, key, value))
        rule = f"{'column ' if axis else ''}qkv({heads},{kv_heads},{self.value})"
        return Blocks(rule, int(index.max()) + 1, axis, index)

    @staticmethod
    def _in_attention(parts: list[str], owner: Owner | None) -> bool:
        classes = () if owner is None else (type(owner.module).__name__, type(owner.parent).__name__)
        return any("attn" in word.lower() or "attention" in word.lower() for word in (*parts[:-1], *classes))

    def _counts(self, name: str, owner: Owner | None) -> tuple[int, int]:
        places: list[object] = [] if owner is None else [owner.parent, owner.module]
        places += [getattr(place, "config", None) for place in (*places, self.module)]
        heads = self.heads or _first(places, ("num_heads", "n_heads", "n_head", "num_attention_heads"))
        if not heads:
            raise ValueError(f"adam_mini: the number of attention heads of {name} is not known; set `heads`")
        return heads, self.kv_heads or _first(places, ("num_key_value_heads", "n_kv_heads", "num_kv_heads")) or heads


def _first(places: list[object], names: tuple[str, ...]) -> int | None:
    found = (getattr(place, name, None) for place in places for name in names)
    return next((value for value in found if isinstance(value, int) and value > 0), None)


def _head_index(name: str, out: int, heads: int) -> Tensor:
    if out % heads:
        raise ValueError(
            f"adam_mini: {heads} heads do not divide the {out} outputs of {name}; set `heads` or `kv_heads`"
        )
    return torch.arange(out) // (out // heads)
