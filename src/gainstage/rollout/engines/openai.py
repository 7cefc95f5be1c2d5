"""Any server that speaks the OpenAI protocol: completions for rollouts and teachers, chat for judges."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from gainstage.ops.noise import mix, uniform
from gainstage.registry import component
from gainstage.types import Completion, Message, Prompt, Sampling, Stop

_BUSY = (408, 409, 425, 429, 500, 502, 503, 504)  # answers that are worth another try
_REFUSED = (400, 422)  # the server does not know a field, or the form of the prompt
_TOO_LONG = ("maximum context length", "context_length_exceeded", "exceed_context_size")
_GREEDY = Sampling(temperature=0)
_LOCAL = ("127.0.0.1", "::1", "localhost")


class ServerError(ConnectionError):
    """The server gave no usable answer within the tries and the time it had."""


@dataclass
class _Refusal(Exception):
    code: int
    body: str


@component("engine", name="openai")
@dataclass
class OpenAIEngine:
    """A model behind an OpenAI-compatible server (vLLM, SGLang, llama.cpp, Ollama, hosted ones).

    Every sample is a request of its own with its key as `seed`; servers keep the prompt's cache. Prompts go
    out as token ids together with the fields by which vLLM-like servers return ids; a server that refuses
    these gets plain ids, then text. Log-probs are the server's: for vLLM, start it with
    `--logprobs-mode processed_logprobs`, or they leave out temperature and cuts.

    A request that fails for good comes back as an empty completion with `Stop.FAILED` and the reason in
    `extras["error"]`. Where a server names no ids, the text is tokenised again and log-probs that do not fit
    the new ids are NaN (`extras["retokenised"]` is true): such rows can be read, not trained on.

    Attributes:
        base_url: address of the server, with or without `/v1`.
        model: name under which the server offers the model.
        api_key_env: environment variable that holds the key; no key is sent where it is unset.
        concurrency: requests in flight; more is faster until the server queues them.
        retries: further tries after a busy or broken answer, with doubling pauses.
        timeout: seconds one try may take.
        deadline: seconds a whole call may take; what is not there by then has failed.
    """

    base_url: str
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = 16
    retries: int = 5
    timeout: float = 120.0
    deadline: float = 1800.0
    tokenizer: Any = field(default=None, init=False, repr=False)
    _level: int = field(default=0, init=False, repr=False)
    _settled: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        url = urllib.parse.urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.netloc:
            raise ValueError(f"base_url must look like http://host:port/v1, got {self.base_url!r}")
        if self.concurrency < 1 or self.retries < 0 or self.timeout <= 0 or self.deadline <= 0:
            raise ValueError("concurrency must be >= 1, retries >= 0, timeout and deadline > 0 seconds")

    def bind(self, model: Any, tokenizer: Any) -> Self:
        """Use this tokenizer for prompts as text and for answers without ids; the model stays on its server."""
        self.tokenizer = tokenizer
        return self

    def generate(
        self, requests: Sequence[Prompt], *, max_new: int, stop: Sequence[str] = (), want: Sequence[str] = ()
    ) -> list[list[Completion]]:
        """Continue each prompt once for each of its keys; see `TorchEngine.generate` for the arguments.

        Raises:
            ValueError: no tokenizer bound, a `want` that servers do not give, or a request that the server
                refuses for good (wrong key, wrong model name, sampling fields it does not know).
        """
        if self.tokenizer is None:
            raise ValueError("the engine has no tokenizer yet: call bind(None, tokenizer) first")
        if want:
            raise ValueError(f"want: an OpenAI-compatible server does not give {', '.join(want)}")
        jobs = [(request, key) for request in requests for key in request.keys]

        def ask(job: tuple[Prompt, int], until: float) -> Completion:
            return self._complete(*job, max_new, tuple(stop), until)

        flat = iter(self._map(ask, jobs))
        return [[next(flat) for _ in request.keys] for request in requests]

    def chat(
        self,
        conversations: Sequence[Sequence[Message]],
        *,
        max_new: int,
        sampling: Sampling = _GREEDY,
        keys: Sequence[int] | None = None,
        stop: Sequence[str] = (),
    ) -> list[Completion]:
        """The server's next message in each conversation, by its own chat template. `ids` stay empty.

        Args:
            conversations: lists of role / content messages.
            keys: one noise key a conversation, sent as `seed`; their index where absent.
        """
        seeds = range(len(conversations)) if keys is None else keys

        def ask(job: tuple[Sequence[Message], int], until: float) -> Completion:
            payload = self._fields(sampling, job[1], max_new, stop) | {"messages": [dict(said) for said in job[0]]}
            try:
                choice = self._post("chat/completions", payload, job[1], until)["choices"][0]
            except (ServerError, KeyError, IndexError, TypeError) as error:
                return _failed(error)
            except _Refusal as refusal:
                raise self._wrong(refusal) from None
            reason = _stop(choice.get("finish_reason"))
            return Completion([], [], reason, (choice.get("message") or {}).get("content") or "")

        return self._map(ask, list(zip(conversations, seeds, strict=True)))

    def _map(self, ask: Callable[[Any, float], Completion], jobs: Sequence[Any]) -> list[Completion]:
        until = time.monotonic() + self.deadline
        with ThreadPoolExecutor(min(self.concurrency, max(len(jobs), 1))) as pool:
            futures = [pool.submit(ask, job, until) for job in jobs]
            try:
                return [future.result() for future in futures]
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _complete(self, prompt: Prompt, key: int, max_new: int, stop: tuple[str, ...], until: float) -> Completion:
        """One sample, in the richest form that the server takes."""
        while True:
            level = self._level
            payload = self._fields(prompt.sampling, key, max_new, stop) | {"logprobs": 0 if level == 0 else 1}
            payload["prompt"] = list(prompt.ids) if level < 2 else self.tokenizer.decode(prompt.ids)
            if level == 0:
                payload |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
            try:
                choice = self._post("completions", payload, key, until)["choices"][0]
                self._settled = True
                return self._read(choice, max_new)
            except (ServerError, KeyError, IndexError, TypeError) as error:
                return _failed(error)
            except _Refusal as refusal:
                if any(sign in refusal.body.lower() for sign in _TOO_LONG):
                    return Completion([], [], Stop.CONTEXT)
                if refusal.code not in _REFUSED or level == 2 or (self._settled and level == self._level):
                    raise self._wrong(refusal) from None
                self._level = max(self._level, level + 1)

    def _fields(self, sampling: Sampling, key: int, max_new: int, stop: Sequence[str]) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "model": self.model, "max_tokens": max_new, "temperature": sampling.temperature,
            "top_p": sampling.top_p, "seed": key & ((1 << 63) - 1), "n": 1,
        }  # fmt: skip
        if stop:
            fields["stop"] = list(stop)
        if sampling.top_k:
            fields["top_k"] = sampling.top_k
        if sampling.min_p:
            fields["min_p"] = sampling.min_p
        return fields

    def _read(self, choice: Mapping[str, Any], max_new: int) -> Completion:
        """A choice of a completions answer as a record."""
        text, found = choice.get("text") or "", choice.get("logprobs") or {}
        values = [float("nan") if v is None else float(v) for v in found.get("token_logprobs") or []]
        ids: list[int] | None = choice.get("token_ids")
        extras: dict[str, Any] = {}
        names = found.get("tokens") or []
        if ids is None and names and all(str(name).startswith("token_id:") for name in names):
            ids = [int(name.removeprefix("token_id:")) for name in names]
        if ids is None:
            ids, extras = self.tokenizer.encode(text, add_special_tokens=False), {"retokenised": True}
        if len(values) != len(ids):
            values = [float("nan")] * len(ids)
        reason = _stop(choice.get("finish_reason"))
        if reason is Stop.FAILED:
            extras["error"] = f"finish_reason is {choice.get('finish_reason')!r}"
        elif reason is Stop.LENGTH and len(ids) < max_new and "retokenised" not in extras:
            reason = Stop.CONTEXT
        return Completion(list(ids), values, reason, text, extras)

    def _post(self, path: str, payload: Mapping[str, Any], key: int, until: float) -> dict[str, Any]:
        """One answer, after as many tries as it takes and may take.

        Raises:
            ServerError: none came within the retries and the deadline.
            _Refusal: the server says that the request itself is wrong.
        """
        trouble = "no time left"
        for attempt in range(self.retries + 1):
            left = until - time.monotonic()
            if left <= 0:
                break
            pause = min(0.5 * 2**attempt, 30.0)
            try:
                return self._send(path, payload, min(self.timeout, left))
            except urllib.error.HTTPError as error:
                body = error.read(2000).decode(errors="replace")
                if error.code not in _BUSY:
                    raise _Refusal(error.code, body) from None
                trouble = f"HTTP {error.code}: {body[:200]}"
                pause = max(pause, _seconds(error.headers.get("Retry-After")))
            except (OSError, json.JSONDecodeError) as error:  # URLError, timeouts and broken pipes are OSErrors
                trouble = f"{type(error).__name__}: {error}"
            jitter = float(uniform(torch.tensor([mix("retry", key)]), attempt))
            if attempt < self.retries:
                time.sleep(max(min(pause * (0.5 + jitter), until - time.monotonic()), 0.0))
        raise ServerError(f"{self.base_url} did not answer: {trouble}")

    def _send(self, path: str, payload: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        root = self.base_url.rstrip("/")
        root = root if root.endswith("/v1") else root + "/v1"
        headers = {"Content-Type": "application/json"}
        if secret := os.environ.get(self.api_key_env):
            headers["Authorization"] = f"Bearer {secret}"
        request = urllib.request.Request(f"{root}/{path}", json.dumps(payload).encode(), headers)
        local = urllib.parse.urlsplit(root).hostname in _LOCAL
        opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))
        with opener.open(request, timeout=timeout) as answer:
            return json.load(answer)

    def _wrong(self, refusal: _Refusal) -> ValueError:
        """What the user has to change."""
        if refusal.code in (401, 403):
            return ValueError(f"{self.base_url} refused the key (HTTP {refusal.code}): set {self.api_key_env}")
        if refusal.code == 404:
            return ValueError(f"{self.base_url} has no model {self.model!r}, or no such address: check both")
        return ValueError(f"{self.base_url} refused the request (HTTP {refusal.code}): {refusal.body[:300]}")


def _stop(reason: str | None) -> Stop:
    return {"stop": Stop.EOS, "eos": Stop.EOS, "length": Stop.LENGTH}.get(reason or "", Stop.FAILED)


def _failed(error: Exception) -> Completion:
    text = str(error) if isinstance(error, ServerError) else f"the answer lacks {type(error).__name__} {error}"
    return Completion([], [], Stop.FAILED, "", {"error": text})


def _seconds(header: str | None) -> float:
    try:
        return float(header or 0)
    except ValueError:
        return 0.0
