"""Is the reward that is trained on still what was meant? Guards that compare it with the truth."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's rank correlation with mid-ranks for ties; None where one side does not vary.

    Raises:
        ValueError: different lengths.
    """
    if len(a) != len(b):
        raise ValueError(f"rank_correlation: {len(a)} and {len(b)} values")
    x, y = _ranks(a), _ranks(b)
    if len(x) < 2 or not x.std() or not y.std():
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    v = np.asarray(values, float)
    return np.array([(v < x).sum() + ((v == x).sum() + 1) / 2 for x in v])


@dataclass
class AlignmentGuard:
    """Halves the weight of a dense reward while it does not rank episodes as the true return does.

    The correlation is taken over the last `window` episodes, and only once they are there.

    Args:
        threshold: rank correlation below which the weight is halved.
    """

    window: int = 100
    threshold: float = 0.2
    factor: float = 0.5
    weight: float = 1.0
    pairs: deque[tuple[float, float]] = field(default_factory=deque, repr=False)

    def __post_init__(self) -> None:
        if self.window < 3 or not -1 <= self.threshold <= 1 or not 0 < self.factor < 1:
            raise ValueError(
                f"alignment guard: window >= 3, threshold in [-1, 1] and factor in (0, 1), got {self.window}, "
                f"{self.threshold}, {self.factor}"
            )

    def see(self, dense: float, true: float) -> float | None:
        """One episode's returns; the correlation where it was taken, after which a new window begins."""
        self.pairs.append((dense, true))
        if len(self.pairs) < self.window:
            return None
        found = rank_correlation([d for d, _ in self.pairs], [t for _, t in self.pairs])
        self.pairs.clear()
        if found is None or found < self.threshold:
            self.weight *= self.factor
        return found

    def state_dict(self) -> dict[str, object]:
        return {"weight": self.weight, "pairs": [list(pair) for pair in self.pairs]}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.weight = float(state["weight"])  # type: ignore[arg-type]
        self.pairs = deque((float(a), float(b)) for a, b in state["pairs"])  # type: ignore[attr-defined]


def proxy_gap(proxy: Sequence[float], truth: Sequence[float], window: int = 3, least: float = 0.0) -> bool:
    """Whether the reward that is trained on rose over the last `window` looks while the truth did not: reward hacking.

    Args:
        proxy, truth: one value a look, oldest first.
        least: rise that counts.

    Raises:
        ValueError: different lengths or a window below 2.
    """
    if len(proxy) != len(truth) or window < 2:
        raise ValueError(f"proxy_gap: {len(proxy)} and {len(truth)} looks, window {window} (at least 2)")
    if len(proxy) < window:
        return False
    return proxy[-1] - proxy[-window] > least and truth[-1] - truth[-window] <= least
