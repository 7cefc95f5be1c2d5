"""VADE: Thompson sampling of problems by a Beta belief of their difficulty (arXiv 2511.18902).

The sources name the parts (bandit view, Beta posteriors, information score, two decay scales) but not
their formulas; score and decay constants here are this package's choice.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.select.data.shuffle import requests_for, train_problems
from gainstage.select.data.signals import signals
from gainstage.types import Problem, Request, Trajectory

Info = Literal["variance", "mixed"]


class BetaDifficulty:
    """Beta belief of each problem's success probability, with two forgetting rates; float64."""

    def __init__(
        self, n: int, alpha0: float = 1.0, beta0: float = 1.0, lam_g: float = 0.995, lam_l: float = 0.5
    ) -> None:
        if alpha0 <= 0 or beta0 <= 0:
            raise ValueError(f"the prior of a Beta belief must be positive, got {alpha0} and {beta0}")
        if not 0 <= lam_g <= 1 or not 0 <= lam_l <= 1:
            raise ValueError(f"decays must lie in [0, 1], got {lam_g} and {lam_l}")
        self.alpha0, self.beta0, self.lam_g, self.lam_l = alpha0, beta0, lam_g, lam_l
        self.alpha = torch.full((n,), alpha0, dtype=torch.float64)
        self.beta = torch.full((n,), beta0, dtype=torch.float64)

    def decay(self, lam: float | None = None) -> None:
        """Every belief moves towards the prior: the policy changes also where nobody looks."""
        lam = self.lam_g if lam is None else lam
        self.alpha = self.alpha0 + lam * (self.alpha - self.alpha0)
        self.beta = self.beta0 + lam * (self.beta - self.beta0)

    def observe(self, ids: Tensor, successes: Tensor, trials: Tensor) -> None:
        """Local decay and evidence of the visited problems, each id once or several times (counts are merged).

        Args:
            ids: `Int "B"`.
            successes, trials: `Float "B"`, `0 <= successes <= trials`.
        """
        if bool(((successes < 0) | (successes > trials)).any()):
            raise ValueError("beta difficulty: successes must lie between 0 and trials (rewards in [0, 1])")
        unique, place = torch.unique(ids, return_inverse=True)
        won = torch.zeros(len(unique), dtype=torch.float64).index_add(0, place, successes.double())
        tried = torch.zeros(len(unique), dtype=torch.float64).index_add(0, place, trials.double())
        self.alpha[unique] = self.alpha0 + self.lam_l * (self.alpha[unique] - self.alpha0) + won
        self.beta[unique] = self.beta0 + self.lam_l * (self.beta[unique] - self.beta0) + tried - won

    def mean(self) -> Tensor:
        """Expected success probability, `Float "N"`."""
        return self.alpha / (self.alpha + self.beta)

    def std(self) -> Tensor:
        """Standard deviation of the belief, `Float "N"`."""
        total = self.alpha + self.beta
        return (self.alpha * self.beta / (total**2 * (total + 1))).sqrt()


def information(theta: Tensor, kind: Info = "variance", samples: int = 8) -> Tensor:
    """What a group at success probability theta can teach, `Float "N"`.

    `variance`: theta (1 - theta), the variance of a 0/1 reward. `mixed`: 1 - theta^G - (1 - theta)^G, the
    probability that a group of G samples is not constant.
    """
    if kind == "variance":
        return theta * (1 - theta)
    if kind == "mixed":
        return 1 - theta**samples - (1 - theta) ** samples
    raise ValueError(f"thompson.info must be variance or mixed, got {kind!r}")


@dataclass
class ThompsonSelector:
    """Draws theta from every belief (or a random pool) and takes the problems of largest information."""

    difficulty: BetaDifficulty
    info: Info = "variance"
    samples: int = 8
    pool: int = 1_000_000
    uniform_mix: float = 0.0

    def select(self, n: int) -> list[int]:
        """`n` problems; each once before any twice, then by largest information again. Uses torch's global stream."""
        size = len(self.difficulty.alpha)
        candidates = torch.randperm(size)[: max(self.pool, min(n, size))]
        theta = torch.distributions.Beta(self.difficulty.alpha[candidates], self.difficulty.beta[candidates]).sample()
        score = information(theta, self.info, self.samples)
        ranked = candidates[
            torch.argsort(score, descending=True, stable=True)
        ].tolist()  # ties: order of the permutation
        at_random = int((torch.rand(n) < self.uniform_mix).sum()) if self.uniform_mix else 0
        picks = ranked[: n - at_random]
        rest = [i for i in torch.randperm(size).tolist() if i not in set(picks)] if at_random else []
        picks += rest[: n - len(picks)]
        while len(picks) < n:
            picks += ranked[: n - len(picks)]
        return picks


@component("select")
@dataclass
class Thompson:
    """Problems near even odds first, by beliefs that the training rollouts themselves keep up to date."""

    samples: int = 8
    """Answers to each problem (one group)."""
    info: Info = "variance"
    """`variance` prefers p near 1/2; `mixed` is flat in the middle and only avoids sure successes and failures."""
    prior: tuple[float, float] = (1.0, 1.0)
    """Beta prior of a problem nobody has tried."""
    per_pass: float = 0.85
    """Evidence that a problem keeps over one pass of the data without a visit; lower re-tries old problems sooner."""
    per_visit: float = 0.5
    """Weight that older visits keep at the next one; lower follows a fast learner."""
    pool: int = 1_000_000
    """Largest number of problems that are scored at a time."""
    uniform_mix: float = 0.0
    """Share drawn uniformly; 0.05 to 0.1 keeps hard problems in sight."""
    success_at: float | None = 1.0
    """Signal that counts as solved; null: the signal itself is a share of success."""
    signal: str = ""
    """Reward part or row column in [0, 1]; empty: the task's verdict."""
    warm_start: str = ""
    """Column of the data set (a key of `meta`) that holds a known pass rate in [0, 1]; empty: all start at `prior`."""
    warm_weight: float = 2.0
    """Answers that a known pass rate counts for; visits and forgetting wash it out."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"thompson.samples must be at least 1, got {self.samples}")
        if not 0 < self.per_pass <= 1:
            raise ValueError(f"thompson.per_pass must lie in (0, 1], got {self.per_pass}")
        if self.per_pass < 0.5:
            warnings.warn(f"thompson.per_pass={self.per_pass} forgets most of the evidence in one pass", stacklevel=2)
        if not 0 <= self.uniform_mix <= 1:
            raise ValueError(f"thompson.uniform_mix must lie in [0, 1], got {self.uniform_mix}")
        if not self.warm_weight >= 0:
            raise ValueError(f"thompson.warm_weight must not be negative, got {self.warm_weight}")
        self._belief = BetaDifficulty(0, *self.prior, lam_l=self.per_visit)
        self._index: dict[str, int] = {}
        self._picks: dict[str, int] = {}
        self._problems: list[Problem] | None = None
        self._seen = 0

    def next(self, n: int, ctx: Any, inner: Any = None) -> list[Request]:
        problems = self._distinct(train_problems(ctx))
        self._know(problems)
        if n > len(problems):
            warnings.warn(f"thompson: {n} groups asked of {len(problems)} problems; some come twice", stacklevel=2)
        self._belief.decay(self.per_pass ** (n / len(problems)))
        picks = ThompsonSelector(self._belief, self.info, self.samples, self.pool, self.uniform_mix).select(n)
        self._count([problems[i].id for i in picks], self._belief.mean()[picks], len(problems), ctx)
        return [request for i in picks for request in requests_for(problems[i], self.samples, ctx)]

    def _count(self, names: Sequence[str], believed: Tensor, size: int, ctx: Any) -> None:
        """Log where the picks lie (share in each fifth of the believed success rate) and how they spread."""
        fifths = (believed * 5).long().clamp(0, 4)
        for fifth in range(5):
            ctx.log(f"thompson/picks/{fifth / 5:.1f}", float((fifths == fifth).double().mean()))
        for name in names:
            self._picks[name] = self._picks.get(name, 0) + 1
        ctx.log("thompson/coverage", len(self._picks) / size)
        ctx.log("thompson/most_picks", max(self._picks.values()))

    def _distinct(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        """The problems without repeats: a problem that a data set holds twice has one belief."""
        if self._problems is None or self._seen != len(problems):
            self._seen = len(problems)
            self._problems = list({problem.id: problem for problem in problems}.values())
        return self._problems

    def _know(self, problems: Sequence[Problem]) -> None:
        """Beliefs in the order of the problems; evidence follows the problem's id."""
        if len(self._index) == len(problems) and self._index.get(problems[-1].id) == len(problems) - 1:
            return
        index = {problem.id: i for i, problem in enumerate(problems)}
        belief = BetaDifficulty(len(index), *self.prior, lam_l=self.per_visit)
        if self.warm_start:
            known = torch.tensor([_pass_rate(problem, self.warm_start) for problem in problems], dtype=torch.float64)
            if bool(torch.isnan(known).all()):
                raise ValueError(f"thompson.warm_start: no problem has a number in the column {self.warm_start!r}")
            belief.alpha += torch.nan_to_num(self.warm_weight * known)
            belief.beta += torch.nan_to_num(self.warm_weight * (1 - known))
        for name, old in self._index.items():
            if name in index:
                belief.alpha[index[name]], belief.beta[index[name]] = self._belief.alpha[old], self._belief.beta[old]
        self._belief, self._index = belief, index

    def observe(self, fresh: Sequence[Trajectory], ctx: Any) -> None:
        values = signals(fresh, self.signal)
        outside = values[(values < -1e-6) | (values > 1 + 1e-6)]
        if len(outside):
            raise ValueError(
                f"thompson: the signal must lie in [0, 1], got {float(outside[0]):g}; name another with thompson.signal"
            )
        known = torch.tensor([t.problem is not None and t.problem.id in self._index for t in fresh], dtype=torch.bool)
        seen = known & ~torch.isnan(values)
        ctx.log("failures/thompson", float((known & torch.isnan(values)).sum()))
        if not bool(seen.any()):
            return
        ids = torch.tensor(
            [self._index[t.problem.id] if t.problem and k else -1 for t, k in zip(fresh, seen.tolist())]
        )[seen]
        won = values[seen] if self.success_at is None else (values[seen] >= self.success_at - 1e-6).double()
        self._belief.observe(ids, won.clamp(0, 1), torch.ones_like(won))
        groups = torch.tensor([t.group for t in fresh])[seen]
        mixed = [0 < float(won[groups == g].sum()) < int((groups == g).sum()) for g in groups.unique()]
        ctx.log("thompson/effective_ratio", sum(mixed) / len(mixed))
        ctx.log("thompson/mean", float(self._belief.mean().mean()))
        ctx.log("thompson/std", float(self._belief.std().mean()))

    def state_dict(self) -> dict[str, Any]:
        belief = {"alpha": self._belief.alpha.clone(), "beta": self._belief.beta.clone()}
        return {"ids": list(self._index), **belief, "picks": dict(self._picks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._index = {str(name): i for i, name in enumerate(state["ids"])}
        self._belief = BetaDifficulty(len(self._index), *self.prior, lam_l=self.per_visit)
        self._belief.alpha, self._belief.beta = state["alpha"].double(), state["beta"].double()
        self._picks = {str(name): int(count) for name, count in state.get("picks", {}).items()}


def _pass_rate(problem: Problem, column: str) -> float:
    """What is known of a problem beforehand, NaN where nothing is."""
    value = problem.meta.get(column)
    if value is None:
        return math.nan
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = math.inf
    if not 0 <= rate <= 1:
        raise ValueError(
            f"thompson.warm_start: {column!r} must hold pass rates in [0, 1], problem {problem.id} has {value!r}"
        )
    return rate
