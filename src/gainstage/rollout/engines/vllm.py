"""Generation by vLLM in this process, on a GPU; its weights are set from the trainer's before every call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from gainstage.ops.extras import require
from gainstage.registry import component
from gainstage.types import Completion, Prompt, Sampling, Stop

_REASONS = {"stop": Stop.EOS, "length": Stop.LENGTH}


@component("engine", name="vllm")
@dataclass
class VllmEngine:
    """vLLM behind the same protocol: log-probs after temperature and cuts, one seed a sample.

    The engine is started at the first call, from the folder or name that the bound model was loaded from. It
    holds a copy of the weights on this process's GPU, which every call renews, so that nothing is ever drawn
    from stale ones. For a model over several GPUs run `vllm serve` and take the `openai` engine.

    Attributes:
        model: folder or name to start from; empty takes that of the bound model.
        gpu_memory_utilization: share of the GPU that vLLM may take; the trainer needs the rest.
        dtype: data type of its weights; `auto` takes the checkpoint's.
        max_model_len: longest sequence; None takes the model's own. Lower it to save cache.
        enforce_eager: no CUDA graphs: starts faster, runs slower.
    """

    model: str = ""
    gpu_memory_utilization: float = 0.4
    dtype: str = "auto"
    max_model_len: int | None = None
    enforce_eager: bool = False
    trained: Any = field(default=None, init=False, repr=False)
    tokenizer: Any = field(default=None, init=False, repr=False)
    _llm: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization must lie in (0, 1], got {self.gpu_memory_utilization}")

    def bind(self, model: Any, tokenizer: Any) -> Self:
        """Draw with this model's weights, as they are at each call."""
        self.trained, self.tokenizer = model, tokenizer
        return self

    def generate(
        self, requests: Sequence[Prompt], *, max_new: int, stop: Sequence[str] = (), want: Sequence[str] = ()
    ) -> list[list[Completion]]:
        """Continue each prompt once for each of its keys; see `TorchEngine.generate` for the arguments.

        Raises:
            MissingExtra: vLLM is not installed.
            ValueError: a `want` that vLLM does not give, or nothing to start from.
        """
        if want:
            raise ValueError(f"want: the vllm engine does not give {', '.join(want)}")
        # weights can be handed over only to a model in this process; read when vLLM is imported
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        vllm = require("vllm", extra="scale")
        llm = self._started(vllm)
        if self.trained is not None:
            with _merged(self.trained) as weights:
                self.load_weights(weights)
        prompts, params = [], []
        for request in requests:
            for key in request.keys:
                prompts.append({"prompt_token_ids": list(request.ids)})
                params.append(vllm.SamplingParams(**sampling_fields(request.sampling, key, max_new, stop)))
        flat = iter(llm.generate(prompts, params, use_tqdm=False)) if prompts else iter(())
        return [[_read(next(flat).outputs[0], max_new) for _ in request.keys] for request in requests]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replace the served weights by these (names as in the Hugging Face model) and forget cached prefixes."""
        pairs = list(weights)

        def load(model: Any) -> None:
            model.load_weights(pairs)

        self._llm.apply_model(load)
        self._llm.reset_prefix_cache()

    def _started(self, vllm: Any) -> Any:
        if self._llm is None:
            source = self.model or getattr(getattr(self.trained, "config", None), "_name_or_path", "")
            if not source:
                raise ValueError("vllm engine: set `model` to the folder or name that the weights come from")
            self._llm = vllm.LLM(
                model=source,
                dtype=self.dtype,
                gpu_memory_utilization=self.gpu_memory_utilization,
                max_model_len=self.max_model_len,
                enforce_eager=self.enforce_eager,
                logprobs_mode="processed_logprobs",
            )
        return self._llm


def sampling_fields(sampling: Sampling, key: int, max_new: int, stop: Sequence[str]) -> dict[str, Any]:
    """Arguments of vLLM's `SamplingParams` for one sample."""
    return {
        "n": 1, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p, "seed": key & ((1 << 63) - 1), "max_tokens": max_new, "stop": list(stop),
        "logprobs": 0,
    }  # fmt: skip


def _read(output: Any, max_new: int) -> Completion:
    ids = list(output.token_ids)
    logprobs = [float(step[token].logprob) for token, step in zip(ids, output.logprobs, strict=True)]
    reason = _REASONS.get(output.finish_reason, Stop.FAILED)
    if reason is Stop.LENGTH and len(ids) < max_new:
        reason = Stop.CONTEXT
    extras = {"error": f"finish_reason is {output.finish_reason!r}"} if reason is Stop.FAILED else {}
    return Completion(ids, logprobs, reason, output.text, extras)


@contextmanager
def _merged(model: Any) -> Iterator[list[tuple[str, Tensor]]]:
    """Weights under the names of the plain model; adapters are merged in while the context lasts."""
    if not hasattr(model, "merge_adapter"):
        yield [(name, parameter.data) for name, parameter in model.named_parameters()]
        return
    model.merge_adapter()
    try:
        yield [
            (name.removeprefix("base_model.model.").replace(".base_layer", ""), parameter.data)
            for name, parameter in model.named_parameters()
            if "lora_" not in name and "original_module" not in name
        ]
    finally:
        model.unmerge_adapter()
