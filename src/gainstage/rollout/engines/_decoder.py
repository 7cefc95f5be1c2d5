"""Decoding of known families: each prompt's keys and values stored once, ended rows dropped at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gainstage.rollout.engines._blocks import Network, Rotation

_PREFILL_TOKENS = 8192  # tokens of one prefill pass; bounds its activations
_FIRST_ROOM = 32  # new tokens the cache is first made for; doubled when full


class FastDecoder:
    """State of a batch of rows that continue shared prompts.

    Axes: P prompts, B live rows, G key/value heads, R query heads of each, E head size, S prompt slots,
    T new-token slots. A row attends to its prompt's keys (`prefix`, one copy for all rows of the prompt,
    right-padded) and to its own (`suffix`) in one softmax. For the first part the rows are laid out as
    `P x K` slots, so that a prompt's keys are read once for all its rows.
    """

    def __init__(self, network: Network, prompts: Sequence[list[int]], repeats: Sequence[int], room: int) -> None:
        """Prefill. Rows are numbered prompt by prompt.

        Args:
            network: functions over the model's weights.
            prompts: P token lists, none empty.
            repeats: rows of each prompt, >= 1.
            room: most new tokens of a row.
        """
        self.network = network
        self.device, self.dtype = network.like.device, network.like.dtype
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        self.table = network.rotation(torch.arange(int(lengths.max()) + room, device=self.device))
        layers, groups, size = len(network.blocks), network.kv_heads, network.head_dim
        self.prefix = torch.zeros(
            layers, 2, len(prompts), groups, int(lengths.max()), size, device=self.device, dtype=self.dtype
        )
        parts = _parts(prompts)
        order = torch.tensor([index for part in parts for index in part], device=self.device)
        last = torch.cat([self._prefill(prompts, part) for part in parts])
        self.first = network.head(last)[torch.argsort(order)]
        self.group = torch.repeat_interleave(
            torch.arange(len(prompts), device=self.device), torch.tensor(repeats, device=self.device)
        )
        self.lengths = lengths
        self.steps, self.room = 0, room
        self.suffix = self._new_suffix(len(self.group), min(room, _FIRST_ROOM))
        self._lay_out()

    @property
    def rows(self) -> int:
        return len(self.group)

    def start(self) -> Tensor:
        """Logits of the first new token, `Float "B V"`."""
        return self.first[self.group]

    def _prefill(self, prompts: Sequence[list[int]], part: list[int]) -> Tensor:
        """Fill the prefix of some prompts; the last hidden state of each, `Float "P D"`.

        Tokens are packed: only attention sees the padding, which stands right of every real token and so
        never in its past.
        """
        sizes = torch.tensor([len(prompts[i]) for i in part], device=self.device)
        longest, count = int(sizes.max()), len(part)
        ids = torch.tensor([token for i in part for token in prompts[i]], device=self.device)
        slots = torch.arange(longest, device=self.device)
        real = (slots < sizes.unsqueeze(1)).flatten().nonzero().squeeze(1)
        positions = real % longest
        x = self.network.embed(ids, positions)
        rotation = _at(self.table, positions)
        index = torch.tensor(part, device=self.device)
        groups, size = self.network.kv_heads, self.network.head_dim
        grouped = self.network.heads != groups

        def spread(flat: Tensor) -> Tensor:
            padded = flat.new_zeros(count * longest, *flat.shape[1:])
            padded[real] = flat
            return padded.view(count, longest, -1, size).transpose(1, 2)

        for number, block in enumerate(self.network.blocks):
            q, k, v = (spread(flat) for flat in block.project(x, rotation))
            self.prefix[number, 0, index, :, :longest] = k
            self.prefix[number, 1, index, :, :longest] = v
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=block.scaling, enable_gqa=grouped)
            x = block.finish(x, out.transpose(1, 2).reshape(count * longest, -1)[real])
        return x[sizes.cumsum(0) - 1]

    def step(self, ids: Tensor) -> Tensor:
        """Append one token to each row: `Int64 "B"` -> logits of the next, `Float "B V"`."""
        if self.steps == self.suffix.shape[4]:
            self._grow()
        positions = self.lengths[self.group] + self.steps
        x = self.network.embed(ids, positions)
        rotation = _at(self.table, positions)
        for number, block in enumerate(self.network.blocks):
            q, k, v = block.project(x, rotation)
            self.suffix[number, 0, :, :, self.steps] = k
            self.suffix[number, 1, :, :, self.steps] = v
            x = block.finish(x, self._attend(number, q, block.scaling))
        self.steps += 1
        return self.network.head(x)

    def _attend(self, number: int, q: Tensor, scaling: float) -> Tensor:
        """`q "B H E"` over the row's prompt and its own tokens -> `"B H*E"`."""
        rows, groups, size = self.rows, self.network.kv_heads, self.network.head_dim
        upto = self.steps + 1
        q = (q * scaling).reshape(rows, groups, -1, size)
        keys, values = self.suffix[number, :, :, :, :upto]
        own = q @ keys.transpose(-1, -2)  # B G R T
        shared = self._from_slots(self._to_slots(q) @ self.prefix[number, 0].transpose(-1, -2))  # B G R S
        if self.padding is not None:
            shared = shared + self.padding
        weights = torch.cat((shared, own), -1).softmax(-1, dtype=torch.float32).to(q.dtype)
        out = weights[..., -upto:] @ values
        split = self.prefix.shape[4]
        out = out + self._from_slots(self._to_slots(weights[..., :split]) @ self.prefix[number, 1])
        return out.reshape(rows, -1)

    def _to_slots(self, x: Tensor) -> Tensor:
        """`"B G R *"` -> `"P G K*R *"`, the rows of a prompt side by side."""
        if not self.dense:
            x = x[self.slots]
        prompts = self.prefix.shape[2]
        _, groups, ratio, size = x.shape
        return x.view(prompts, -1, groups, ratio, size).transpose(1, 2).reshape(prompts, groups, -1, size)

    def _from_slots(self, x: Tensor) -> Tensor:
        """Inverse of `_to_slots`."""
        prompts, groups, _, size = x.shape
        ratio = self.network.heads // groups
        x = x.view(prompts, groups, -1, ratio, size).transpose(1, 2).reshape(-1, groups, ratio, size)
        return x if self.dense else x[self.place]

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these; the live rows are then in this order."""
        self.group = self.group[rows]
        self.suffix = self.suffix[:, :, rows]
        live, renumbered = torch.unique(self.group, return_inverse=True)
        if len(live) <= 0.75 * self.prefix.shape[2]:
            self.lengths = self.lengths[live]
            self.prefix = self.prefix[:, :, live, :, : int(self.lengths.max())]
            self.group = renumbered
        self._lay_out()

    def _lay_out(self) -> None:
        """Slots of the rows in the `P x K` layout, and the mask of the prompts' padding."""
        prompts = self.prefix.shape[2]
        counts = torch.bincount(self.group, minlength=prompts)
        most = int(counts.max())
        order = torch.argsort(self.group, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(self.rows, device=self.device) - (counts.cumsum(0) - counts)[self.group[order]]
        self.place = self.group * most + rank
        self.dense = self.rows == prompts * most and bool((self.place[1:] > self.place[:-1]).all())
        self.slots = torch.zeros(prompts * most, dtype=torch.int64, device=self.device)
        self.slots[self.place] = torch.arange(self.rows, device=self.device)
        self.padding = None
        if int(self.lengths.min()) < self.prefix.shape[4]:
            hidden = torch.arange(self.prefix.shape[4], device=self.device) >= self.lengths[self.group].unsqueeze(1)
            self.padding = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
            self.padding = self.padding.masked_fill(hidden, -torch.inf).view(self.rows, 1, 1, -1)

    def _new_suffix(self, rows: int, room: int) -> Tensor:
        network = self.network
        shape = (len(network.blocks), 2, rows, network.kv_heads, room, network.head_dim)
        return torch.empty(shape, device=self.device, dtype=self.dtype)

    def _grow(self) -> None:
        old = self.suffix
        self.suffix = self._new_suffix(self.rows, min(2 * self.steps, self.room))
        self.suffix[:, :, :, :, : self.steps] = old


def _at(table: Rotation, positions: Tensor) -> Rotation:
    return None if table is None else (table[0][positions], table[1][positions])


def _parts(prompts: Sequence[list[int]]) -> list[list[int]]:
    """Prompts by length, in parts of about `_PREFILL_TOKENS` padded tokens."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    parts: list[list[int]] = []
    for index in order:
        if not parts or (len(parts[-1]) + 1) * len(prompts[index]) > _PREFILL_TOKENS:
            parts.append([])
        parts[-1].append(index)
    return parts
