"""The embedded engine: batched generation in this process, with the trainer's own weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from gainstage.registry import component
from gainstage.rollout.engines._blocks import Network, read_network
from gainstage.rollout.engines._decoder import FastDecoder
from gainstage.rollout.engines._fallback import open_decoder
from gainstage.rollout.engines._sampling import Sampler
from gainstage.rollout.engines._stopping import Stopper
from gainstage.types import Completion, Prompt, Stop

WANTS = ("entropy",)
_DENSITY = 0.94  # share of live rows below which ended rows leave the batch
_PADDING = 3  # most places of a padded layout for each real one
_CACHE_BYTES = 2 << 30  # size of the key/value cache where no limit of tokens is set


class Decoder(Protocol):
    """What holds the cache of the live rows."""

    def start(self) -> Tensor: ...

    def step(self, ids: Tensor) -> Tensor: ...

    def keep(self, rows: Tensor) -> None: ...


@component("engine", name="torch")
@dataclass
class TorchEngine:
    """Generation in this process: no second copy of the model to keep in step with the trainer.

    The weights are read at every call. A prompt is run once for all its samples, rows that end leave the
    batch, and a sample depends on its prompt and key alone, not on what else is in the batch.

    Llama, Mistral, Qwen2, Qwen3 and GPT-2 take a path of their own; other architectures run through the
    model's forward, with the same sampling.

    Attributes:
        max_batch_tokens: prompt and new tokens held at once (a prompt counts once for all its samples, a row
            counts its whole `max_new`); lower it if memory runs out, at the price of smaller batches. None:
            what fits into 2 GiB of keys and values.
    """

    max_batch_tokens: int | None = None
    model: Any = field(default=None, init=False, repr=False)
    tokenizer: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.max_batch_tokens is not None and self.max_batch_tokens < 1:
            raise ValueError(f"max_batch_tokens must be at least 1, got {self.max_batch_tokens}")

    def bind(self, model: Any, tokenizer: Any) -> Self:
        """Draw from this model (a transformers causal LM, PEFT-wrapped or not)."""
        self.model, self.tokenizer = getattr(model, "_orig_mod", model), tokenizer  # torch.compile wraps
        return self

    @property
    def context(self) -> int | None:
        """Longest sequence the model was made for, in tokens."""
        return getattr(_text_config(self.model), "max_position_embeddings", None)

    def generate(
        self, requests: Sequence[Prompt], *, max_new: int, stop: Sequence[str] = (), want: Sequence[str] = ()
    ) -> list[list[Completion]]:
        """Continue each prompt once for each of its keys.

        A row ends with EOS (end token, or the whole of a stop string in its text), LENGTH (`max_new`
        tokens) or CONTEXT (the model's context is full; at once, and empty, where the prompt fills it).

        Args:
            requests: prompts with their noise keys and settings.
            max_new: most tokens of a completion.
            stop: strings that end a completion; `text` is trimmed before them, `ids` keep every token.
            want: `entropy` adds that of each token's distribution to `extras`, in nats.

        Returns:
            For each prompt its completions, in the order of its keys.

        Raises:
            ValueError: no model bound, an empty prompt, an id outside the vocabulary, a wrong setting.
            FloatingPointError: the model's logits are not finite.
        """
        limits = self._check(requests, max_new, want)
        results = [[Completion([], [], Stop.CONTEXT) for _ in request.keys] for request in requests]
        if not any(request.keys for request in requests):
            return results
        with _at_rest(self.model):
            network = read_network(self.model, max_new)
            if network is not None and network.window is not None:
                longest = max(len(request.ids) + limit for request, limit in zip(requests, limits, strict=True))
                network = network if longest <= network.window else None
            stopper = Stopper(self.tokenizer, self._end_ids(), stop, next(self.model.parameters()).device)
            for wave in self._waves(requests, limits):
                for part, completions in zip(wave, self._draw(wave, network, stopper, max_new, want), strict=True):
                    results[part.index][part.first : part.first + len(completions)] = completions
        return results

    def _draw(
        self, wave: list[_Part], network: Network | None, stopper: Stopper, max_new: int, want: Sequence[str]
    ) -> list[list[Completion]]:
        """All rows of a wave, from prefill to the last end."""
        prompts, repeats = [part.request.ids for part in wave], [len(part.keys) for part in wave]
        decoder: Decoder
        if network is None:
            decoder = open_decoder(self.model, prompts, repeats)
        else:
            decoder = FastDecoder(network, prompts, repeats, max(part.limit for part in wave))
        logits = decoder.start()
        settings = [part.request.sampling for part in wave for _ in part.keys]
        sampler = Sampler(settings, [key for part in wave for key in part.keys], logits.device)
        limits = torch.tensor([part.limit for part in wave for _ in part.keys], device=logits.device)
        record = _Record(len(settings), int(limits.max()), "entropy" in want, logits.device)
        live, position = torch.arange(len(settings), device=logits.device), 0
        over = torch.zeros_like(live, dtype=torch.bool)
        while True:
            ids, logprobs, entropy = sampler.draw(logits, position, "entropy" in want)
            record.write(live, position, ids, logprobs, entropy)
            position += 1
            ended = stopper.ended(ids) | record.completes(stopper, live, ids, position, over)
            new = (ended | (limits <= position)) & ~over
            if bool(new.any()):
                record.end(live[new], ended[new], position)
                over = over | new
                rows = survivors(over)
                if len(rows) == 0:
                    break
                if len(rows) <= _DENSITY * len(live):
                    decoder.keep(rows)
                    sampler.keep(rows)
                    live, limits, ids, over = live[rows], limits[rows], ids[rows], over[rows]
            logits = decoder.step(ids)
        return record.completions(wave, stopper, max_new)

    def _check(self, requests: Sequence[Prompt], max_new: int, want: Sequence[str]) -> list[int]:
        """Most new tokens of each request's rows; raises for what a caller can get wrong."""
        if self.model is None or self.tokenizer is None:
            raise ValueError("the engine has no model yet: call bind(model, tokenizer) first")
        if max_new < 1:
            raise ValueError(f"max_new must be at least 1, got {max_new}")
        if unknown := set(want) - set(WANTS):
            raise ValueError(f"want: unknown {sorted(unknown)}; this engine offers {', '.join(WANTS)}")
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        for number, request in enumerate(requests):
            if not request.ids:
                raise ValueError(f"prompt {number} has no tokens; begin it with the tokenizer's opening token")
            if max(request.ids) >= vocabulary or min(request.ids) < 0:
                raise ValueError(
                    f"prompt {number} has ids outside the model's {vocabulary} embeddings; "
                    "the tokenizer does not belong to this model"
                )
        context = self.context
        return [max_new if context is None else min(max_new, context - len(r.ids)) for r in requests]

    def _end_ids(self) -> set[int]:
        """End tokens of the model's generation settings and of the tokenizer."""
        config = getattr(self.model, "generation_config", None)
        named = getattr(config, "eos_token_id", None)
        ends = set(named) if isinstance(named, list | tuple) else {named}
        return {int(end) for end in ends | {self.tokenizer.eos_token_id} if end is not None}

    def _waves(self, requests: Sequence[Prompt], limits: Sequence[int]) -> Iterator[list[_Part]]:
        """Rows that run together: they fit into the cache, and prompts are alike in samples and length."""
        budget = self.max_batch_tokens or max(_CACHE_BYTES // token_bytes(self.model), 1)
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].keys), len(requests[i].ids)))
        wave = _Wave(budget)
        for index in order:
            request, limit = requests[index], limits[index]
            first = 0
            while limit > 0 and first < len(request.keys):
                fits = wave.fits(request, limit, len(request.keys) - first)
                if fits < 1:
                    yield wave.parts
                    wave = _Wave(budget)
                    continue
                wave.add(_Part(index, first, request, request.keys[first : first + fits], limit))
                first += fits
        if wave.parts:
            yield wave.parts


@dataclass(frozen=True)
class _Part:
    """Samples `first ...` of request `index` that run together; at most `limit` new tokens each."""

    index: int
    first: int
    request: Prompt
    keys: tuple[int, ...]
    limit: int


@dataclass
class _Wave:
    """Rows to be run together. Prompts are padded to the longest, and their rows to the largest group."""

    budget: int
    parts: list[_Part] = field(default_factory=list)
    rows: int = 0
    most: int = 0
    tokens: int = 0
    longest: int = 0
    new: int = 0

    def fits(self, request: Prompt, limit: int, rows: int) -> int:
        """How many of the request's rows may join; one at least where the wave is empty."""
        count, longest = len(self.parts) + 1, max(self.longest, len(request.ids))
        room = (self.budget - count * longest - self.new) // limit
        if not self.parts:
            return max(min(rows, room), 1)
        uneven = count * max(self.most, rows) > _PADDING * (self.rows + rows)
        longer = count * longest > _PADDING * (self.tokens + len(request.ids))
        return 0 if uneven or longer else min(rows, room)

    def add(self, part: _Part) -> None:
        self.parts.append(part)
        self.rows, self.most = self.rows + len(part.keys), max(self.most, len(part.keys))
        self.tokens, self.longest = self.tokens + len(part.request.ids), max(self.longest, len(part.request.ids))
        self.new += part.limit * len(part.keys)


class _Record:
    """Everything drawn in a wave, by row, as tensors until the end."""

    def __init__(self, rows: int, room: int, entropy: bool, device: torch.device) -> None:
        self.ids = torch.zeros(room, rows, dtype=torch.int64, device=device)  # steps first: a step is one write
        self.logprobs = torch.zeros(room, rows, device=device)
        self.entropy = torch.zeros(room, rows, device=device) if entropy else None
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=device)

    def write(self, live: Tensor, position: int, ids: Tensor, logprobs: Tensor, entropy: Tensor | None) -> None:
        self.ids[position].index_copy_(0, live, ids)
        self.logprobs[position].index_copy_(0, live, logprobs)
        if self.entropy is not None and entropy is not None:
            self.entropy[position].index_copy_(0, live, entropy)

    def end(self, rows: Tensor, ended: Tensor, length: int) -> None:
        self.lengths[rows] = length
        self.ended[rows] = ended

    def completes(self, stopper: Stopper, live: Tensor, ids: Tensor, length: int, over: Tensor) -> Tensor:
        """Rows whose text now holds a stop string, `Bool "B"`."""
        hit = torch.zeros_like(over)
        suspects = stopper.suspects(ids)
        if suspects is not None:
            suspects = suspects[~over[suspects]]
            for row, history in zip(suspects.tolist(), self.ids[:length, live[suspects]].T.tolist(), strict=True):
                hit[row] = stopper.complete(history)
        return hit

    def completions(self, wave: Sequence[_Part], stopper: Stopper, max_new: int) -> list[list[Completion]]:
        """The rows as lists, with their texts and reasons."""
        lengths, ended = self.lengths.tolist(), self.ended.tolist()
        longest = max(lengths)
        ids, logprobs = self.ids[:longest].T.tolist(), self.logprobs[:longest]
        if not bool(torch.isfinite(logprobs).all()):
            raise FloatingPointError("the model's logits are not finite: its weights hold NaN or infinity")
        values = logprobs.T.tolist()
        entropy = None if self.entropy is None else self.entropy[:longest].T.tolist()
        out, row = [], 0
        for part in wave:
            cut = Stop.LENGTH if part.limit == max_new else Stop.CONTEXT
            completions = []
            for _ in part.keys:
                size = lengths[row]
                text, string = stopper.text(ids[row][:size])
                extras: dict[str, Any] = {} if string is None else {"stop_string": string}
                if entropy is not None:
                    extras["entropy"] = entropy[row][:size]
                reason = Stop.EOS if ended[row] or string is not None else cut
                completions.append(Completion(ids[row][:size], values[row][:size], reason, text, extras))
                row += 1
            out.append(completions)
        return out


def _text_config(model: Any) -> Any:
    """Settings of the language model, which models of several modalities keep one level down."""
    find = getattr(model.config, "get_text_config", None)
    return model.config if find is None else find()


def survivors(over: Tensor) -> Tensor:
    """Rows that go on, gaps among the first filled from behind: as few rows as possible change their place."""
    left = len(over) - int(over.sum())
    rows = torch.arange(left, device=over.device)
    rows[over[:left]] = left + torch.nonzero(~over[left:]).squeeze(1)
    return rows


def token_bytes(model: Any) -> int:
    """Keys and values of one token, in bytes; of an architecture without attention, a guess above its state."""
    config = _text_config(model)
    heads = getattr(config, "num_attention_heads", None) or 1
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * kv_heads * size * next(model.parameters()).element_size()


@contextmanager
def _at_rest(model: Any) -> Iterator[None]:
    """No dropout and no graph; every module's own mode is back afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True
