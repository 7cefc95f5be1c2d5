"""State as JSON and named tensors: what components hand to a checkpoint, and get back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gainstage.types.history import History


def pack(
    tree: Any,
    tensors: dict[str, torch.Tensor],
    path: str = "",
    keep: Callable[[str, History], Any] | None = None,
) -> Any:
    """A tree of dictionaries, lists, numbers and tensors as JSON; tensors go to `tensors` under their path.

    Args:
        keep: takes care of a history at a path and gives the JSON that stands for it.
    """
    if isinstance(tree, History) and keep is not None:
        return {"__history__": keep(path, tree)}
    if isinstance(tree, torch.Tensor):
        name = path or "root"
        tensors[name] = tree.detach().to("cpu").contiguous().clone()
        return {"__tensor__": name}
    if isinstance(tree, Mapping):
        items = [(key, pack(value, tensors, f"{path}/{key}", keep)) for key, value in tree.items()]
        if all(isinstance(key, str) for key, _ in items):
            return dict(items)
        return {"__items__": [[key, value] for key, value in items]}
    if isinstance(tree, list | tuple):
        return [pack(value, tensors, f"{path}/{index}", keep) for index, value in enumerate(tree)]
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise TypeError(
        f"state at {path or 'the root'}: {type(tree).__name__} cannot be saved; use numbers, text, lists and tensors"
    )


def unpack(
    tree: Any, tensors: Mapping[str, torch.Tensor], kept: Callable[[Mapping[str, Any]], History] | None = None
) -> Any:
    """The inverse of `pack`; `kept` gives back what `keep` took."""
    if isinstance(tree, dict):
        if "__tensor__" in tree:
            return tensors[tree["__tensor__"]]
        if "__history__" in tree and kept is not None:
            return kept(tree["__history__"])
        if "__items__" in tree:
            return {key: unpack(value, tensors, kept) for key, value in tree["__items__"]}
        return {key: unpack(value, tensors, kept) for key, value in tree.items()}
    if isinstance(tree, list):
        return [unpack(value, tensors, kept) for value in tree]
    return tree
