"""Roles: every model of a recipe by name, and the copies that lag behind one another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gainstage.registry import RecipeError, build, near

CLOCKS = ("start", "round", "iteration", "step")


@dataclass
class Role:
    """How a role comes about: `load` a model, build a `net`, or copy another role (`of`) at the times named by `on`."""

    name: str
    make: str
    settings: dict[str, Any]
    of: str | None = None
    on: str = "start"
    tau: float = 1.0


def parse_role(name: str, spec: Mapping[str, Any] | str) -> Role:
    """A recipe's entry under `models`.

    Raises:
        RecipeError: none or several of `load`, `net`, `of`, `remote`; an unknown clock; tau outside (0, 1].
    """
    if isinstance(spec, str):
        spec = {"load": spec}
    spec = dict(spec)
    kinds = [key for key in ("load", "net", "remote") if key in spec]
    if "of" in spec and not kinds:
        role = Role(name, "copy", {}, spec.pop("of"), str(spec.pop("on", "start")), float(spec.pop("tau", 1.0)))
        clock = role.on.split(":")[0].split(".")[0]
        if clock not in (*CLOCKS, "phase", "update"):
            raise RecipeError(
                f"models.{name}.on: {role.on!r} is no clock; "
                "known: start, round, iteration, step, phase:<name>, update.<learner>"
            )
        if not 0 < role.tau <= 1:
            raise RecipeError(f"models.{name}.tau must lie in (0, 1], got {role.tau}")
        if spec:
            raise RecipeError(
                f"models.{name}: a copy has no setting {sorted(spec)[0]!r}; "
                f"{near(sorted(spec)[0], ['of', 'on', 'tau'])}"
            )
        return role
    if len(kinds) != 1:
        raise RecipeError(f"models.{name}: give one of load, net, of, remote; got {sorted(spec)}")
    made = spec.pop(kinds[0])
    settings = {"source": made, **spec} if kinds[0] != "net" else spec
    return Role(
        name, {"load": "causal_lm", "net": str(made), "remote": "remote_lm"}[kinds[0]], settings, spec.get("of")
    )


class Models:
    """The roles somebody asks for, made once from the static plan; a role nobody asks for costs nothing.

    Args:
        specs: the recipe's `models`.
        used: roles that components declare; a copy brings its source along.
        trained: roles that a learner lists; their copies stay trainable.
        task: whose spaces nets for control are made for.
    """

    def __init__(self, specs: Mapping[str, Any], used: Iterable[str], trained: Iterable[str] = (), meter: Any = None,
                 device: torch.device | str = "cpu", seed: int = 0, task: Any = None) -> None:  # fmt: skip
        self.roles = {name: parse_role(name, spec) for name, spec in specs.items()}
        self.trained = {name.split(".")[0] for name in trained}
        self.meter, self.device, self.seed, self.task = meter, torch.device(device), seed, task
        self.handles: dict[str, Any] = {}
        self._open: list[str] = []
        for name in dict.fromkeys([*used, *self.trained]):
            self._make(name.split(".")[0])

    def _make(self, name: str) -> Any:
        if name in self.handles:
            return self.handles[name]
        if name not in self.roles:
            raise RecipeError(f"the recipe asks for the role {name!r}, but models has none; {near(name, self.roles)}")
        if name in self._open:
            raise RecipeError(f"models: {' -> '.join([*self._open, name])} copy one another")
        self._open.append(name)
        role = self.roles[name]
        source: Any = self._make(role.of) if role.of else None
        if role.make == "copy":
            handle = source.snapshot(name, frozen=name not in self.trained)
        else:
            extra = {"of": source} if role.of else {}
            factory = build("net", role.make, {k: v for k, v in role.settings.items() if k != "of"}, f"models.{name}")
            if getattr(factory, "fits_task", False):
                extra["task"] = self._simulator(name)
            handle = factory.make(
                role=name, meter=self.meter, device=self.device, trained=name in self.trained, **extra
            )
        self._open.pop()
        self.handles[name] = handle
        return handle

    def _simulator(self, name: str) -> Any:
        if self.task is None or not hasattr(self.task, "observation_space"):
            raise RecipeError(
                f"models.{name}: a net of this kind is made for a task that is stepped (task=cart_pole); "
                f"{getattr(self.task, 'name', 'the task')} has no spaces"
            )
        return self.task

    def __getitem__(self, role: str) -> Any:
        try:
            return self.handles[role]
        except KeyError:
            raise KeyError(
                f"role {role!r} was not declared by `uses` of any component; roles here: {sorted(self.handles)}"
            ) from None

    def __contains__(self, role: str) -> bool:
        return role in self.handles

    def updated(self, role: str) -> None:
        """A learner has stepped: the weights have a new version."""
        self.handles[role].version += 1

    def event(self, name: str) -> None:
        """A clock ticks (`iteration`, `step`, `round`, `phase:<name>`, `update.<learner>`): copies on it follow."""
        for role in self.roles.values():
            if role.make == "copy" and role.on == name and role.name in self.handles:
                follow(self.handles[role.name], self.handles[str(role.of)], role.tau)

    @contextmanager
    def scratch(self, role: str) -> Iterator[Any]:
        """A copy of a role to be changed at will; the role itself stays bit for bit what it was."""
        copy = self.handles[role].snapshot(f"{role}.scratch", frozen=False)
        yield copy

    def moving(self) -> list[str]:
        """Roles whose weights can change during the run, in order of name."""
        return sorted(
            name for name in self.handles
            if name in self.trained or (self.roles[name].make == "copy" and self.roles[name].on != "start")
        )  # fmt: skip

    def state_dict(self) -> dict[str, dict[str, torch.Tensor]]:
        """Weights of every role that has weights here; a view without adapters has those of its source."""
        return {
            name: weights(handle)
            for name, handle in self.handles.items()
            if getattr(handle, "adapters", True) and hasattr(handle, "module")
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, torch.Tensor]], versions: Mapping[str, int]) -> None:
        for name, tensors in state.items():
            load_weights(self.handles[name], tensors)
        for name, version in versions.items():
            if name in self.handles:
                self.handles[name].version = version


def weights(handle: Any) -> dict[str, torch.Tensor]:
    """The tensors that make up a handle; for an adapted model only what can change (the base is its source's)."""
    if getattr(handle, "peft", None) is not None:
        return {key: value for key, value in handle.module.named_parameters() if value.requires_grad}
    seen: dict[int, str] = {}
    found = {}
    for key, value in handle.module.state_dict().items():
        if seen.setdefault(value.data_ptr(), key) == key or value.numel() == 0:
            found[key] = value
    return found


@torch.no_grad()
def load_weights(handle: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put saved tensors back in place.

    Raises:
        RecipeError: a tensor is missing, is unknown, or has another shape.
    """
    own = weights(handle)
    if set(own) != set(tensors):
        raise RecipeError(
            f"role {handle.role!r}: saved weights do not fit, they differ in {sorted(set(own) ^ set(tensors))[:5]}"
        )
    for key, value in own.items():
        if value.shape != tensors[key].shape:
            raise RecipeError(
                f"role {handle.role!r}: {key} has shape {tuple(value.shape)}, saved {tuple(tensors[key].shape)}"
            )
        value.data.copy_(tensors[key])


@torch.no_grad()
def follow(copy: Any, source: Any, tau: float) -> None:
    """Move a copy towards its source: `copy + tau * (source - copy)`; tau 1, and buffers, bit for bit."""
    place = [next(module.parameters()).data_ptr() for module in (copy.module, source.module)]
    if copy.__dict__.get("_followed", ((),))[0] != place:  # looked up once, as long as the tensors stay where they are
        copy._followed = (place, *_paired(copy.module, source.module))
    _, moved, ahead, copied = copy._followed
    if tau == 1:
        for mine, theirs in zip(moved, ahead, strict=True):
            mine.copy_(theirs)
    elif moved:
        torch._foreach_lerp_(moved, ahead, tau)
    for mine, theirs in copied:
        mine.copy_(theirs)
    copy.version = source.version


def _paired(copy: torch.nn.Module, source: torch.nn.Module) -> tuple[list[Any], list[Any], list[tuple[Any, Any]]]:
    """Weights that move, what they move to, and pairs of what is copied: buffers and whole numbers."""
    theirs = source.state_dict()
    facts = {name for name, _ in copy.named_buffers()}
    moved, ahead, copied = [], [], []
    for key, value in copy.state_dict().items():
        if key in facts or not value.is_floating_point():
            copied.append((value, theirs[key]))
        else:
            moved.append(value)
            ahead.append(theirs[key])
    return moved, ahead, copied
