"""What a run spends: a meter that books every cost to the component that caused it, and limits over its axes."""

from __future__ import annotations

import difflib
import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Axis:
    """One thing that can be spent."""

    unit: str
    meaning: str


AXES: dict[str, Axis] = {
    "generated_tokens": Axis("tokens", "tokens sampled from any model, discarded answers and hidden rollouts included"),
    "trained_tokens": Axis("tokens", "tokens that an optimizer step saw, each epoch counted"),
    "scored_tokens": Axis("tokens", "tokens that a model only scored: no sampling, no training (references, teachers)"),
    "env_steps": Axis("steps", "actions taken in environments"),
    "transitions": Axis("transitions", "recorded steps that learning drew from a fixed data set, repeats counted"),
    "denoising_steps": Axis("steps", "denoising steps of diffusion and flow models, per sample"),
    "gradient_steps": Axis("steps", "optimizer steps of all learners"),
    "problems": Axis("problems", "problems asked, repeats counted"),
    "answers": Axis("answers", "answers sampled, discarded ones included"),
    "verifier_calls": Axis("calls", "answers checked by a verifier"),
    "judge_calls": Axis("calls", "answers judged by a model"),
    "expert_calls": Axis("calls", "questions to an expert, human or model"),
    "labels": Axis("labels", "labels or demonstrations taken from people or data"),
    "seconds": Axis("s", "wall-clock time of the run without evaluation"),
    "flops": Axis("FLOPs", "floating-point operations, estimated from parameters and tokens"),
}


def check_axis(name: str) -> str:
    """The name itself.

    Raises:
        ValueError: there is no such axis; the message lists near matches.
    """
    if name in AXES:
        return name
    inside = [axis for axis in AXES if name and name in axis]
    matches = inside[:3] or difflib.get_close_matches(name, AXES, n=3, cutoff=0.5)
    hint = "did you mean " + " or ".join(map(repr, matches)) + "?" if matches else "known: " + ", ".join(AXES)
    raise ValueError(f"budget has no axis {name!r}; {hint}")


class Meter:
    """Counts spending per axis and component. Evaluation and the like go to accounts of their own.

    `charge` may be called from several threads; `booking` and `account` belong to the thread of the main loop.
    """

    MAIN = ""

    def __init__(self) -> None:
        self._accounts: dict[str, dict[str, dict[str, float]]] = {self.MAIN: {}}
        self._account = self.MAIN
        self._by = ""
        self._lock = threading.Lock()

    def charge(self, kind: str, amount: float, by: str = "") -> None:
        """Book `amount` on the axis `kind` to the component `by` (else to that of the enclosing `booking`).

        Raises:
            ValueError: unknown axis, or an amount that is negative or not finite.
        """
        check_axis(kind)
        value = float(amount)
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"charge {kind}: the amount must be finite and >= 0, got {amount}")
        component = by or self._by
        with self._lock:
            books = self._accounts[self._account].setdefault(kind, {})
            books[component] = books.get(component, 0.0) + value

    @contextmanager
    def booking(self, by: str) -> Iterator[None]:
        """Charges inside that name no component are booked to `by`."""
        previous, self._by = self._by, by
        try:
            yield
        finally:
            self._by = previous

    @contextmanager
    def account(self, name: str) -> Iterator[None]:
        """Charges inside go to the account `name` (e.g. "evaluation") and leave the run's own spending alone."""
        previous, self._account = self._account, name
        self._accounts.setdefault(name, {})
        try:
            yield
        finally:
            self._account = previous

    def total(self, kind: str, account: str = MAIN) -> float:
        """Spending on one axis over all components."""
        return sum(self._accounts.get(account, {}).get(check_axis(kind), {}).values())

    def snapshot(self, account: str = MAIN) -> dict[str, float]:
        """Spending per axis; axes without a charge are 0."""
        return {kind: self.total(kind, account) for kind in AXES}

    def by_component(self, account: str = MAIN) -> dict[str, dict[str, float]]:
        """component -> axis -> spending; what nobody claimed stands under ""."""
        out: dict[str, dict[str, float]] = {}
        for kind, books in self._accounts.get(account, {}).items():
            for component, amount in books.items():
                out.setdefault(component, {})[kind] = amount
        return out

    def metrics(self) -> dict[str, float]:
        """Spending so far under its log names, `budget/{axis}`; only axes that were charged."""
        return {f"budget/{kind}": self.total(kind) for kind in AXES if kind in self._accounts[self.MAIN]}

    def state_dict(self) -> dict[str, Any]:
        """All books, as JSON can hold them."""
        return {"accounts": {a: {k: dict(b) for k, b in books.items()} for a, books in self._accounts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all books.

        Raises:
            ValueError: an unknown axis.
        """
        accounts: dict[str, dict[str, dict[str, float]]] = {self.MAIN: {}}
        for account, books in state["accounts"].items():
            accounts[account] = {check_axis(k): {c: float(v) for c, v in b.items()} for k, b in books.items()}
        with self._lock:
            self._accounts = accounts


_SUFFIXES = {"k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


class Budget:
    """Limits per axis; the run ends when the first of them is reached. `Budget(generated_tokens=2e6, seconds=300)`."""

    def __init__(self, **limits: float) -> None:
        self.limits: dict[str, float] = {}
        for name, limit in limits.items():
            value = float(limit)
            if math.isnan(value) or value <= 0:
                raise ValueError(f"budget.{check_axis(name)} must be positive, got {limit}")
            self.limits[check_axis(name)] = value

    @classmethod
    def parse(cls, texts: str | Iterable[str]) -> Budget:
        """From the command line: `generated_tokens=2e6`, several of them or separated by commas; `2M` and `50k` work.

        Raises:
            ValueError: not of the form axis=number, unknown axis, or a limit given twice.
        """
        parts = [texts] if isinstance(texts, str) else list(texts)
        limits: dict[str, float] = {}
        for part in (piece.strip() for text in parts for piece in text.split(",")):
            name, equals, number = (piece.strip() for piece in part.partition("="))
            if not equals:
                raise ValueError(f"budget: write axis=number, e.g. generated_tokens=2e6, got {part!r}")
            scale = _SUFFIXES.get(number[-1:], 1.0)
            try:
                value = float(number[:-1] if number[-1:] in _SUFFIXES else number) * scale
            except ValueError:
                raise ValueError(f"budget.{check_axis(name)}: {number!r} is not a number") from None
            if check_axis(name) in limits:
                raise ValueError(f"budget.{name} is given twice")
            limits[name] = value
        return cls(**limits)

    def spent(self, meter: Meter) -> float:
        """Share of the budget that is gone, in [0, 1]: that of the axis nearest to its limit; 0 without limits."""
        return max((min(1.0, meter.total(name) / limit) for name, limit in self.limits.items()), default=0.0)

    def exhausted(self, meter: Meter) -> bool:
        return self.binding(meter) is not None

    def binding(self, meter: Meter) -> str | None:
        """The first axis whose limit is reached, None where there is room."""
        return next((name for name, limit in self.limits.items() if meter.total(name) >= limit), None)

    def __bool__(self) -> bool:
        return bool(self.limits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Budget) and self.limits == other.limits

    def __hash__(self) -> int:
        return hash(frozenset(self.limits.items()))

    def __repr__(self) -> str:
        return "Budget(" + ", ".join(f"{name}={limit:g}" for name, limit in self.limits.items()) + ")"


def causal_lm_flops(
    parameters: float,
    tokens: float,
    *,
    layers: int = 0,
    hidden: int = 0,
    context: float = 0.0,
    training: bool = False,
) -> float:
    """Estimated FLOPs of a causal transformer: `(2 N + 4 layers hidden context) tokens`, three times that in training.

    Args:
        parameters: weights that multiply (output head included, embedding look-up not), N.
        tokens: tokens that pass.
        layers, hidden, context: for the attention term; `context` is the mean number of positions attended to.
        training: forward and backward (1 + 2) instead of forward only.

    Source: Kaplan et al., arXiv 2001.08361, section 2.1; Chowdhery et al., arXiv 2204.02311, appendix B.
    """
    if min(parameters, tokens, layers, hidden, context) < 0:
        raise ValueError("causal_lm_flops: arguments must be >= 0")
    forward = (2.0 * parameters + 4.0 * layers * hidden * context) * tokens
    return 3.0 * forward if training else forward
