"""Re-weighted sampling of recorded episodes: better ones are drawn more often, whatever learns from them.

Source: Harnessing mixed offline reinforcement learning datasets via trajectory weighting (arXiv 2306.13085).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.registry import RecipeError, component
from gainstage.types import Index

Score = Literal["return", "advantage"]


def start_advantage(returns: Tensor, first_obs: Tensor) -> Tensor:
    """`G - V(s_0)`, Float64 "N": what is left after a linear regression of the returns on the first observations.

    The least-norm solution where starts do not tell one another apart. Fewer than `2 (d + 1)` episodes would be
    interpolated: the returns themselves come back then, with a warning.

    Args:
        returns: `"N"`.
        first_obs: `"N d"`.
    """
    count, size = first_obs.shape
    if count < 2 * (size + 1):
        warnings.warn(
            f"trajectory_weights: {count} episodes are too few to regress returns on {size} numbers of the start; "
            "weighting by return instead",
            stacklevel=2,
        )
        return returns.double()
    table = torch.cat((torch.ones(count, 1, dtype=torch.float64), first_obs.double()), 1)
    wanted = returns.double().unsqueeze(1)
    solution = torch.linalg.lstsq(table, wanted, driver="gelsd").solution
    return (wanted - table @ solution).squeeze(1)


def trajectory_weights(scores: Tensor, alpha: float) -> Tensor:
    """`exp(y / alpha)` of min-max scaled scores, Float64 "N", the largest one 1; all 1 where scores do not differ.

    Raises:
        ValueError: alpha that is not positive, or a score that is not finite (the message names the episode).
    """
    if not alpha > 0:
        raise ValueError(f"trajectory_weights.alpha must be positive, got {alpha}")
    x = scores.double()
    bad = torch.nonzero(~torch.isfinite(x))
    if len(bad):
        raise ValueError(f"trajectory_weights: the return of episode {int(bad[0])} is not finite")
    spread = x.max() - x.min()
    if float(spread) <= 1e-12 * max(1.0, float(x.abs().max())):
        return torch.ones_like(x)
    y = (x - x.min()) / spread
    return ((y - 1) / alpha).exp()


def top_fraction(returns: Tensor, share: float) -> Tensor:
    """1 for the best `ceil(share N)` episodes, ties to the earlier one, else 0: Float64 "N".

    Raises:
        ValueError: a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"top_episodes.share must lie in (0, 1], got {share}")
    best = torch.argsort(returns, descending=True, stable=True)[: math.ceil(share * len(returns) - 1e-9)]
    return torch.zeros(len(returns), dtype=torch.float64).index_fill_(0, best, 1.0)


def transition_probs(weights: Tensor, lengths: Tensor) -> Tensor:
    """Probability of every transition, episodes end to end, Float64 "sum T": the same within an episode."""
    p = weights.double() / (weights.double() * lengths).sum()
    return p.repeat_interleave(lengths)


def return_statistics(returns: Tensor, lengths: Tensor, weights: Tensor) -> dict[str, float]:
    """What a data set can give by weighting.

    `mean` return, `psv` (its positive-sided variance), `psv_scaled` (of returns brought into [0, 1], to compare sets),
    `ess` (transitions that the weighted draw is worth), `induced_return` (mean under the weights), `largest_mass`
    (chance that a draw comes from the likeliest episode: long ones weigh more).
    """
    g, w = returns.double(), weights.double()
    p = w / (w * lengths).sum()
    psv, spread = float((g - g.mean()).clamp(min=0).square().mean()), float(g.max() - g.min())
    return {
        "mean": float(g.mean()),
        "psv": psv,
        "psv_scaled": psv / spread**2 if spread > 0 else 0.0,
        "ess": float(1 / (lengths * p.square()).sum()),
        "induced_return": float((w * g).sum() / w.sum()),
        "largest_mass": float((lengths * p).max()),
    }


class EpisodeDraws:
    """Draws transitions of a store by weights of its episodes."""

    def __init__(self) -> None:
        self.mass: Tensor | None = None
        self.worth = 0.0
        """Transitions that a weighted draw is worth."""

    def weights(self, store: Any) -> Tensor:
        """One weight an episode, `"E"`."""
        raise NotImplementedError

    def choose(self, view: Any, n: int, ctx: Any, inner: Any = None) -> Index:
        """Independent draws with replacement.

        Raises:
            RecipeError: the store keeps no episodes.
        """
        if self.mass is None:
            self.mass = self._prepare(view, ctx)
        point = torch.rand(n, dtype=torch.float64) * self.mass[-1]
        row = torch.searchsorted(self.mass, point, right=True).clamp(max=len(self.mass) - 1)
        step = (torch.rand(n, dtype=torch.float64) * view.lengths[row]).long()
        return Index(row, torch.minimum(step, view.lengths[row] - 1))

    def _prepare(self, view: Any, ctx: Any) -> Tensor:
        name = f"select.{type(self).__name__}"
        if not hasattr(view, "lengths"):
            raise RecipeError(f"{name} weighs recorded episodes; it needs the store offline or windows")
        weights = self.weights(view)
        statistics = return_statistics(view.returns(), view.lengths, weights)
        statistics["partial"] = float(getattr(view, "partial", 0))
        for key, value in statistics.items():
            ctx.log(f"data/{key}", value)
        self.worth = statistics["ess"]
        return (weights * view.lengths).cumsum(0)


@component("select")
@dataclass
class TrajectoryWeights(EpisodeDraws):
    """Draws transitions of good episodes more often; critic, actor and cloning term all see the same draw.

    `score` is the episode's `return`, or its `advantage` over what its start lets expect. No correction is applied: the
    shift is what is wanted. Where the world is noisy, lucky episodes are preferred too.

    Args:
        score: `return` (RW) or `advantage` (AW).
        alpha: temperature of min-max scaled scores; large = uniform.
        strict: refuse weights whose effective number of transitions is below a minibatch (else a warning).
    """

    score: Score = "return"
    alpha: float = 0.1
    strict: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        if not self.alpha > 0:
            raise ValueError(f"alpha must be positive, got {self.alpha}")

    def weights(self, store: Any) -> Tensor:
        returns = store.returns()
        if self.score == "advantage":
            first = store.at("obs", torch.zeros_like(store.lengths), torch.arange(len(store.lengths)))
            returns = start_advantage(returns, first.flatten(1))
        weights = trajectory_weights(returns, self.alpha)
        if bool((weights == 1).all()) and len(weights) > 1:
            warnings.warn("trajectory_weights: all episodes score the same, so draws are uniform", stacklevel=2)
        return weights

    def choose(self, view: Any, n: int, ctx: Any, inner: Any = None) -> Index:
        first = self.mass is None
        index = super().choose(view, n, ctx, inner)
        if first and self.worth < n:
            said = (
                f"select.trajectory_weights: alpha {self.alpha} is too small: the draw is worth {self.worth:.0f} "
                f"transitions, a minibatch has {n}; raise alpha"
            )
            if self.strict:
                raise RecipeError(said)
            warnings.warn(said, stacklevel=2)
        return index


@component("select")
@dataclass
class TopEpisodes(EpisodeDraws):
    """Draws from the best episodes alone, uniformly over their transitions (filtered cloning, "10 % BC").

    Args:
        share: of the episodes, the best by return.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        super().__init__()
        if not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {self.share}")

    def weights(self, store: Any) -> Tensor:
        return top_fraction(store.returns(), self.share)
