"""When a row ends and what its text is: end tokens and stop strings that may span tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

_UNFINISHED = "\ufffd"  # what a decoder shows for the first bytes of a character


class Stopper:
    """End tokens and stop strings of one call.

    A stop string ends a row once the whole string is in the decoded text, however many tokens it took.
    Text is decoded from all the row's ids at once, so characters that span tokens come out whole. Only rows
    whose newest token may have completed a stop string are decoded in the loop.

    A stop string that is a special token of the tokenizer is an end token.
    """

    def __init__(self, tokenizer: Any, end_ids: Iterable[int], stop: Sequence[str], device: torch.device) -> None:
        """Raises ValueError for an empty stop string."""
        self.tokenizer = tokenizer
        ends = set(end_ids)
        special = set(getattr(tokenizer, "all_special_tokens", ()) or ())
        self.strings = []
        for text in stop:
            if not text:
                raise ValueError("stop: an empty string would end every answer at once; remove it")
            if text in special:
                ends.add(int(tokenizer.convert_tokens_to_ids(text)))
            else:
                self.strings.append(text)
        self.ends = ends
        self.end_tensor = torch.tensor(sorted(ends), dtype=torch.int64, device=device)
        # a token adds at least one byte of text, special ones apart: the slack is for those
        self.reach = max((len(text.encode()) for text in self.strings), default=0) + 16
        self.may_complete = _may_complete(tokenizer, self.strings).to(device) if self.strings else None

    def ended(self, ids: Tensor) -> Tensor:
        """Rows whose newest token is an end token, `Bool "B"`."""
        if len(self.end_tensor) == 0:
            return torch.zeros_like(ids, dtype=torch.bool)
        if len(self.end_tensor) == 1:
            return ids == self.end_tensor
        return torch.isin(ids, self.end_tensor)

    def suspects(self, ids: Tensor) -> Tensor | None:
        """Rows whose newest token may have completed a stop string, as indices; None without stop strings."""
        if self.may_complete is None:
            return None
        known = ids < len(self.may_complete)  # models pad their vocabulary beyond the tokenizer's
        return torch.nonzero(self.may_complete[ids.clamp(max=len(self.may_complete) - 1)] & known).squeeze(1)

    def decode(self, ids: list[int]) -> str:
        """Text of a completion, special tokens left out."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def complete(self, ids: list[int]) -> bool:
        """Whether the text of these ids holds a stop string; the end alone is decoded first."""
        tail = ids[-self.reach :]
        if len(tail) < len(ids) and self.found(self.decode(tail)) is None:
            return False
        return self.found(self.decode(ids)) is not None

    def found(self, text: str) -> tuple[int, str] | None:
        """Where the first stop string begins, and which; of two at one place, the one listed first."""
        places = [(text.find(s), s) for s in self.strings if s in text]
        return min(places, key=lambda place: place[0]) if places else None

    def text(self, ids: list[int]) -> tuple[str, str | None]:
        """Final text and the stop string it was trimmed at, if any. An end token leaves no text behind."""
        body = ids[:-1] if ids and ids[-1] in self.ends else ids
        text = self.decode(body)
        place = self.found(text) if self.strings else None
        return (text, None) if place is None else (text[: place[0]], place[1])


_PIECES: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()


def _pieces(tokenizer: Any) -> list[str]:
    """Every token decoded alone, with its raw form; made once for a tokenizer."""
    size = len(tokenizer)
    kept = _PIECES.get(tokenizer)
    if kept is None or len(kept) != size:
        raw = tokenizer.convert_ids_to_tokens(list(range(size)))
        decoded = tokenizer.batch_decode([[i] for i in range(size)], skip_special_tokens=True)
        kept = _PIECES[tokenizer] = [f"{a or ''}{b}" for a, b in zip(raw, decoded, strict=True)]
    return kept


def _may_complete(tokenizer: Any, strings: Sequence[str]) -> Tensor:
    """Tokens after which one of the strings may be complete, `Bool "V"`: never too few of them.

    Such a token holds the string's last character, or some of its bytes. A space at the end may come from
    joining tokens, so there every token is taken.
    """
    pieces = _pieces(tokenizer)
    last = {text[-1] for text in strings}
    if " " in last:
        return torch.ones(len(pieces), dtype=torch.bool)
    return torch.tensor([_UNFINISHED in piece or not last.isdisjoint(piece) for piece in pieces])
