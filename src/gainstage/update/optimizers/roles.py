"""What a parameter is to its module: found by identity, names only where nothing better is known."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn


class Owner(NamedTuple):
    """Where a parameter lives: dotted path inside the root, its module, that module's parent, its own short name."""

    path: str
    module: nn.Module
    parent: nn.Module | None
    leaf: str


HEAD_NAMES = ("lm_head", "embed_out", "output_projection", "score", "action_head", "value_head")
EMBEDDING_NAMES = ("embed", "embedding", "embeddings", "embed_tokens", "wte", "wpe", "tok_embeddings")


def owners(module: nn.Module | None) -> dict[int, Owner]:
    """`id(parameter) -> Owner` for every parameter of a module; the first place of a tied one."""
    found: dict[int, Owner] = {}
    if module is None:
        return found
    modules = dict(module.named_modules())
    for path, part in modules.items():
        parent = modules.get(path.rpartition(".")[0]) if path else None
        for leaf, parameter in part.named_parameters(recurse=False):
            found.setdefault(id(parameter), Owner(path, part, parent, leaf))
    return found


def is_norm(owner: Owner | None) -> bool:
    """Whether a parameter belongs to a normalisation layer, by the layer's class."""
    return owner is not None and "norm" in type(owner.module).__name__.lower()


def is_embedding_or_head(name: str, parameter: nn.Parameter, owner: Owner | None, module: nn.Module | None) -> bool:
    """Whether a matrix maps from ids or to the outputs. By class and by the root's own accessor, else by name."""
    if owner is not None and isinstance(owner.module, nn.Embedding):
        return True
    accessor = getattr(module, "get_output_embeddings", None)
    head = accessor() if callable(accessor) else None
    if head is not None and getattr(head, "weight", None) is parameter:
        return True
    parts = name.split(".")
    return any(part in HEAD_NAMES + EMBEDDING_NAMES for part in parts[-3:])
