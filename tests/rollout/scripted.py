"""A policy without a model: a character tokenizer and a script of answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gainstage.measure.budget import Meter
from gainstage.types import Completion, Ctx, Prompt, Stop

END = 1
OFFSET = 2


def characters(text: str) -> list[int]:
    return [ord(c) + OFFSET for c in text]


@dataclass
class ScriptedPolicy:
    """Answers by `script(context_text, key)`; a script's text ends with the end token unless `open_ended`.

    Log-probs depend on key, position and token alone, so that a changed key or a lost token shows.
    """

    script: Callable[[str, int], str]
    role: str = "policy"
    version: int = 3
    context_limit: int | None = None
    open_ended: bool = False
    calls: list[tuple[list[Prompt], int, tuple[str, ...]]] = field(default_factory=list)

    def encode(self, prompt):
        if isinstance(prompt, str):
            return characters(prompt)
        return characters("".join(f"[{m['role']}]{m['content']}" for m in prompt))

    def encode_observation(self, text, *, chat=False, after=None):
        return characters(f"[user]{text}" if chat else text)

    def decode(self, ids):
        return "".join(chr(i - OFFSET) for i in ids if i >= OFFSET)

    def generate(self, requests: Sequence[Prompt], *, max_new: int, stop=(), want=()):
        self.calls.append((list(requests), max_new, tuple(stop)))
        return [[self._one(prompt.ids, key, max_new, stop) for key in prompt.keys] for prompt in requests]

    def _one(self, context, key, max_new, stop):
        ids = characters(self.script(self.decode(context), key))
        if not self.open_ended:
            ids.append(END)
        taken, why, text = [], Stop.LENGTH, ""
        for token in ids[:max_new]:
            taken.append(token)
            text = self.decode(taken)
            marker = next((s for s in stop if s in text), None)
            if marker is not None:
                text, why = text[: text.index(marker)], Stop.EOS
                break
            if token == END:
                why = Stop.EOS
        return Completion(taken, [logprob(key, i, t) for i, t in enumerate(taken)], why, text)


def logprob(key: int, position: int, token: int) -> float:
    digest = hashlib.sha256(f"{key}/{position}/{token}".encode()).digest()
    return -(1 + digest[0]) / 256


class ScriptedTask:
    """Only what a rollout asks of a task."""

    name = "scripted"
    capabilities = frozenset({"env"})
    max_new = 8

    def __init__(self, open_env=None):
        self.open_env = open_env

    def open(self, problem):
        return self.open_env(problem)


def context(policy, task=None, logged=None) -> Ctx:
    logged = {} if logged is None else logged
    return Ctx(
        models=policy if isinstance(policy, dict) else {policy.role: policy},
        task=task or ScriptedTask(),
        store=None,
        meter=Meter(),
        log=lambda name, value: logged.__setitem__(name, logged.get(name, 0) + value),
        key=lambda group, sample: group * 1000 + sample,
    )
