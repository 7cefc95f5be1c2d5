"""The small records that flow along the chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

Ids = list[int]
Message = Mapping[str, Any]


class Author(IntEnum):
    """Who wrote a token. Padding carries -1, which is nobody."""

    PROMPT = 0
    POLICY = 1
    ENV = 2
    EXPERT = 3
    HINT = 4


class Stop(StrEnum):
    """Why a trajectory ended."""

    EOS = "eos"  # the writer ended it: end token or a complete stop string
    LENGTH = "length"  # the limit of new tokens was reached
    TURNS = "turns"  # the limit of turns was reached
    CONTEXT = "context"  # the next turn would not fit into the context
    TERMINATED = "terminated"  # the environment reached a real end
    TIME_LIMIT = "time_limit"  # the environment was cut off; a value may follow
    OPEN = "open"  # not ended yet (stored in the middle of an episode)
    FAILED = "failed"  # infrastructure failed: never trained on

    @property
    def code(self) -> int:
        return _STOP_CODES[self]

    @classmethod
    def from_code(cls, code: int) -> Stop:
        return list(cls)[code]


_STOP_CODES = {stop: index for index, stop in enumerate(Stop)}


@dataclass(frozen=True)
class Problem:
    """One thing to be solved.

    `prompt` is plain text or a list of role/content messages; `answer` is the gold answer where
    one exists; `meta` keeps every further column of the data set. `id` is stable across shuffles,
    restarts and machines (a hash of the content, not a row number).
    """

    id: str
    prompt: str | Sequence[Message]
    answer: Any = None
    difficulty: float | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What a task says about an output: `reward` None means that it does not apply."""

    reward: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    feedback: str | None = None


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 are off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be >= 0 and finite, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p must lie in [0, 1), got {self.min_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0 (0 = off), got {self.top_k}")

    @property
    def changes_support(self) -> bool:
        """True where tokens are cut off, so that log-probs of the full softmax do not describe the draw."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


@dataclass(frozen=True)
class Request:
    """What select asks of rollout: `samples` answers to `problem`, all members of `group`.

    `first` is the index of the first sample inside the group, so that a group can be asked for in
    parts. `sampling` overrides the engine's own settings.
    """

    problem: Problem | None
    samples: int
    group: int
    first: int = 0
    actor: str = "policy"
    hint: Ids | None = None
    sampling: Sampling | None = None


@dataclass(frozen=True)
class Prompt:
    """What an engine is asked: one context, continued `len(keys)` times.

    Each key is the 64-bit noise key of one sample: the same key gives the same draw whatever else
    is in the batch. The prompt's prefill is shared by its samples.
    """

    ids: Ids
    keys: tuple[int, ...]
    sampling: Sampling = Sampling()


@dataclass
class Completion:
    """One continuation: every sampled token (end token included) with its log-prob.

    `logprobs` are those of the distribution the token was really drawn from (temperature and
    support cuts included). `text` is the decoded continuation, trimmed at the stop string; `ids`
    are never trimmed.
    """

    ids: Ids
    logprobs: list[float]
    stop: Stop
    text: str = ""
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trajectory:
    """One context that a model saw = one row of a batch.

    An episode whose context is rewritten is several trajectories with one `episode`. `columns`
    holds step (`[T, *]`) and turn (`[U, *]`) tensors, `parts` the named reward parts (None where
    one does not apply), `info` what is only looked at (texts, extracted answers).
    """

    problem: Problem | None
    group: int
    sample: int
    episode: int
    actor: str
    version: int
    stop: Stop
    columns: dict[str, Tensor]
    parts: dict[str, float | None] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvStep:
    """What a text environment answers to an action. `reward` None: this turn carries no reward of its own."""

    observation: str
    reward: float | None = None
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class TextEnv(Protocol):
    """A single-use text environment: one object per episode, no reset, so no stale state."""

    def start(self) -> str | Sequence[Message]: ...

    def step(self, text: str) -> EnvStep: ...


class Task(Protocol):
    """What is to be solved. Tasks know nothing of policies.

    `capabilities` names what it offers out of: `answer`, `check`, `env`, `goal`, `demonstrations`,
    `preferences`. `problems(split)` gives an indexable sequence for `train`, `validation` or
    `test`; splits never share a problem.
    """

    name: str
    capabilities: frozenset[str]
    max_new: int
    """Room an answer needs, in tokens of the embedded tokenizer; a recipe may override it."""

    def problems(self, split: str) -> Sequence[Problem]: ...

    def check(self, problem: Problem, output: str) -> Verdict: ...
