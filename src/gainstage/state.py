"""What a trainer saves, and how a new one goes on from it bit for bit. Weights travel beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gainstage.chain import Chain

if TYPE_CHECKING:
    import torch

Weights = Mapping[str, Mapping[str, "torch.Tensor"]]


def stateful(chain: Chain) -> Iterator[tuple[str, Any]]:
    """Everything in a chain that keeps state, under the name it is saved by."""
    for part in chain:
        if part.has("state_dict"):
            yield part.key, part.it
        for index, transform in enumerate(part.options.get("then", [])):
            if hasattr(transform, "state_dict"):
                yield f"{part.key}.then.{index}", transform


def collect(trainer: Any) -> dict[str, Any]:
    """Place in the schedule, spending, and the state of every component entered so far."""
    chains = {name: trainer.chains[name] for name in trainer.entered}
    tasks = {name: chain.task.it for name, chain in chains.items() if chain.task.has("state_dict")}
    handles = trainer.models.handles
    return {
        "iteration": trainer.iteration, "empty": trainer.empty, "schedule": trainer.schedule.state_dict(),
        "entered": list(trainer.entered), "due": dict(trainer.due),
        "lr_scale": dict(trainer.lr_scale), "meter": trainer.meter.state_dict(),
        "versions": {name: handle.version for name, handle in handles.items() if hasattr(handle, "version")},
        "artifacts": trainer.artifacts,
        "parts": {name: {key: it.state_dict() for key, it in stateful(chain)} for name, chain in chains.items()},
        "tasks": {name: task.state_dict() for name, task in tasks.items()},
    }  # fmt: skip


def restore(trainer: Any, state: Mapping[str, Any], weights: Weights) -> None:
    """Put a saved state into a trainer of the same recipe, whose components have been started."""
    trainer.models.load_state_dict(weights, state["versions"])
    trainer.schedule.load_state_dict(state["schedule"])
    trainer.iteration, trainer.empty = int(state["iteration"]), int(state["empty"])
    trainer.due = {key: int(value) for key, value in state["due"].items()}
    trainer.lr_scale.clear()
    trainer.lr_scale.update(state.get("lr_scale", {}))  # absent in older checkpoints, which nothing had slowed
    trainer.meter.load_state_dict(state["meter"])
    trainer.artifacts.clear()
    trainer.artifacts.update(state["artifacts"])
    for name, parts in state["parts"].items():
        for key, it in stateful(trainer.chains[name]):
            if key in parts:
                it.load_state_dict(parts[key])
    for name, task in state["tasks"].items():
        trainer.chains[name].task.it.load_state_dict(task)
