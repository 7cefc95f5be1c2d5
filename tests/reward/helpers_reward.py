"""Judged text rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from gainstage.types import Author, Problem, Stop, Trajectory


def answered(text: str, gold: Any = None, prompt_tokens: int = 2, tokens: int = 3, trained: bool = True) -> Trajectory:
    """An answer of `tokens` tokens to a problem with that gold answer."""
    author = torch.tensor([Author.PROMPT] * prompt_tokens + [Author.POLICY] * tokens)
    columns = {"author": author, "mask": (author == Author.POLICY) & trained}
    return Trajectory(
        Problem("p", "?", gold), 0, 0, 0, "policy", 0, Stop.EOS, columns, {}, {"completion": text}
    )  # fmt: skip


def context(**roles: Any) -> Any:
    logged: dict[str, float] = {}
    return SimpleNamespace(models=roles, log=lambda name, value: logged.__setitem__(name, value), logged=logged)
