"""What a comparison is made of: one record a run, and the manifest that all of them have to share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from gainstage.measure.audits.contamination import Overlap
from gainstage.measure.evaluate import EvalRecord, summarize


@dataclass(frozen=True)
class ParityManifest:
    """What has to be equal for two arms to be comparable. Fields that do not apply keep their default."""

    problems: str
    """Hash of the evaluation problems (`hash_problems`)."""
    model: str = ""
    """Hash or name of the starting weights."""
    template: str = ""
    """Hash of the chat template, or the name of the prompt format."""
    verifier: str = ""
    """Name and version of answer extractor and verifier."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Temperature, top-p and the like of the evaluation."""
    samples: int = 1
    """Answers per evaluation problem."""
    max_new: int = 0
    stop: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    budget: Mapping[str, float] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the evaluation: split, mode, normalisers, judge."""

    def to_dict(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self), default=str))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ParityManifest:
        """Raises ValueError: unknown or missing fields."""
        known = {f.name for f in fields(cls)}
        if unknown := set(data) - known:
            raise ValueError(f"manifest: unknown fields {sorted(unknown)}; known are {sorted(known)}")
        if "problems" not in data:
            raise ValueError("manifest: the field 'problems' is missing")
        tuples = {name: tuple(data[name]) for name in ("stop", "seeds") if name in data}
        return cls(**{**data, **tuples})


def difference(a: ParityManifest, b: ParityManifest) -> list[str]:
    """Names of the fields in which two manifests differ, dotted inside mappings (`sampling.temperature`)."""
    if a == b:
        return []
    left, right = _flat(a.to_dict()), _flat(b.to_dict())
    return [name for name in sorted(left.keys() | right.keys()) if left.get(name) != right.get(name)]


def field_value(manifest: ParityManifest, name: str) -> Any:
    """Value of a field named as `difference` names it; None where it is absent."""
    return _flat(manifest.to_dict()).get(name)


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


@dataclass
class RunRecord:
    """One run of one arm, as the command line hands it over.

    `curve` rows are flat: `budget/{axis}` amounts and metrics under their log names. `evaluation` holds the final
    held-out evaluation per task, `before` that before training; `final` further final numbers. `spent` is the run's
    own spending per axis, `spent_by` the same per component, `evaluation_spent` that of looking on.
    """

    arm: str
    seed: int
    curve: list[dict[str, float]] = field(default_factory=list)
    evaluation: dict[str, list[EvalRecord]] = field(default_factory=dict)
    before: dict[str, list[EvalRecord]] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    spent_by: dict[str, dict[str, float]] = field(default_factory=dict)
    evaluation_spent: dict[str, float] = field(default_factory=dict)
    manifest: ParityManifest | None = None
    contamination: dict[str, Overlap] = field(default_factory=dict)
    """`exact` and `ngram` overlap of training and evaluation problems; empty = not checked."""
    notes: list[str] = field(default_factory=list)

    def numbers(self, ks: Iterable[int] = (1, 4, 16)) -> dict[str, float]:
        """All final numbers; the evaluation's own win over `final`."""
        out = dict(self.final)
        for task, records in self.evaluation.items():
            out |= summarize(records, tuple(ks), task)
        return out

    def numbers_before(self, ks: Iterable[int] = (1, 4, 16)) -> dict[str, float]:
        """Numbers of the kept answers before training."""
        return {k: v for task, records in self.before.items() for k, v in summarize(records, tuple(ks), task).items()}

    def to_dict(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("evaluation", "before"):
            data[name] = {task: [r.to_dict() for r in records] for task, records in data[name].items()}
        data["manifest"] = self.manifest.to_dict() if self.manifest else None
        data["contamination"] = {name: asdict(overlap) for name, overlap in self.contamination.items()}
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunRecord:
        read = dict(data)
        for name in ("evaluation", "before"):
            read[name] = {t: [EvalRecord.from_dict(r) for r in rows] for t, rows in data.get(name, {}).items()}
        read["manifest"] = ParityManifest.from_dict(data["manifest"]) if data.get("manifest") else None
        read["contamination"] = {
            name: Overlap(**{**overlap, "examples": tuple(overlap["examples"])})
            for name, overlap in data.get("contamination", {}).items()
        }
        return cls(**read)

    def to_json(self) -> str:
        """JSON text; numbers that are not finite become null."""
        return json.dumps(plain(self.to_dict()), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> RunRecord:
        return cls.from_dict(json.loads(text))


@dataclass
class Arm:
    """All runs of one method, by seed."""

    name: str
    runs: dict[int, RunRecord]

    @property
    def seeds(self) -> list[int]:
        return sorted(self.runs)


def group(runs: Iterable[RunRecord], baseline: str | None = None) -> list[Arm]:
    """Runs by arm, in order of first appearance, the baseline first.

    Raises:
        ValueError: a seed twice in an arm, or no arm of the baseline's name.
    """
    arms: dict[str, Arm] = {}
    for run in runs:
        arm = arms.setdefault(run.arm, Arm(run.arm, {}))
        if run.seed in arm.runs:
            raise ValueError(f"compare: arm {run.arm!r} has seed {run.seed} twice")
        arm.runs[run.seed] = run
    if baseline is not None and baseline not in arms:
        raise ValueError(f"compare: baseline {baseline!r} is not among the arms {list(arms)}")
    return sorted(arms.values(), key=lambda arm: arm.name != (baseline or next(iter(arms))))


ANY_TASK = "eval/*/"


def read(numbers: Mapping[str, float | None], metric: str) -> float | None:
    """A metric from flat log names; `eval/*/{name}` is the plain mean over all tasks. None where it is absent."""
    if metric.startswith(ANY_TASK):
        values = [value for name, value in numbers.items() if _bare(name) == metric[len(ANY_TASK) :]]
    else:
        values = [numbers[metric]] if metric in numbers else []
    known = [value for value in values if value is not None and np.isfinite(value)]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _bare(name: str) -> str | None:
    return name.split("/", 2)[2] if name.startswith("eval/") and name.count("/") >= 2 else None


def tasks_of(names: Iterable[str], metric: str) -> list[str]:
    """Tasks that a metric is measured on, out of log names."""
    if not metric.startswith(ANY_TASK):
        return [metric.split("/", 2)[1]] if _bare(metric) else []
    return sorted({name.split("/", 2)[1] for name in names if _bare(name) == metric[len(ANY_TASK) :]})


def plain(value: Any) -> Any:
    """JSON's own types; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value
