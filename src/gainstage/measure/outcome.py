"""The outcome of a comparison as data: what a report holds, to and from JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gainstage.measure.curves.learning import Curve
from gainstage.measure.curves.saturation import Saturation
from gainstage.measure.intervals import Estimate, PairedDifference
from gainstage.measure.runs import plain

GAIN, LOSS, NONE = "gain confirmed", "loss confirmed", "no difference shown"
INCOMPARABLE, CONTAMINATED = "not comparable", "contaminated"
VERDICTS = (GAIN, LOSS, NONE, INCOMPARABLE, CONTAMINATED)


@dataclass(frozen=True)
class ArmSummary:
    """One arm: its score over seeds, side effects and spending."""

    name: str
    seeds: list[int]
    value: Estimate | None
    """Mean over seeds with Student's t interval."""
    iqm: Estimate | None = None
    """Interquartile mean with a percentile bootstrap over seeds and problems: beside the verdict, never under it."""
    scores: dict[str, float] = field(default_factory=dict)
    before: dict[str, Estimate] = field(default_factory=dict)
    """Held-out numbers before training: the metric under its full name, side effects under theirs."""
    gain: PairedDifference | None = None
    """The score minus that before training, paired by seed."""
    spread: float | None = None
    """Standard deviation over seeds: training and evaluation noise together."""
    sampling_error: float | None = None
    """Standard error of one run's score that drawing evaluation answers alone causes."""
    side_effects: dict[str, Estimate] = field(default_factory=dict)
    spent: dict[str, dict[str, float]] = field(default_factory=dict)
    """axis -> mean, min and max over runs."""
    spent_by: dict[str, dict[str, float]] = field(default_factory=dict)
    evaluation_spent: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """One arm against the baseline."""

    arm: str
    baseline: str
    verdict: str
    reason: str = ""
    difference: PairedDifference | None = None
    p_holm: float | None = None
    bootstrap: Estimate | None = None
    probability: float | None = None
    """P(a run of the arm scores better than a run of the baseline), ties one half."""
    detectable: float | None = None
    """Smallest true difference that so many pairs with such a spread find four times in five, alone among the arms."""
    differing: dict[str, list[Any]] = field(default_factory=dict)
    """Manifest field -> values in the baseline and in the arm."""
    side_effects: dict[str, PairedDifference] = field(default_factory=dict)
    settled: bool = False
    """More seeds would change nothing: a verdict stands, or any difference is smaller than what matters."""
    decided_after: int | None = None
    """Seeds after which a sequential comparison found its gain or loss."""


@dataclass(frozen=True)
class EqualSpend:
    """All arms read off their curves where each has spent `spend` on an axis."""

    spend: float
    values: dict[str, Estimate]
    differences: dict[str, PairedDifference]


@dataclass(frozen=True)
class Report:
    """The outcome of a comparison."""

    title: str
    metric: str
    better: str
    tasks: list[str]
    axis: str
    level: float
    verdict: str
    sentence: str
    context: str
    basis: str
    arms: list[ArmSummary]
    comparisons: list[Comparison]
    equal_spend: dict[str, EqualSpend] = field(default_factory=dict)
    curves: dict[str, dict[str, dict[str, Curve]]] = field(default_factory=dict)
    """metric -> axis -> arm -> curve."""
    saturation: Saturation = field(default_factory=Saturation)
    manifest: dict[str, Any] = field(default_factory=dict)
    contamination: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    created: str = ""
    sequential: bool = False
    """Intervals and p values hold however often was looked."""
    looks: list[int] = field(default_factory=list)
    """Numbers of seeds at which this comparison was reported before."""

    @property
    def baseline(self) -> str:
        return self.arms[0].name

    @property
    def episodes(self) -> bool:
        """Whether decisions are an environment's steps and no tokens."""
        axes = {axis for arm in self.arms for axis in (*arm.spent, *arm.evaluation_spent)}
        return bool(axes & {"env_steps", "transitions"}) and "generated_tokens" not in axes

    def to_json(self, indent: int | None = None) -> str:
        """JSON text; numbers that are not finite become null."""
        return json.dumps(plain(asdict(self)), allow_nan=False, indent=indent, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Report:
        data = json.loads(text)
        return cls(
            **data
            | {
                "arms": [_arm(arm) for arm in data["arms"]],
                "comparisons": [_comparison(c) for c in data["comparisons"]],
                "equal_spend": {axis: _equal_spend(row) for axis, row in data["equal_spend"].items()},
                "saturation": _saturation(data.get("saturation", {})),
                "curves": {
                    metric: {axis: {arm: Curve(**c) for arm, c in arms.items()} for axis, arms in axes.items()}
                    for metric, axes in data["curves"].items()
                },
            }
        )

    def markdown(self) -> str:
        """The report as Markdown."""
        from gainstage.measure.printing import markdown

        return markdown(self)


def _estimate(data: Mapping[str, Any] | None) -> Estimate | None:
    return Estimate(**data) if data else None


def _pair(data: Mapping[str, Any] | None) -> PairedDifference | None:
    if not data:
        return None
    pairs = {name: tuple(data.get(name, ())) for name in ("differences", "p_after")}
    return PairedDifference(**{**data, **pairs})


def _arm(data: Mapping[str, Any]) -> ArmSummary:
    named = {key: {n: Estimate(**e) for n, e in data.get(key, {}).items()} for key in ("side_effects", "before")}
    single = {"value": _estimate(data["value"]), "iqm": _estimate(data["iqm"]), "gain": _pair(data.get("gain"))}
    return ArmSummary(**{**data, **single, **named})


def _saturation(data: Mapping[str, Any]) -> Saturation:
    by_arm = ("arms", "profile", "tokens", "over_baseline", "over_start")
    curves = {key: {arm: Curve(**c) for arm, c in data.get(key, {}).items()} for key in by_arm}
    start = {key: Curve(**data[key]) if data.get(key) else None for key in ("start", "start_tokens")}
    return Saturation(**{**data, **curves, **start})


def _comparison(data: Mapping[str, Any]) -> Comparison:
    effects = {name: _pair(d) for name, d in data["side_effects"].items()}
    parts = {"difference": _pair(data["difference"]), "bootstrap": _estimate(data["bootstrap"])}
    return Comparison(**{**data, **parts, "side_effects": effects})


def _equal_spend(data: Mapping[str, Any]) -> EqualSpend:
    return EqualSpend(
        data["spend"],
        {arm: Estimate(**e) for arm, e in data["values"].items()},
        {arm: pair for arm, d in data["differences"].items() if (pair := _pair(d))},
    )
