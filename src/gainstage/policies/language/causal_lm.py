"""Any Hugging Face causal language model as a policy."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gainstage.ops.meters import NoMeter
from gainstage.policies.language import packing, tokens
from gainstage.types import Batch, Completion, Ids, Message, PolicyOut, Prompt

CHUNK = 2**22
"""Logits that may be in memory at once (elements of `[chunk, V]`)."""


class CausalPolicy:
    """A handle to one role: packs, chunks and meters; acting never learns.

    Args:
        module: the Hugging Face causal LM (with adapters injected where there are any).
        tokenizer: its tokenizer.
        engine: what draws tokens (`generate(prompts, max_new=, stop=, want=)`), bound to the same module.
        peft: the `PeftModel` around `module`, where there is one; saved instead of it.
        adapters: False = a view of the same weights with the adapters switched off (free reference).
    """

    markov = False

    def __init__(
        self, module: Any, tokenizer: Any, engine: Any, role: str = "policy", meter: Any = None, peft: Any = None,
        adapters: bool = True, source: str = "",
    ) -> None:  # fmt: skip
        self.module, self.tokenizer, self.engine, self.role = module, tokenizer, engine, role
        self.meter = meter or NoMeter()
        self.peft, self.adapters, self.source = peft, adapters, source
        self.autocast: torch.dtype | None = None
        self.version = 0
        self.packable = packing.enable(module)
        self.size = sum(p.numel() for p in module.parameters())

    # -- text -----------------------------------------------------------------------------------------------------

    def encode(self, prompt: str | Sequence[Message]) -> Ids:
        """Prompt ids through the tokenizer's own template where the prompt is a conversation."""
        return tokens.encode_prompt(self.tokenizer, prompt)

    def encode_answer(self, text: str) -> Ids:
        """Ids of an answer written by somebody else, with the end token."""
        ids = tokens.encode_text(self.tokenizer, text, start=False)
        end = self.tokenizer.eos_token_id
        return ids if end is None else [*ids, end]

    def encode_observation(self, text: str, *, chat: bool = False, after: Ids | None = None) -> Ids:
        """Ids of what an environment answers inside a running context.

        Args:
            chat: the context is a conversation: the text becomes a user message between the template's separators,
                and the next answer is opened.
            after: the context so far; where its last answer has no end token yet, the template's is written first.
        """
        if not chat:
            return tokens.encode_text(self.tokenizer, text, start=False)
        ended = bool(after and after[-1] in tokens.end_ids(self.tokenizer))
        before = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
        return tokens.encode_turn(self.tokenizer, before, [{"role": "user", "content": text}], ended=ended)

    def decode(self, ids: Ids) -> str:
        return tokens.decode(self.tokenizer, ids)

    @property
    def context_limit(self) -> int | None:
        return getattr(self.module.config, "max_position_embeddings", None)

    # -- services ---------------------------------------------------------------------------------------------------

    def evaluate(self, batch: Batch, want: Sequence[str] = ()) -> PolicyOut:
        """Log-probs of the stored tokens at the decisions of `mask`, under the temperature they were drawn with.

        `want` may hold `entropy` (same positions), `hidden` (`[B, T, D]`, position t = state before token t) and
        `distribution` (log-probs of the whole vocabulary, `[N, V]`, one row a decision, as `mask` counts them).
        Gradients flow where they are enabled; without gradient the tokens are metered as scored.
        """
        with self._switch(), self._mixed():
            return self._evaluate(batch, want)

    def _evaluate(self, batch: Batch, want: Sequence[str]) -> PolicyOut:
        ids, mask, real = batch["tokens"], batch["mask"].clone(), batch.real()
        mask[:, 0] = False
        if not torch.is_grad_enabled():
            self.meter.charge("scored_tokens", float(real.sum()))
        self._flops(float(real.sum()), 6 if torch.is_grad_enabled() else 2)
        shape = mask.shape
        rows, steps = torch.nonzero(mask, as_tuple=True)
        out = PolicyOut(torch.zeros(shape, device=ids.device))
        hidden = self.hidden(ids, real)
        before = hidden[rows, steps - 1]
        temperature = batch["temperature"].clamp(min=1e-6) if "temperature" in batch else None
        scale = None if temperature is None or bool((temperature == 1).all()) else temperature[rows]
        logprobs, entropy = self.head_logprobs(before, ids[rows, steps], scale, "entropy" in want)
        index = rows * shape[1] + steps
        out.logprobs = out.logprobs.view(-1).index_put((index,), logprobs).view(shape)
        if entropy is not None:
            out.entropy = torch.zeros(shape, device=ids.device).view(-1).index_put((index,), entropy).view(shape)
        if "hidden" in want:
            out.extras["hidden"] = torch.cat((hidden[:, :1] * 0, hidden[:, :-1]), 1)
        if "distribution" in want:
            out.extras["distribution"] = torch.log_softmax(self.logits(before, scale), -1)
        return out

    def logprobs(self, prefix: list[Ids], cont: list[Ids], *, grad: bool = False) -> list[Tensor]:
        """Log-probs of fixed continuations under any contexts (temperature 1), one tensor `L` each."""
        rows = [torch.tensor([*p, *c]) for p, c in zip(prefix, cont, strict=True)]
        if not rows:
            return []
        pad = torch.nn.utils.rnn.pad_sequence
        masks = [torch.tensor([False] * len(p) + [True] * len(c)) for p, c in zip(prefix, cont, strict=True)]
        authors = [torch.zeros(len(r), dtype=torch.long) for r in rows]
        columns = {
            "tokens": pad(rows, True), "mask": pad(masks, True), "author": pad(authors, True, -1),
        }  # fmt: skip
        batch = Batch({k: v.to(self.device) for k, v in columns.items()})
        with nullcontext() if grad else torch.no_grad():
            found = self.evaluate(batch).logprobs
        return [found[i, len(p) : len(p) + len(c)] for i, (p, c) in enumerate(zip(prefix, cont, strict=True))]

    def generate(
        self, requests: Sequence[Prompt], *, max_new: int, stop: Sequence[str] = (), want: Sequence[str] = ()
    ) -> list[list[Completion]]:
        """Continuations by the engine, metered. One list per prompt, one completion per key."""
        with self._switch():
            found = self.engine.generate(list(requests), max_new=max_new, stop=tuple(stop), want=tuple(want))
        drawn = float(sum(len(c.ids) for group in found for c in group))
        self.meter.charge("generated_tokens", drawn)
        self._flops(drawn + sum(len(r.ids) for r in requests), 2)
        return found

    # -- arithmetic -------------------------------------------------------------------------------------------------

    def hidden(self, ids: Tensor, real: Tensor) -> Tensor:
        """Last hidden states `[B, T, D]`, zeros on padding."""
        decoder = self.module.base_model
        if not self.packable:
            return decoder(input_ids=ids, attention_mask=real.long(), use_cache=False).last_hidden_state
        layout = packing.Layout.of(real)
        flat = layout.flat
        positions = torch.cumsum(real, 1).sub(1).reshape(-1)[flat]
        with packing.packed(layout):
            states = decoder(
                input_ids=ids.reshape(-1)[flat].unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False
            ).last_hidden_state[0]
        padded = states.new_zeros(layout.rows * layout.steps, states.shape[-1]).index_copy(0, flat, states)
        return padded.view(layout.rows, layout.steps, -1)

    def logits(self, hidden: Tensor, temperature: Tensor | None = None) -> Tensor:
        """Scores of the whole vocabulary at `hidden "N D"` in float32, `[N, V]`, over the `temperature "N"`."""
        config = self.module.config
        cap = getattr(config, "final_logit_softcapping", None)
        logits = self.module.get_output_embeddings()(hidden).float() / (getattr(config, "logits_scaling", None) or 1.0)
        if cap:
            logits = torch.tanh(logits / cap) * cap
        return logits if temperature is None else logits / temperature.unsqueeze(1)

    def head_logprobs(
        self, hidden: Tensor, target: Tensor, temperature: Tensor | None, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs (and entropy) at `hidden "N D"`, in chunks so that `[N, V]` is never whole in memory."""

        def chunk(h: Tensor, y: Tensor, t: Tensor | None) -> tuple[Tensor, Tensor]:
            log_all = torch.log_softmax(self.logits(h, t), -1)
            spread = -(log_all.exp() * log_all).sum(-1) if entropy else log_all.new_zeros(len(y))
            return log_all.gather(1, y.unsqueeze(1)).squeeze(1), spread

        vocabulary = self.module.get_output_embeddings().weight.shape[0]
        size = max(CHUNK // vocabulary, 1)
        if len(target) <= size:
            logprobs, spread = chunk(hidden, target, temperature)
            return logprobs, spread if entropy else None
        parts = []
        for start in range(0, len(target), size):
            part = slice(start, start + size)
            args = (hidden[part], target[part], None if temperature is None else temperature[part])
            parts.append(checkpoint(chunk, *args, use_reentrant=False) if torch.is_grad_enabled() else chunk(*args))
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]) if entropy else None

    # -- copies, files ------------------------------------------------------------------------------------------------

    def snapshot(self, role: str, *, frozen: bool = True) -> CausalPolicy:
        """A copy under another role name. With adapters, a frozen copy of the start is the base without them."""
        if self.peft is not None and frozen and self.version == 0:
            made = CausalPolicy(
                self.module,
                self.tokenizer,
                self.engine,
                role,
                self.meter,
                self.peft,
                adapters=False,
                source=self.source,
            )
        else:
            whole = copy.deepcopy(self.peft if self.peft is not None else self.module)
            module = whole.get_base_model() if self.peft is not None else whole
            if self.peft is None:
                module.requires_grad_(not frozen)
            engine = copy.copy(self.engine).bind(module.eval(), self.tokenizer)
            peft = whole if self.peft is not None else None
            made = CausalPolicy(module, self.tokenizer, engine, role, self.meter, peft, source=self.source)
        made.autocast = self.autocast
        return made

    def save(self, folder: Any) -> None:
        """A plain Hugging Face folder (or PEFT adapter) in safetensors, with the tokenizer."""
        implementation = self.module.config._attn_implementation
        self.module.config._attn_implementation = "sdpa"
        try:
            (self.peft or self.module).save_pretrained(folder, safe_serialization=True)
            self.tokenizer.save_pretrained(folder)
        finally:
            self.module.config._attn_implementation = implementation

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @contextmanager
    def _switch(self) -> Iterator[None]:
        """Adapters as this handle has them."""
        with nullcontext() if self.adapters or self.peft is None else self.peft.disable_adapter():
            yield

    def _mixed(self) -> Any:
        """Half-precision arithmetic over full-precision weights, where asked; the engine keeps the weights' own."""
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast)

    def _flops(self, tokens: float, per_weight: int) -> None:
        self.meter.charge("flops", per_weight * self.size * tokens)
