"""Data sets as tasks: JSONL, JSON, Parquet, folders and hub ids; splits that share no problem."""

from __future__ import annotations

import hashlib
import logging
import random
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, TypeVar, overload

from gainstage.registry import component
from gainstage.tasks.text.columns import Layout, detect, to_problem
from gainstage.tasks.text.grading import GRADERS, Grader
from gainstage.tasks.text.readers import DataError, find_files, read_rows
from gainstage.types import Message, Problem, Verdict

LOG = logging.getLogger("gainstage.tasks")
SPLITS = ("train", "validation", "test")
LEAST = 10
"""Problems that a split made by hash has at least, where a tenth of the data allows it."""
T = TypeVar("T")


@dataclass(frozen=True)
class Dataset(Sequence[T], Generic[T]):
    """Items of one split, and what is known about where they come from."""

    items: tuple[T, ...]
    source: str = ""
    layout: Layout | None = None

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self.items[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def describe(self) -> str:
        """One line: how many rows of which type, and which columns were used."""
        return f"{self.source}: {len(self)} rows" + (f", {self.layout.describe()}" if self.layout else "")


def load_problems(
    source: str, split: str = "train", columns: Mapping[str, str] | None = None, *, config: str | None = None
) -> Dataset[Problem]:
    """The problems of one split of a file, folder or hub data set.

    Args:
        source: a file, a folder, a path with `{split}`, or a hub id (local folders and caches first).
        split: `train`, `validation`, `test`, or a split's own name.
        columns: role -> column name, where the data set's names are its own.
        config: subset of a data set that has several.

    Raises:
        DataError: nothing there, no such split, or a malformed row; the message names file, line and column.
    """
    files = find_files(source, config)
    if split not in files:
        raise DataError(f"{source} has no split {split!r}; it has {', '.join(sorted(files))}")
    rows = read_rows(files[split])
    layout = detect(rows[0], columns)
    problems = tuple(to_problem(raw, layout, columns) for raw in rows)
    loaded = Dataset(problems, f"{source} [{split}]", layout)
    LOG.info(loaded.describe())
    return loaded


def normalised(prompt: str | Sequence[Message]) -> str:
    """A prompt's wording without what does not make it another problem: case, blanks, Unicode forms."""
    text = prompt if isinstance(prompt, str) else "\n".join(str(message.get("content")) for message in prompt)
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip().casefold()


def overlap(left: Sequence[Problem], right: Sequence[Problem]) -> list[tuple[Problem, Problem]]:
    """Pairs of problems, one of each side, whose prompts are equal after normalisation."""
    seen = {_key(problem): problem for problem in left}
    return [(seen[key], problem) for problem in right if (key := _key(problem)) in seen]


def _key(problem: Problem) -> str:
    """What makes a problem the same one: its wording, or what is learnt where it has no prompt of its own."""
    text = normalised(problem.prompt)
    return text or normalised(str([problem.meta.get(name) for name in ("completion", "chosen", "rejected")]))


def split_by_hash(
    problems: Sequence[Problem], share: float = 0.01, *, salt: str = "held out"
) -> tuple[list[Problem], list[Problem]]:
    """Kept and held-out problems, decided by a hash of the wording, so that no wording is on both sides.

    Args:
        problems: what to divide; the order on either side stays.
        share: part held out; at least `LEAST` problems where a tenth of all is that many.
        salt: another one divides differently.

    Raises:
        ValueError: `share` outside (0, 1).
    """
    if not 0 < share < 1:
        raise ValueError(f"the held-out share must lie in (0, 1), got {share}")
    wanted = max(round(share * len(problems)), min(LEAST, len(problems) // 10), 1)
    groups: dict[str, int] = {}
    for problem in problems:
        groups[_key(problem)] = groups.get(_key(problem), 0) + 1
    chosen: set[str] = set()
    for key in sorted(groups, key=lambda k: hashlib.sha256(f"{salt}\0{k}".encode("utf-8", "surrogatepass")).digest()):
        if wanted <= 0 or len(chosen) + 1 >= len(groups):
            break
        chosen.add(key)
        wanted -= groups[key]
    return [p for p in problems if _key(p) not in chosen], [p for p in problems if _key(p) in chosen]


@dataclass(kw_only=True)
class DatasetTask:
    """Problems of a data set, checked by a verifier where there is a gold answer.

    Args:
        path: file, folder, path with `{split}`, or hub id.
        test, validation: sources of their own for these splits; part of the training split is held out where the
            data set has neither.
        splits: our split name -> the data set's, e.g. `{train: train_sft}`.
        columns: role -> column name, e.g. `{prompt: question, answer: final}`.
        config: subset of a hub data set that has several.
        verifier: how an answer is checked: `math`, `number`, `exact`, `contains`, or `none`.
        template: prompt wording around `{prompt}` (the last user message of a conversation).
        system: system message put in front; makes plain prompts conversational.
        held_out: share of the training rows that is held out where a split is missing.
        overlap: what held-out problems that are trained on cause: `error`, `drop` (out of training), `report`.
        max_new: room for an answer, in tokens.
    """

    path: str
    test: str | None = None
    validation: str | None = None
    splits: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    config: str | None = None
    verifier: Literal["math", "number", "exact", "contains", "none"] = "math"
    template: str | None = None
    system: str | None = None
    held_out: float = 0.01
    overlap: Literal["error", "drop", "report"] = "error"
    max_new: int = 512
    concurrent_checks: ClassVar[int] = 4

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out must lie in (0, 1), got {self.held_out}")
        if self.max_new < 1:
            raise ValueError(f"max_new must be >= 1, got {self.max_new}")
        if self.template is not None and "{prompt}" not in self.template:
            raise ValueError("template must contain {prompt}")
        if unknown := set(self.splits) - set(SPLITS):
            raise ValueError(f"splits: unknown split {sorted(unknown)}; splits are {', '.join(SPLITS)}")

    @property
    def name(self) -> str:
        return re.split(r"[/\\]", self.path.rstrip("/"))[-1].split(".")[0].replace("_{split}", "")

    @cached_property
    def capabilities(self) -> frozenset[str]:
        """Read off the data: `answer` and `check` with gold answers, `demonstrations`, `preferences`."""
        first = next(iter(self._loaded.values()))[0]
        found = set()
        if first.answer is not None:
            found |= {"answer"} | ({"check"} if self.verifier != "none" else set())
        if "completion" in first.meta:
            found.add("demonstrations")
        if "chosen" in first.meta:
            found.add("preferences")
        return frozenset(found)

    def problems(self, split: str) -> Sequence[Problem]:
        """The problems of a split; a data set with one held-out split serves it as validation and as test.

        Raises:
            ValueError: an unknown or missing split, malformed data, or held-out problems that are trained on.
        """
        if split not in SPLITS:
            raise ValueError(f"task {self.name}: unknown split {split!r}; splits are {', '.join(SPLITS)}")
        if split in self._loaded:
            return self._loaded[split]
        other = {"validation": "test", "test": "validation"}.get(split)
        if other in self._loaded:
            return self._loaded[other]
        raise ValueError(f"task {self.name}: there is no {split} split, only {', '.join(self._loaded)}")

    def check(self, problem: Problem, output: str) -> Verdict:
        """1 for the gold answer, 0 for another or none; no reward where the check itself failed."""
        if problem.answer is None:
            return Verdict(None, feedback="the problem has no gold answer")
        return self._grader.check(self.gold(problem), output)

    def extract(self, output: str) -> str | None:
        """The answer that an output gives, or None."""
        return self._grader.extract(output)

    def gold(self, problem: Problem) -> str:
        """The gold answer as text."""
        return str(problem.answer)

    def demonstrate(self, problem: Problem, rng: random.Random, noise: float = 0.0) -> str:
        """The data set's own completion of a problem."""
        return _text(problem.meta["completion"])

    def preferences(self, problem: Problem, rng: random.Random) -> tuple[str, str]:
        """The data set's chosen and rejected completion."""
        return _text(problem.meta["chosen"]), _text(problem.meta["rejected"])

    def prepare(self, problem: Problem) -> Problem:
        """A problem as it is put to the model."""
        prompt = problem.prompt
        if self.template is None and self.system is None:
            return problem
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if self.template is not None and messages and messages[-1]["role"] == "user":
            messages[-1]["content"] = self.template.replace("{prompt}", str(messages[-1]["content"]))
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        plain = isinstance(prompt, str) and self.system is None
        new = messages[0]["content"] if plain else messages
        return Problem(problem.id, new, problem.answer, problem.difficulty, problem.meta)

    @cached_property
    def _grader(self) -> Grader:
        return GRADERS["exact" if self.verifier == "none" else self.verifier]

    @cached_property
    def _loaded(self) -> dict[str, Dataset[Problem]]:
        found = self._given()
        if "train" in found:
            self._compare(found)
            if "validation" not in found:
                self._hold_out(found)
        return {
            split: Dataset(tuple(map(self.prepare, data)), data.source, data.layout) for split, data in found.items()
        }

    def _given(self) -> dict[str, Dataset[Problem]]:
        """The splits that the sources have."""
        files = find_files(self.path, self.config)
        known = ", ".join(sorted(files))
        found = {}
        for split in SPLITS:
            own = {"test": self.test, "validation": self.validation}.get(split)
            theirs = self.splits.get(split, split)
            if own is not None:
                names = find_files(own, self.config)
                theirs = theirs if theirs in names else next(iter(names))
                found[split] = load_problems(own, theirs, self.columns, config=self.config)
            elif theirs in files and (split in self.splits or theirs not in self.splits.values()):
                found[split] = load_problems(self.path, theirs, self.columns, config=self.config)
            elif split in self.splits:
                raise DataError(f"splits.{split}: {self.path} has no split {theirs!r}; it has {known}")
        if not found:
            raise DataError(f"{self.path}: its splits are {known}; say which to use by splits={{train: ...}}")
        return found

    def _compare(self, found: dict[str, Dataset[Problem]]) -> None:
        """No held-out problem may be trained on."""
        for split in [name for name in found if name != "train"]:
            pairs = overlap(found["train"], found[split])
            if not pairs:
                continue
            text = f"task {self.name}: {len(pairs)} of {len(found[split])} {split} problems are training problems too"
            if self.overlap == "error":
                raise DataError(
                    f"{text}, the first is {normalised(pairs[0][0].prompt)[:80]!r}; set overlap=drop to leave "
                    "them out of training, or overlap=report to keep them"
                )
            LOG.warning("%s (%s)", text, self.overlap)
            if self.overlap == "drop":
                shared = {_key(problem) for _, problem in pairs}
                kept = tuple(problem for problem in found["train"] if _key(problem) not in shared)
                if not kept:
                    raise DataError(f"{text}; overlap=drop leaves nothing to train on")
                found["train"] = Dataset(kept, found["train"].source, found["train"].layout)

    def _hold_out(self, found: dict[str, Dataset[Problem]]) -> None:
        train = found["train"]
        kept, held = split_by_hash(train, self.held_out)
        if held:
            sizes = len(kept), len(held)
            LOG.info("task %s: %d training and %d validation problems, divided by hash", self.name, *sizes)
            found["train"] = Dataset(tuple(kept), train.source, train.layout)
            found["validation"] = Dataset(tuple(held), f"{train.source}, held out", train.layout)
        else:
            LOG.warning("task %s: %d rows are too few to hold any out: there is no evaluation", self.name, len(train))


def _text(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)


component("task", "dataset")(DatasetTask)


@component("task", "jsonl")
@dataclass(kw_only=True)
class JsonlTask(DatasetTask):
    """A JSONL (or gzipped JSONL) file; settings as for `dataset`."""


@component("task", "parquet")
@dataclass(kw_only=True)
class ParquetTask(DatasetTask):
    """A Parquet file or a folder of them; settings as for `dataset`."""
