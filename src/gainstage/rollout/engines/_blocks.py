"""Transformer blocks of the known families as plain functions over flat tokens.

A block is split where attention looks at other tokens: `project` gives the queries, keys and values of each
token, `finish` takes what attention returned. So prefill and decoding share one piece of maths.

Rotary pairs stand side by side here, `(x0, x1), (x2, x3), ...`, so that a rotation is one complex product;
Hugging Face weights pair the two halves of a head. Queries and keys are permuted alike, which leaves their
products as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gainstage.rollout.engines._products import Map, add_linear, copy_pays, linear, linears, pair

Heads = tuple[Tensor, Tensor, Tensor]

STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary variants whose frequencies do not depend on the length of the sequence."""


@dataclass
class Block:
    """One layer: `project(x "N D") -> q "N H E", k "N G E", v "N G E"`, `finish(x, attended "N H*E") -> x`."""

    project: Callable[[Tensor], Heads]
    finish: Callable[[Tensor, Tensor], Tensor]
    scaling: float


@dataclass
class Network:
    """A decoder-only model as functions that read its parameters.

    Attributes:
        embed: `(ids "N", positions "N") -> x "N D"`.
        blocks: the layers.
        head: `x "N D" -> logits "N V"`, final norm included.
        rotation: `positions "T" -> Complex "T E/2"`, or None for learned positions.
        heads, kv_heads, head_dim: shape of attention.
        like: a weight, for device and data type.
        window: longest sequence for which the maths is right (sliding windows); None = any.
    """

    embed: Callable[[Tensor, Tensor], Tensor]
    blocks: list[Block]
    head: Map
    rotation: Map | None
    heads: int
    kv_heads: int
    head_dim: int
    like: Tensor
    window: int | None = None


def read_network(model: Any, steps: int) -> Network | None:
    """The model as a `Network` over its present weights, or None where its architecture is not known.

    Weights may be laid out anew where `steps`, the most forwards to come, make that pay.
    A class that is not exactly a known one, a hook on any module, an overridden `forward` or a setting that
    changes the maths all give None: the model's own forward is right then.
    """
    base = model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model
    reader = _READERS.get(type(base).__name__)
    if reader is None or type(base).__module__.split(".")[0] != "transformers" or _patched(base):
        return None
    return reader(base, copy_pays(model, steps))


def _patched(model: nn.Module) -> bool:
    return any(m._forward_hooks or m._forward_pre_hooks or "forward" in m.__dict__ for m in model.modules())


def rms_norm(module: Any, heads: int = 0) -> Map:
    """The model's RMS norm; the fused kernel where it rounds as the module does (float32)."""
    weight, eps = pair(module.weight, heads), module.variance_epsilon
    if weight.dtype == torch.float32:
        return lambda x: F.rms_norm(x, weight.shape, weight, eps)

    def norm(x: Tensor) -> Tensor:
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)

    return norm


def _llama_block(layer: Any, config: Any, head_dim: int, copy: bool) -> Block:
    attention, mlp = layer.self_attn, layer.mlp
    first, second = rms_norm(layer.input_layernorm), rms_norm(layer.post_attention_layernorm)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    qkv = linears([attention.q_proj, attention.k_proj, attention.v_proj], copy, (heads, kv_heads, 0))
    gate_up = linears([mlp.gate_proj, mlp.up_proj], copy, (0, 0))
    add_attention, add_mlp = add_linear(attention.o_proj, copy), add_linear(mlp.down_proj, copy)
    activate = F.silu if config.hidden_act == "silu" else mlp.act_fn
    norms = (rms_norm(attention.q_norm, 1), rms_norm(attention.k_norm, 1)) if hasattr(attention, "q_norm") else None

    def project(x: Tensor) -> Heads:
        q, k, v = (flat.view(len(flat), -1, head_dim) for flat in qkv(first(x)))
        return (q, k, v) if norms is None else (norms[0](q), norms[1](k), v)

    def finish(x: Tensor, attended: Tensor) -> Tensor:
        x = add_attention(x, attended)
        gate, up = gate_up(second(x))
        return add_mlp(x, activate(gate).mul_(up))

    return Block(project, finish, attention.scaling)


def _read_llama(model: Any, copy: bool) -> Network | None:
    config, body = model.config, model.model
    if body.rotary_emb.rope_type not in STATIC_ROPE:
        return None
    layer_types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if layer_types is not None:
        if set(layer_types) - {"full_attention", "sliding_attention"}:
            return None
        window = window if "sliding_attention" in layer_types else None
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = body.layers[0].self_attn.head_dim
    final, out = rms_norm(body.norm), linear(model.lm_head, copy)

    def rotation(positions: Tensor) -> Tensor:
        cos, sin = body.rotary_emb(positions.new_empty((), dtype=torch.float32), positions.unsqueeze(0))
        return torch.complex(cos[0, :, : head_dim // 2], sin[0, :, : head_dim // 2])

    return Network(
        embed=lambda ids, positions: body.embed_tokens(ids),
        blocks=[_llama_block(layer, config, head_dim, copy) for layer in body.layers],
        head=lambda x: out(final(x)),
        rotation=rotation,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        like=body.norm.weight,
        window=window,
    )


def _gpt2_block(layer: Any, heads: int, head_dim: int) -> Block:
    first, second, mlp = layer.ln_1, layer.ln_2, layer.mlp
    qkv, out = _conv(layer.attn.c_attn), _conv(layer.attn.c_proj)
    widen, narrow, activate = _conv(mlp.c_fc), _conv(mlp.c_proj), mlp.act

    def project(x: Tensor) -> Heads:
        q, k, v = qkv(first(x)).view(x.shape[0], 3, heads, head_dim).unbind(1)
        return q, k, v

    def finish(x: Tensor, attended: Tensor) -> Tensor:
        x = x + out(attended)
        return x + narrow(activate(widen(second(x))))

    return Block(project, finish, layer.attn.scaling)


def _conv(module: Any) -> Map:
    """GPT-2's linear layer, whose weight is stored input-first already."""
    if type(module).__name__ != "Conv1D":
        return module
    return lambda x: torch.addmm(module.bias, x, module.weight)


def _read_gpt2(model: Any, copy: bool) -> Network | None:
    config, body = model.config, model.transformer
    if config.add_cross_attention:
        return None
    heads = config.num_attention_heads
    head_dim = config.hidden_size // heads
    out = linear(model.lm_head, copy)
    return Network(
        embed=lambda ids, positions: body.wte(ids) + body.wpe(positions),
        blocks=[_gpt2_block(layer, heads, head_dim) for layer in body.h],
        head=lambda x: out(body.ln_f(x)),
        rotation=None,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        like=body.ln_f.weight,
    )


_READERS: dict[str, Callable[[Any, bool], Network | None]] = {
    "LlamaForCausalLM": _read_llama,
    "MistralForCausalLM": _read_llama,
    "Qwen2ForCausalLM": _read_llama,
    "Qwen3ForCausalLM": _read_llama,
    "GPT2LMHeadModel": _read_gpt2,
}
