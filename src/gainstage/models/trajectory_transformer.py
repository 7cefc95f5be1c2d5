"""A causal transformer over the steps of a trajectory: what comes next, given everything before."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Block(nn.Module):
    """Attention and a two-layer net, each behind a layer norm and beside a skip."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        x = x + self.drop(self.out(seen.transpose(1, 2).reshape(rows, length, width)))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


class TrajectoryTransformer(nn.Module):
    """Tokens of steps `"B L width"` to features `"B L width"`; each sees itself and what lies before it in its row.

    Padding may stand on either side: nobody sees it, and what comes out at its places means nothing.

    Args:
        width: of the tokens.
        layers, heads: of the transformer; `width` is a multiple of `heads`.
        dropout: share of features left out in training.
    """

    def __init__(self, width: int = 128, layers: int = 3, heads: int = 1, dropout: float = 0.1) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width ({width}) must be a multiple of heads ({heads})")
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """`real` `Bool "B L"`: which tokens are no padding."""
        length = x.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=x.device)  # so that padding has something to look at
        allowed = ((causal & real.unsqueeze(1)) | itself).unsqueeze(1)
        for block in self.blocks:
            x = block(x, allowed)
        return self.norm(x)


def interleaved(*streams: Tensor) -> Tensor:
    """Streams `"B T *"` as one: the first tokens of each step side by side, `"B S*T *"`."""
    return torch.stack(streams, 2).flatten(1, 2)
