"""Losses on pairs of a chosen and a rejected answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gainstage.ops.masked import masked_sum
from gainstage.registry import RecipeError, component, near
from gainstage.types import Batch, Ctx
from gainstage.update.learner import Learner, Stats


@dataclass(frozen=True)
class Pairs:
    """One entry a pair: log-probs of whole answers (sums over their tokens), the reference's, lengths in tokens."""

    chosen: Tensor
    rejected: Tensor
    ref_chosen: Tensor | None = None
    ref_rejected: Tensor | None = None
    n_chosen: Tensor | None = None
    n_rejected: Tensor | None = None

    def gap(self) -> Tensor:
        """How much more the policy than the reference prefers the chosen answer, nats, `"B"`."""
        if self.ref_chosen is None or self.ref_rejected is None:
            raise ValueError("preference: this loss needs the reference's log-probs of both answers")
        return (self.chosen - self.ref_chosen.detach()) - (self.rejected - self.ref_rejected.detach())

    def means(self) -> tuple[Tensor, Tensor]:
        """Log-probs per token of chosen and rejected, `"B"` each."""
        if self.n_chosen is None or self.n_rejected is None:
            raise ValueError("preference: this loss needs the lengths of both answers")
        return self.chosen / self.n_chosen.clamp(min=1), self.rejected / self.n_rejected.clamp(min=1)


def dpo(pairs: Pairs, beta: float = 0.1, label_smoothing: float = 0.0) -> Tensor:
    """`-log sigmoid(beta gap)` (DPO, arXiv 2305.18290, equation 7). Smaller `beta` lets the policy leave the reference.

    `label_smoothing` is the share of pairs assumed to be the wrong way round (conservative DPO); below 0.5.
    """
    _smoothing(label_smoothing)
    logits = beta * pairs.gap()
    return -(1 - label_smoothing) * logsigmoid(logits) - label_smoothing * logsigmoid(-logits)


def robust_dpo(pairs: Pairs, beta: float = 0.1, label_smoothing: float = 0.1) -> Tensor:
    """DPO corrected for flipped labels so that its mean is that on clean ones (arXiv 2403.00409)."""
    _smoothing(label_smoothing)
    logits = beta * pairs.gap()
    kept, flipped = -logsigmoid(logits), -logsigmoid(-logits)
    return ((1 - label_smoothing) * kept - label_smoothing * flipped) / (1 - 2 * label_smoothing)


def ipo(pairs: Pairs, beta: float = 0.1) -> Tensor:
    """`(gap - 1 / (2 beta))^2`: a target gap instead of an ever larger one (IPO, arXiv 2310.12036, equation 17)."""
    return (pairs.gap() - 1 / (2 * beta)) ** 2


def hinge(pairs: Pairs, beta: float = 0.1) -> Tensor:
    """`max(0, 1 - beta gap)`: nothing more to learn beyond the margin (RSO, arXiv 2309.06657)."""
    return torch.relu(1 - beta * pairs.gap())


def slic(pairs: Pairs, delta: float = 1.0, likelihood: float = 0.0) -> Tensor:
    """`max(0, delta - log pi(chosen) + log pi(rejected))`, no reference (SLiC-HF, arXiv 2305.10425).

    `likelihood` adds that multiple of the chosen answer's negative log-likelihood, which holds the policy in place.
    """
    return torch.relu(delta - pairs.chosen + pairs.rejected) - likelihood * pairs.chosen


def simpo(pairs: Pairs, beta: float = 2.0, gamma: float = 1.0) -> Tensor:
    """`-log sigmoid(beta (mean log-prob gap) - gamma)`, no reference, length-normalised (SimPO, arXiv 2405.14734)."""
    chosen, rejected = pairs.means()
    return -logsigmoid(beta * (chosen - rejected) - gamma)


def orpo(pairs: Pairs, weight: float = 0.1) -> Tensor:
    """Negative mean log-prob of the chosen answer plus `weight` times the odds ratio loss (ORPO, arXiv 2403.07691)."""
    chosen, rejected = pairs.means()
    odds = (chosen - _log_complement(chosen)) - (rejected - _log_complement(rejected))
    return -chosen - weight * logsigmoid(odds)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "dpo": dpo,
    "robust_dpo": robust_dpo,
    "ipo": ipo,
    "hinge": hinge,
    "slic": slic,
    "simpo": simpo,
    "orpo": orpo,
}
REFERENCE_FREE = frozenset({"slic", "simpo", "orpo"})


def preference_loss(name: str, pairs: Pairs, **settings: float) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss `name` of every pair, `"B"`, to be averaged over pairs; and `"B"` statistics.

    Statistics: `preference/accuracy` (ties count one half) and `preference/margin` (nats) of the policy against the
    reference where there is one, else of the policy alone.

    Raises:
        ValueError: unknown name; the loss lacks reference or lengths.
    """
    if name not in LOSSES:
        raise ValueError(f"no preference loss {name!r}; {near(name, LOSSES)}")
    margin = (pairs.chosen - pairs.rejected if pairs.ref_chosen is None else pairs.gap()).detach()
    accuracy = (margin > 0).float() + 0.5 * (margin == 0).float()
    return LOSSES[name](pairs, **settings), {"preference/accuracy": accuracy, "preference/margin": margin}


@component("update", "preference")
@dataclass
class PreferenceLearner(Learner):
    """Trains a policy on pairs: rows 2i and 2i + 1 of a minibatch are the chosen and the rejected answer to one prompt.

    `objective` names a loss, alone or with its settings (`{dpo: {beta: 0.1}}`): dpo, robust_dpo, ipo and hinge need
    the column of the `reference_logprobs` credit entry; slic, simpo and orpo have no reference.
    """

    objective: str | dict[str, Any] = field(default_factory=lambda: "dpo")

    splits = False

    def __post_init__(self) -> None:
        super().__post_init__()
        entry = {self.objective: {}} if isinstance(self.objective, str) else self.objective
        if len(entry) != 1:
            raise RecipeError(f"update.preference.objective is one loss, got {sorted(entry)}")
        self.name, settings = next(iter(entry.items()))
        self.settings = dict(settings or {})
        if self.name not in LOSSES:
            raise RecipeError(f"update.preference.objective: no loss {self.name!r}; {near(self.name, LOSSES)}")
        known = list(inspect.signature(LOSSES[self.name]).parameters)[1:]
        for key in self.settings:
            if key not in known:
                raise RecipeError(
                    f"update.preference.objective: {self.name!r} has no setting {key!r}; {near(key, known)}"
                )
        self.needs = ("mask",) if self.name in REFERENCE_FREE else ("mask", "ref_logprobs")

    def prepare(self, minibatch: Batch, ctx: Ctx) -> bool:
        if minibatch.rows % 2:
            raise ValueError(f"preference: a minibatch holds pairs of rows, got {minibatch.rows} rows")
        problems = [problem.id if problem else None for problem in minibatch.problems]
        if problems[::2] != problems[1::2]:
            raise ValueError("preference: the two rows of a pair answer different problems; keep pairs together")
        return bool(minibatch["mask"].any())

    def loss(self, mb: Batch, ctx: Ctx) -> tuple[Tensor, Stats]:
        mask = mb["mask"].bool()
        sums = masked_sum(ctx.models[self.train[0]].evaluate(mb).logprobs, mask, 1)
        ctx.meter.charge("trained_tokens", float(mask.sum()))
        lengths = mask.sum(1)
        ref = masked_sum(mb["ref_logprobs"], mask, 1) if "ref_logprobs" in self.needs else None
        pairs = Pairs(
            sums[::2],
            sums[1::2],
            None if ref is None else ref[::2],
            None if ref is None else ref[1::2],
            lengths[::2],
            lengths[1::2],
        )
        losses, stats = preference_loss(self.name, pairs, **self.settings)
        return losses.mean(), {name: float(value.mean()) for name, value in stats.items()}


def _log_complement(logp: Tensor) -> Tensor:
    """`log(1 - exp(logp))` for `logp < 0`; capped just below 0, where the odds would be infinite."""
    return torch.log(-torch.expm1(logp.clamp(max=-1e-6)))


def _smoothing(share: float) -> None:
    if not 0 <= share < 0.5:
        raise ValueError(f"preference.label_smoothing must lie in [0, 0.5), got {share}")
