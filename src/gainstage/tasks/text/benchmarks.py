"""Well-known data sets by name: GSM8K, MATH-500, HumanEval."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gainstage.ops.answers import extract_hash
from gainstage.ops.programs import complete_function, last_block
from gainstage.ops.sandbox import Limits, run_tests
from gainstage.ops.workers import Failure
from gainstage.registry import component
from gainstage.tasks.text.datasets import DatasetTask
from gainstage.tasks.text.readers import data_dir
from gainstage.types import Message, Problem, Verdict

BOXED = "{prompt}\n\nReason step by step, and put the final answer within \\boxed{}."


FENCED = "Write the whole Python function, in one ```python block.\n\n```python\n{prompt}```"


def local_or_hub(files: Sequence[str], hub: str) -> str:
    """The first of the local data folder's files that is there, otherwise the hub id (cache first)."""
    for name in files:
        path = str(data_dir() / name)
        if any((data_dir() / name.replace("{split}", split)).is_file() for split in ("train", "test", "")):
            return path
    return hub


@component("task", "gsm8k")
@dataclass(kw_only=True)
class Gsm8k(DatasetTask):
    """Grade-school word problems (GSM8K, arXiv:2110.14168): 7,473 to train on, 1,319 to test on, integer answers.

    The gold answer is what follows `####`; the worked solution is the demonstration, calculator notes left out.
    Validation problems are held out of the training split by hash.
    """

    path: str = ""
    verifier: Literal["math", "number", "exact", "contains", "none"] = "number"
    template: str | None = BOXED
    max_new: int = 400
    overlap: Literal["error", "drop", "report"] = "drop"
    chat: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.path = self.path or local_or_hub(["gsm8k_{split}.jsonl", "gsm8k/{split}.jsonl"], "openai/gsm8k")

    @property
    def name(self) -> str:
        return "gsm8k"

    def prepare(self, problem: Problem) -> Problem:
        """The number as gold answer, the worked solution as completion, the question as a user message."""
        solution = str(problem.answer)
        worked = re.sub(r"<<[^<>]*>>", "", solution)
        meta = dict(problem.meta) | {"completion": worked}
        wrapped = super().prepare(problem)
        return Problem(problem.id, as_chat(wrapped.prompt, self.chat), extract_hash(solution), None, meta)


@component("task", "math500")
@dataclass(kw_only=True)
class Math500(DatasetTask):
    """500 competition problems (MATH-500 of arXiv:2305.20050, from MATH, arXiv:2103.03874); for evaluation only."""

    path: str = ""
    template: str | None = BOXED
    max_new: int = 1024
    chat: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.path = self.path or local_or_hub(["math500.json", "math500.jsonl"], "HuggingFaceH4/MATH-500")
        self.columns = self.columns or {"answer": "answer"}
        self.splits = self.splits or only_test(self.path)

    @property
    def name(self) -> str:
        return "math500"

    def prepare(self, problem: Problem) -> Problem:
        wrapped = super().prepare(problem)
        return Problem(problem.id, as_chat(wrapped.prompt, self.chat), problem.answer, problem.difficulty, problem.meta)


@component("task", "humaneval")
@dataclass(kw_only=True)
class HumanEval(DatasetTask):
    """164 Python functions with unit tests (HumanEval, arXiv:2107.03374); for evaluation only.

    Answers run in a sandbox and are right when every test ran to its end and held. With `chat` the model is asked for a
    whole function in a fenced block; without, it continues the function's head.

    Args:
        seconds: time limit of all tests of one answer.
    """

    path: str = ""
    template: str | None = None
    max_new: int = 512
    chat: bool = True
    seconds: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.path = self.path or local_or_hub(["HumanEval.jsonl.gz", "HumanEval.jsonl"], "openai/openai_humaneval")
        self.columns = self.columns or {"prompt": "prompt", "answer": "canonical_solution"}
        self.splits = self.splits or only_test(self.path)
        self.template = self.template or (FENCED if self.chat else None)

    @property
    def name(self) -> str:
        return "humaneval"

    def prepare(self, problem: Problem) -> Problem:
        """The head of the function, which the check needs again, is kept in `meta["head"]`."""
        head = str(problem.prompt)
        answer = f"```python\n{head}{problem.answer}```" if self.chat else str(problem.answer)
        wrapped = super().prepare(problem)
        meta = dict(problem.meta) | {"head": head, "completion": answer}
        return Problem(problem.id, as_chat(wrapped.prompt, self.chat), problem.answer, None, meta)

    def check(self, problem: Problem, output: str) -> Verdict:
        """1 when all tests held; no reward where the sandbox itself failed.

        Raises:
            SandboxUnavailable: this machine cannot isolate model-written code.
        """
        meta = problem.meta
        source = complete_function(meta["head"], meta["entry_point"], output)
        test = f"{meta['test']}\ncheck({meta['entry_point']})\n"
        report = run_tests(source, [test], Limits(seconds=self.seconds))
        if isinstance(report, Failure):
            return Verdict(None, {}, f"no verdict: {report.message}")
        return Verdict(float(report.passed == 1), {}, report.failure and f"{report.failure}: {report.log[-300:]}")

    def extract(self, output: str) -> str | None:
        return last_block(output) or output.strip() or None


def only_test(path: str) -> dict[str, str]:
    """A single file of an evaluation set is its test split."""
    return {"test": "train"} if path.endswith((".json", ".jsonl", ".jsonl.gz")) else {}


def as_chat(prompt: str | Sequence[Message], chat: bool) -> str | Sequence[Message]:
    """One user message, which an instruct model's template renders and a base model reads as plain text."""
    return [{"role": "user", "content": prompt}] if chat and isinstance(prompt, str) else prompt
