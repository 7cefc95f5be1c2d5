"""Keys and tokens stay out of what is written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"

# A setting of such a name holds a secret; `eos_token`, `generated_tokens` or a bare `key` do not fit.
_SECRET_NAME = re.compile(
    r"(?i)(^|[._-])(api[._-]?key|(access|private|secret|signing)[._-]?key|secret|password|passwd|pwd|passphrase|"
    r"credentials?|authorization|(api|access|auth|bearer|hf|hub|session|refresh|id)[._-]?token)$"
)
_SECRET_VARIABLE = re.compile(r"(?i)(key|token|secret|password|passwd|credential|auth)s?(_?(id|file|base64))?$")
_SHAPES = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 " + MASK),
    (
        re.compile(r"\b(sk|pk|rk|hf|ghp|gho|ghs|github_pat|glpat|xox[abp]|AIza|AKIA|ya29)([-_.]?[A-Za-z0-9_-]{12,})"),
        MASK,
    ),
    (re.compile(r"(?<=://)[^/@\s]+(?=@)"), MASK),
    (
        re.compile(r"(?i)(?<=[?&])((?:api[._-]?)?key|(?:access[._-]?)?token|secret|password|sig(?:nature)?)=[^&\s#]+"),
        r"\1=" + MASK,
    ),
)
_ASSIGNMENT = re.compile(r"^(-{0,2}[\w.-]+)([=:]\s*)(.+)$", re.DOTALL)


def _variables() -> list[str]:
    """Values of the environment's own secrets, longest first; short ones are words."""
    values = {value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name) and len(value) >= 8}
    return sorted((value for value in values if not os.path.exists(value)), key=len, reverse=True)


def redact(value: Any, *, known: Sequence[str] | None = None) -> Any:
    """A copy of plain data in which secrets are masked.

    Masked are values under a name such as `api_key`, `judge.api_key=...` arguments and the argument after
    `--api-key`, user data in URLs, strings shaped like the keys of common services, and every value that the
    environment holds under a name such as `..._KEY` or `..._TOKEN`. `env:NAME` and `$NAME` say where a secret
    is found and stay.
    """
    known = _variables() if known is None else known
    if isinstance(value, Mapping):
        return {
            name: MASK if _names_secret(name) and _holds_secret(item) else redact(item, known=known)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = [redact(item, known=known) for item in value]
        for index in range(1, len(items)):
            before = items[index - 1]
            if isinstance(before, str) and before.startswith("--") and _names_secret(before.lstrip("-")):
                items[index] = MASK
        return items
    return _redact_text(value, known) if isinstance(value, str) else value


def _names_secret(name: Any) -> bool:
    return isinstance(name, str) and _SECRET_NAME.search(name) is not None


def _holds_secret(item: Any) -> bool:
    return isinstance(item, str) and item != "" and not item.startswith(("env:", "$"))


def _redact_text(text: str, known: Sequence[str]) -> str:
    assignment = _ASSIGNMENT.match(text)
    if assignment and _names_secret(assignment[1].lstrip("-")) and _holds_secret(assignment[3]):
        return assignment[1] + assignment[2] + MASK
    for secret in known:
        text = text.replace(secret, MASK)
    for shape, replacement in _SHAPES:
        text = shape.sub(replacement, text)
    return text
