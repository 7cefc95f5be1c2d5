"""Transformer blocks of the known families as plain functions over flat tokens.

A block is split where attention looks at other tokens: `project` gives queries, keys and values of each
token, `finish` takes what attention returned. So prefill, decoding and any cache share one piece of maths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Map = Callable[[Tensor], Tensor]
Rotation = tuple[Tensor, Tensor] | None

STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary variants whose frequencies do not depend on the length of the sequence."""


@dataclass
class Block:
    """One layer: `project(x "N D", rotation) -> q "N H E", k "N G E", v "N G E"`, `finish(x, attended "N H*E") -> x`."""

    project: Callable[[Tensor, Rotation], tuple[Tensor, Tensor, Tensor]]
    finish: Callable[[Tensor, Tensor], Tensor]
    scaling: float


@dataclass
class Network:
    """A decoder-only model as functions that read its parameters.

    Attributes:
        embed: `(ids "N", positions "N") -> x "N D"`.
        blocks: the layers.
        head: `x "N D" -> logits "N V"`, final norm included.
        rotation: `positions "N" -> (cos, sin) "N E"` or None.
        heads, kv_heads, head_dim: shape of attention.
        like: a weight, for device and data type.
        window: longest sequence for which the maths is right (sliding windows); None = any.
    """

    embed: Callable[[Tensor, Tensor], Tensor]
    blocks: list[Block]
    head: Map
    rotation: Callable[[Tensor], Rotation]
    heads: int
    kv_heads: int
    head_dim: int
    like: Tensor
    window: int | None = None


def read_network(model: nn.Module) -> Network | None:
    """The model as a `Network` over its present weights, or None where its architecture is not known.

    A class that is not exactly a known one, a hook on any module, an overridden `forward` or a setting that
    changes the maths all give None: the model's own forward is right then.
    """
    base = model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model
    reader = _READERS.get(type(base).__name__)
    if reader is None or type(base).__module__.split(".")[0] != "transformers" or _patched(base):
        return None
    return reader(base)


def _patched(model: nn.Module) -> bool:
    return any(m._forward_hooks or m._forward_pre_hooks or "forward" in m.__dict__ for m in model.modules())


def _plain(module: nn.Module) -> bool:
    return type(module) is nn.Linear


def fuse(modules: list[nn.Module]) -> Map:
    """Linear modules that read the same input as one product, outputs side by side.

    Plain ones are joined into a copy stored input-first, which skinny products read faster; anything else
    (adapters, quantised layers) is called as it is.
    """
    if not all(_plain(module) for module in modules):
        return lambda x: torch.cat([module(x) for module in modules], -1)
    weight = torch.cat([module.weight for module in modules]).t().contiguous()
    if all(module.bias is None for module in modules):
        return lambda x: x @ weight
    bias = torch.cat(
        [module.weight.new_zeros(module.out_features) if module.bias is None else module.bias for module in modules]
    )
    return lambda x: torch.addmm(bias, x, weight)


def add_product(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """`(residual, x) -> residual + module(x)` in one product where the module is plain."""
    if not _plain(module):
        return lambda residual, x: residual + module(x)
    weight, bias = module.weight.t().contiguous(), module.bias
    if bias is None:
        return lambda residual, x: torch.addmm(residual, x, weight)
    return lambda residual, x: torch.addmm(residual, x, weight) + bias


def rms_norm(module: nn.Module) -> Map:
    """The model's RMS norm; the fused kernel where it rounds as the module does (float32)."""
    weight, eps = module.weight, module.variance_epsilon
    if weight.dtype != torch.float32:
        return module
    return lambda x: F.rms_norm(x, (weight.shape[0],), weight, eps)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotary embedding of `x "N H E"` (Su et al. 2021), halves convention."""
    assert rotation is not None
    cos, sin = rotation
    return torch.addcmul(x * cos.unsqueeze(1), x.roll(x.shape[-1] // 2, -1), sin.unsqueeze(1))


def _llama_block(layer: nn.Module, heads: int, kv_heads: int, head_dim: int) -> Block:
    attention, mlp = layer.self_attn, layer.mlp
    first, second = rms_norm(layer.input_layernorm), rms_norm(layer.post_attention_layernorm)
    qkv = fuse([attention.q_proj, attention.k_proj, attention.v_proj])
    gate_up = fuse([mlp.gate_proj, mlp.up_proj])
    add_attention, add_mlp = add_product(attention.o_proj), add_product(mlp.down_proj)
    activate = mlp.act_fn
    normed = hasattr(attention, "q_norm")
    q_norm, k_norm = (rms_norm(attention.q_norm), rms_norm(attention.k_norm)) if normed else (None, None)
    turned = heads + kv_heads

    def project(x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        joint = qkv(first(x)).view(x.shape[0], turned + kv_heads, head_dim)
        both = joint[:, :turned]
        if q_norm is not None and k_norm is not None:
            both = torch.cat((q_norm(both[:, :heads]), k_norm(both[:, heads:])), 1)
        both = rotate(both, rotation)
        return both[:, :heads], both[:, heads:], joint[:, turned:]

    def finish(x: Tensor, attended: Tensor) -> Tensor:
        x = add_attention(x, attended)
        gate, up = gate_up(second(x)).chunk(2, -1)
        return add_mlp(x, activate(gate) * up)

    return Block(project, finish, attention.scaling)


def _read_llama(model: Any) -> Network | None:
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
    final, out = rms_norm(body.norm), fuse([model.lm_head])

    def rotation(positions: Tensor) -> Rotation:
        cos, sin = body.rotary_emb(body.norm.weight, positions.unsqueeze(0))
        half = head_dim // 2
        signed = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)  # the minus of rotate_half
        return cos[0], signed

    return Network(
        embed=lambda ids, positions: body.embed_tokens(ids),
        blocks=[_llama_block(layer, heads, kv_heads, head_dim) for layer in body.layers[: config.num_hidden_layers]],
        head=lambda x: out(final(x)),
        rotation=rotation,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        like=body.norm.weight,
        window=window,
    )


def _conv(module: nn.Module) -> Map:
    if type(module).__name__ != "Conv1D":
        return module
    weight, bias = module.weight, module.bias
    return lambda x: torch.addmm(bias, x, weight)


def _gpt2_block(layer: nn.Module, heads: int, head_dim: int) -> Block:
    first, second = layer.ln_1, layer.ln_2
    qkv, out = _conv(layer.attn.c_attn), _conv(layer.attn.c_proj)
    widen, narrow, activate = _conv(layer.mlp.c_fc), _conv(layer.mlp.c_proj), layer.mlp.act

    def project(x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv(first(x)).view(x.shape[0], 3, heads, head_dim).unbind(1)
        return q, k, v

    def finish(x: Tensor, attended: Tensor) -> Tensor:
        x = x + out(attended)
        return x + narrow(activate(widen(second(x))))

    return Block(project, finish, layer.attn.scaling)


def _read_gpt2(model: Any) -> Network | None:
    config, body = model.config, model.transformer
    if config.add_cross_attention:
        return None
    heads = config.num_attention_heads
    head_dim = config.hidden_size // heads
    out = fuse([model.lm_head])
    return Network(
        embed=lambda ids, positions: body.wte(ids) + body.wpe(positions),
        blocks=[_gpt2_block(layer, heads, head_dim) for layer in body.h],
        head=lambda x: out(body.ln_f(x)),
        rotation=lambda positions: None,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        like=body.ln_f.weight,
    )


_READERS: dict[str, Callable[[Any], Network | None]] = {
    "LlamaForCausalLM": _read_llama,
    "MistralForCausalLM": _read_llama,
    "Qwen2ForCausalLM": _read_llama,
    "Qwen3ForCausalLM": _read_llama,
    "GPT2LMHeadModel": _read_gpt2,
}
