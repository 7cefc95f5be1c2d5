"""Drawing one token a row: temperature, support cuts, inverse-CDF with each row's own noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gainstage.ops.noise import signed, uniform
from gainstage.types import Sampling

_BLOCK = 256  # tokens of a block of the two-level search in the CDF
_WINDOW = 32  # positions whose noise is drawn at once
_HEAD = 512  # likeliest tokens among which the border of top-p is looked for first


class Sampler:
    """Per-row settings and noise of the live rows, and the draw.

    The log-prob of a row is that of the distribution it was drawn from: after the temperature, and
    renormalised after top-k, top-p and min-p. A greedy row (temperature 0) draws the likeliest token; its
    log-prob is that of the full softmax at temperature 1, since that of a sure choice says nothing.

    Cuts are applied in the order temperature, top-k, top-p, min-p. Tokens that tie with the last one kept
    are kept too, so the support does not depend on the order of a sort.
    """

    def __init__(self, settings: Sequence[Sampling], keys: Sequence[int], device: torch.device) -> None:
        """One entry of `settings` and `keys` for each row."""
        self.keys = torch.tensor([signed(key) for key in keys], device=device)
        self.greedy = torch.tensor([s.temperature == 0 for s in settings], device=device)
        self.scale = torch.tensor([1 / s.temperature if s.temperature else 1.0 for s in settings], device=device)
        self.top_k = torch.tensor([s.top_k for s in settings], device=device)
        self.top_p = torch.tensor([s.top_p for s in settings], dtype=torch.float32, device=device)
        self.min_p = torch.tensor([s.min_p for s in settings], dtype=torch.float32, device=device)
        self.scaled = any(s.temperature not in (0, 1) for s in settings)
        self.cut = any(s.changes_support and s.temperature for s in settings)
        self.some_greedy = any(s.temperature == 0 for s in settings)
        self._noise: tuple[int, Tensor] | None = None

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows, in this order."""
        for name in ("keys", "greedy", "scale", "top_k", "top_p", "min_p"):
            setattr(self, name, getattr(self, name)[rows])
        if self._noise is not None:
            self._noise = (self._noise[0], self._noise[1][rows])

    def noise(self, position: int) -> Tensor:
        """The rows' uniform numbers at one position, `Float64 "B"`."""
        start = position - position % _WINDOW
        if self._noise is None or self._noise[0] != start:
            window = torch.arange(start, start + _WINDOW, device=self.keys.device)
            self._noise = (start, uniform(self.keys.unsqueeze(1), window))
        return self._noise[1][:, position - start]

    def draw(self, logits: Tensor, position: int, entropy: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """One token a row.

        Args:
            logits: `Float "B V"`.
            position: index of the token in the completion.
            entropy: whether to compute that of the distribution drawn from, in nats.

        Returns:
            ids `Int64 "B"`, log-probs `Float32 "B"`, entropy `Float32 "B"` or None.
        """
        scores = logits.float()
        if self.scaled:
            scores = scores * self.scale.unsqueeze(1)
        if self.cut:
            floor = support_floor(scores, self.top_k, self.top_p, self.min_p)
            floor = torch.where(self.greedy, -torch.inf, floor)
            scores = scores.masked_fill(scores < floor.unsqueeze(1), -torch.inf)
        top = scores.amax(1, keepdim=True)
        mass = (scores - top).exp_()
        ids, total = inverse_cdf(mass, self.noise(position))
        if self.some_greedy:
            ids = torch.where(self.greedy, logits.argmax(1), ids)
        log_total = total.log()
        logprobs = (scores.gather(1, ids.unsqueeze(1)) - top).squeeze(1) - log_total
        if not entropy:
            return ids, logprobs, None
        # H = log Z - E[x - max], with 0 * -inf = 0 at tokens that were cut off
        mean = (mass * torch.where(mass > 0, scores - top, 0.0)).sum(1) / total
        return ids, logprobs, log_total - mean


def inverse_cdf(mass: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The token at which the cumulative mass first exceeds `noise` times the total.

    Large vocabularies are searched in two levels (blocks, then inside a block), so that no cumulative sum
    of the whole vocabulary is needed. A token without mass is never drawn.

    Args:
        mass: `Float32 "B V"`, >= 0, one token of each row at least positive.
        noise: `Float64 "B"` in (0, 1).

    Returns:
        ids `Int64 "B"` and the total mass `Float32 "B"`.
    """
    rows, size = mass.shape
    if size <= _BLOCK:
        cumulative = mass.cumsum(1)
        total = cumulative[:, -1]
        return _first_above(cumulative, noise.float() * total), total
    spare = -size % _BLOCK
    blocks = torch.nn.functional.pad(mass, (0, spare)) if spare else mass
    blocks = blocks.view(rows, -1, _BLOCK)
    cumulative = blocks.sum(2).cumsum(1)
    total = cumulative[:, -1]
    target = noise.float() * total
    block = _first_above(cumulative, target)
    before = torch.nn.functional.pad(cumulative, (1, 0)).gather(1, block.unsqueeze(1)).squeeze(1)
    inside = blocks[torch.arange(rows, device=mass.device), block].cumsum(1)
    return block * _BLOCK + _first_above(inside, target - before), total


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """First index of each row of `cumulative "B N"` that exceeds `target "B"`, which rounding may have lifted
    to the row's last value."""
    last = cumulative[:, -1]
    below = torch.minimum(target, torch.nextafter(last, torch.zeros_like(last)))
    found = torch.searchsorted(cumulative, below.unsqueeze(1), right=True).squeeze(1)
    return found.clamp(max=cumulative.shape[1] - 1)  # NaN is above nothing; the caller reports it


def support_floor(scores: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The smallest score that a token needs to stay in the support, `Float "B"`.

    Args:
        scores: `Float "B V"`, logits over temperature.
        top_k: `Int64 "B"`, 0 = off: the k likeliest tokens stay (Fan et al. 2018).
        top_p: `Float "B"`, 1 = off: the fewest likeliest tokens with at least this share of what top-k
            left (Holtzman et al. 2020).
        min_p: `Float "B"`, 0 = off: tokens at least this share as likely as the likeliest (Nguyen et al. 2024).
    """
    size = scores.shape[1]
    floor = scores.amax(1) + min_p.log()
    k = torch.where(top_k > 0, top_k.clamp(max=size), size)
    has_k, has_p = top_k > 0, top_p < 1
    if not bool((has_k | has_p).any()):
        return floor
    widest = int(torch.where(has_k, k, 1).max())
    head = min(size, max(widest, _HEAD if bool(has_p.any()) else widest))
    while True:
        best = scores.topk(head, dim=1).values
        kth = best.gather(1, (k - 1).clamp(max=head - 1).unsqueeze(1))
        total = torch.where(has_k.unsqueeze(1), (scores >= kth), True)
        total = torch.where(total, (scores - best[:, :1]).exp(), 0.0).sum(1)
        share = (best - best[:, :1]).exp().cumsum(1) / total.unsqueeze(1)
        enough = share >= top_p.unsqueeze(1)
        if head == size or not bool((has_p & ~enough.any(1)).any()):
            break
        head = min(8 * head, size)  # a flat distribution: the border lies further down
    border = torch.where(enough.any(1), enough.float().argmax(1), head - 1)
    nucleus = best.gather(1, border.unsqueeze(1)).squeeze(1)
    floor = torch.where(has_p, torch.maximum(floor, nucleus), floor)
    return torch.where(has_k, torch.maximum(floor, kth.squeeze(1)), floor)
