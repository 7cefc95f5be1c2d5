"""Decoding of known families: each prompt's keys and values stored once, ended rows dropped at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gainstage.rollout.engines._blocks import Network

_PREFILL_TOKENS = 8192  # tokens of one prefill pass; bounds its activations
_FIRST_ROOM = 64  # new tokens the cache is first made for; doubled when full
_TINY_PRODUCT = 400  # below so many multiplications torch takes a slow loop for each product of a batch


class FastDecoder:
    """State of a batch of rows that continue shared prompts.

    Axes: L layers, P prompts, B live rows, G key/value heads, R query heads of each, E head size, S prompt
    positions, T new positions. A row attends to its prompt's keys (`prefix "L 2 P G S E"`, one copy for all
    rows of the prompt, padded on the right) and to its own (`suffix "L 2 T B G E"`, so that a step is written
    in one piece) in one softmax. For the first part the rows stand in `P x K` places, K rows a prompt, so that
    its keys are read once for all.
    """

    def __init__(self, network: Network, prompts: Sequence[list[int]], repeats: Sequence[int], room: int) -> None:
        """Prefill. Rows are numbered prompt by prompt.

        Args:
            network: functions over the model's weights.
            prompts: P token lists, none empty.
            repeats: rows of each prompt, >= 1.
            room: most new tokens of a row.
        """
        self.network, self.device, self.dtype = network, network.like.device, network.like.dtype
        self.lengths = self._ints([len(prompt) for prompt in prompts])
        longest = int(self.lengths.max())
        self.rotation = None
        if network.rotation is not None:
            self.rotation = network.rotation(torch.arange(longest + room, device=self.device))
        self.prefix = self._empty(len(prompts), network.kv_heads, longest, network.head_dim).zero_()
        parts = _parts(prompts)
        order = self._ints([index for part in parts for index in part])
        last = torch.cat([self._prefill(prompts, part) for part in parts])
        self.first = network.head(last)[torch.argsort(order)]
        self.group = torch.repeat_interleave(torch.arange(len(prompts), device=self.device), self._ints(repeats))
        self.steps, self.room = 0, room
        # the first steps attend to a few empty positions as well, which are masked: their products are faster
        self.least = -(-_TINY_PRODUCT * network.kv_heads // (network.heads * network.head_dim))
        self.suffix = self._empty(
            max(min(room, _FIRST_ROOM), self.least), self.rows, network.kv_heads, network.head_dim
        )
        self.suffix[:, :, : self.least].zero_()
        self._lay_out()

    @property
    def rows(self) -> int:
        return len(self.group)

    def start(self) -> Tensor:
        """Logits of the first new token, `Float "B V"`."""
        return self.first[self.group]

    def _ints(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def _empty(self, *shape: int) -> Tensor:
        """Room for keys and values of every layer."""
        return torch.empty(len(self.network.blocks), 2, *shape, device=self.device, dtype=self.dtype)

    def _prefill(self, prompts: Sequence[list[int]], part: list[int]) -> Tensor:
        """Fill the prefix of some prompts; the last hidden state of each, `Float "P D"`.

        Tokens are packed: only attention sees the padding, which stands right of every real token and so
        never in its past.
        """
        sizes, index = self.lengths[part], self._ints(part)
        longest, count = int(sizes.max()), len(part)
        ids = self._ints([token for i in part for token in prompts[i]])
        real = (torch.arange(longest, device=self.device) < sizes.unsqueeze(1)).flatten().nonzero().squeeze(1)
        positions = real % longest
        x = self.network.embed(ids, positions)
        angles = None if self.rotation is None else self.rotation[positions].unsqueeze(1)
        grouped = self.network.heads != self.network.kv_heads

        def spread(flat: Tensor) -> Tensor:
            """`"N H E"` -> `"P H S E"`."""
            padded = flat.new_zeros(count * longest, *flat.shape[1:])
            padded[real] = flat
            return padded.unflatten(0, (count, longest)).transpose(1, 2)

        for number, block in enumerate(self.network.blocks):
            q, k, v = block.project(x)
            q, k, v = spread(turned(q, angles)), spread(turned(k, angles)), spread(v)
            self.prefix[number, 0, index, :, :longest] = k
            self.prefix[number, 1, index, :, :longest] = v
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=block.scaling, enable_gqa=grouped)
            x = block.finish(x, out.transpose(1, 2).reshape(count * longest, -1)[real])
        return x[sizes.cumsum(0) - 1]

    def step(self, ids: Tensor) -> Tensor:
        """Append one token to each row: `Int64 "B"` -> logits of the next, `Float "B V"`."""
        if self.steps == self.suffix.shape[2]:
            self._grow()
        positions = self.lengths[self.group] + self.steps
        x = self.network.embed(ids, positions)
        angles = None if self.rotation is None else self.rotation[positions].unsqueeze(1)
        width = max(self.steps + 1, self.least)
        empty = None
        if width > self.steps + 1:
            empty = torch.zeros(1, 1, width, device=self.device, dtype=self.dtype)
            empty[..., self.steps + 1 :] = -torch.inf
        scaling = self.network.blocks[0].scaling  # layers of one model with rotary positions scale alike
        scaled = None if angles is None else angles * scaling
        for number, block in enumerate(self.network.blocks):
            q, k, v = block.project(x)
            keys, values = self.suffix[number]
            _write(keys[self.steps], k, angles)
            values[self.steps] = v
            q = q * block.scaling if scaled is None else turned(q, scaled)
            x = block.finish(x, self._attend(number, q, keys[:width], values[:width], empty))
        self.steps += 1
        return self.network.head(x)

    def _attend(self, number: int, q: Tensor, keys: Tensor, values: Tensor, empty: Tensor | None) -> Tensor:
        """Attention of one layer.

        Args:
            q: scaled queries `"B H E"`.
            keys, values: the rows' own, `"T B G E"`.
            empty: `"1 1 T"`, -inf at positions without a token; None where there are none.

        Returns:
            `"B H*E"`.
        """
        prompt_keys, prompt_values = self.prefix[number].flatten(1, 2)  # P*G S E each
        places, most, size = prompt_keys.shape
        q = q.reshape(self.rows * keys.shape[2], -1, size)  # B*G R E
        placed = q.index_select(0, self.gather).view(places, -1, size)  # P*G K*R E
        shared = _product(self.padding, placed, prompt_keys.transpose(1, 2))
        shared = shared.view(-1, q.shape[1], most).index_select(0, self.scatter)  # B*G R S
        own = _product(empty, q, keys.flatten(1, 2).permute(1, 2, 0))
        weights = torch.cat((shared, own), 2).softmax(2, dtype=torch.float32).to(q.dtype)
        placed = weights[:, :, :most].index_select(0, self.gather).view(places, -1, most)
        out = torch.bmm(placed, prompt_values).view(-1, q.shape[1], size).index_select(0, self.scatter)
        return torch.baddbmm(out, weights[:, :, most:], values.flatten(1, 2).transpose(0, 1)).view(self.rows, -1)

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these. `rows[i]` is i, or a row behind the new end that moves into a gap."""
        count = len(rows)
        moved = torch.nonzero(rows != torch.arange(count, device=self.device)).squeeze(1)
        if len(moved):
            used = self.suffix[:, :, : self.steps]
            used[:, :, :, moved] = used[:, :, :, rows[moved]]
        self.suffix, self.group = self.suffix[:, :, :, :count], self.group[rows]
        live, renumbered = torch.unique(self.group, return_inverse=True)
        if len(live) <= 0.75 * len(self.lengths):
            self.lengths, self.group = self.lengths[live], renumbered
            self.prefix = self.prefix[:, :, live, :, : int(self.lengths.max())]
        self._lay_out()

    def _lay_out(self) -> None:
        """Where each row's heads stand among the prompts' places, and back; the mask of the padding."""
        prompts, groups = len(self.lengths), self.network.kv_heads
        counts = torch.bincount(self.group, minlength=prompts)
        most = int(counts.max())
        order = torch.argsort(self.group, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(self.rows, device=self.device) - (counts.cumsum(0) - counts)[self.group[order]]
        heads = torch.arange(groups, device=self.device)
        place = (self.group.unsqueeze(1) * groups + heads) * most + rank.unsqueeze(1)  # B G
        self.scatter = place.flatten()
        self.gather = torch.zeros(prompts * groups * most, dtype=torch.int64, device=self.device)
        self.gather[self.scatter] = torch.arange(self.rows * groups, device=self.device)
        self.padding = None
        longest = self.prefix.shape[4]
        if int(self.lengths.min()) < longest:
            hidden = torch.arange(longest, device=self.device) >= self.lengths.unsqueeze(1)
            mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill(hidden, -torch.inf)
            self.padding = mask.repeat_interleave(groups, 0).unsqueeze(1)

    def _grow(self) -> None:
        old = self.suffix
        self.suffix = self._empty(min(2 * self.steps, self.room), *old.shape[3:])
        self.suffix[:, :, : self.steps] = old


def _product(start: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    return torch.bmm(left, right) if start is None else torch.baddbmm(start, left, right)


def turned(x: Tensor, angles: Tensor | None) -> Tensor:
    """`x "N H E"` with its adjacent pairs rotated by `angles "N 1 E/2"` (Su et al. 2021, rotary embedding)."""
    if angles is None:
        return x
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * angles).flatten(-2).to(x.dtype)


def _write(out: Tensor, x: Tensor, angles: Tensor | None) -> None:
    """`out[...] = turned(x, angles)` without a copy between, where the type allows."""
    if angles is None or out.dtype != torch.float32:
        out.copy_(turned(x, angles))
        return
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    torch.mul(pairs, angles, out=torch.view_as_complex(out.unflatten(-1, (-1, 2))))


def _parts(prompts: Sequence[list[int]]) -> list[list[int]]:
    """Prompts by length, in parts of about `_PREFILL_TOKENS` padded tokens."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    parts: list[list[int]] = []
    for index in order:
        if not parts or (len(parts[-1]) + 1) * len(prompts[index]) > _PREFILL_TOKENS:
            parts.append([])
        parts[-1].append(index)
    return parts
