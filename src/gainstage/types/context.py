"""What a component sees of the rest of the house."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from gainstage.types.columns import Batch
from gainstage.types.records import Completion, Ids, Message, Problem, Prompt, Task, Trajectory, Verdict


@dataclass
class PolicyOut:
    """What a policy says about a batch: `Float "B T"` each, zeros where the mask is false."""

    logprobs: Tensor
    entropy: Tensor | None = None
    values: Tensor | None = None
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass
class Act:
    """One control step: action as drawn, its log-prob, the next recurrent state."""

    action: Tensor
    logprob: Tensor | None = None
    state: Any = None


class Policy(Protocol):
    """A handle to a role: metered and chunked. Acting never learns."""

    role: str
    markov: bool
    version: int

    def evaluate(self, batch: Batch, want: Sequence[str] = ()) -> PolicyOut: ...

    def logprobs(self, prefix: list[Ids], cont: list[Ids], *, grad: bool = False) -> list[Tensor]: ...

    def generate(
        self, requests: Sequence[Prompt], *, max_new: int, stop: Sequence[str] = (), want: Sequence[str] = ()
    ) -> list[list[Completion]]: ...

    def encode(self, prompt: str | Sequence[Message]) -> Ids: ...

    def decode(self, ids: Ids) -> str: ...


class Models(Protocol):
    """The roles of a recipe by name."""

    def __getitem__(self, role: str) -> Any: ...

    def __contains__(self, role: str) -> bool: ...

    def updated(self, role: str) -> None: ...

    def event(self, name: str) -> None: ...

    def scratch(self, role: str) -> AbstractContextManager[Policy]: ...


@dataclass(frozen=True)
class Index:
    """Transitions of a store: `row` (copy or episode) and `step` of each, `Int64 "N"`, and how much each counts.

    `weight` `Float "N"` corrects for a draw that was not uniform; None = all alike.
    """

    row: Tensor
    step: Tensor
    weight: Tensor | None = None


class StoreView(Protocol):
    """What may be asked of a store without changing it."""

    def __len__(self) -> int: ...

    def column(self, name: str) -> Tensor: ...


def _ignore(name: str, value: float) -> None:
    return None


@dataclass
class Ctx:
    """Handed to every hook. `progress` is the share of the run that is done, in [0, 1].

    `key(group, sample)` is the 64-bit noise key of a sample in this iteration; `new_group()` the next
    free group id; `judge(problem, text)` asks the task, metered; `lr_scale` holds the factor of a role's
    learning rate where the run has slowed it down. `folder` is the run's, None where nothing is written.
    """

    models: Models
    task: Task
    store: Any
    meter: Any
    iteration: int = 0
    seed: int = 0
    progress: float = 0.0
    fresh: Sequence[Trajectory] | Batch = ()
    artifacts: dict[str, Any] = field(default_factory=dict)
    lr_scale: dict[str, float] = field(default_factory=dict)
    log: Callable[[str, float], None] = _ignore
    key: Callable[[int, int], int] = lambda group, sample: 0
    new_group: Callable[[], int] = lambda: 0
    judge: Callable[[Problem, str], Verdict] | None = None
    choose: Callable[[int], Index] | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    folder: Path | None = None
