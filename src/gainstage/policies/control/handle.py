"""Handles of nets: what a recipe's roles are for tasks that are stepped."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import one_hot

from gainstage.models.mlp import MLP, ConvEncoder
from gainstage.policies.control.normalizers import GoalNormalizer, ObservationNormalizer
from gainstage.registry import RecipeError
from gainstage.types import Batch
from gainstage.types.spaces import Box, Discrete, MultiBinary, Space, describe_space

WEIGHTS, CONFIG = "model.safetensors", "config.json"


class Encoder(nn.Module):
    """Observations `"N *"` to features `"N width"`: pictures by convolutions, choices as one-hot, the rest flat.

    Args:
        space: of the observations.
        normalise: keep running statistics of vector observations and read them standardised.
        width: of a picture's features.
        gain: orthogonal start of the convolutions; None = torch's own.
    """

    def __init__(self, space: Space, normalise: bool = False, width: int = 256, gain: float | None = None) -> None:
        super().__init__()
        self.space = space
        self.statistics: ObservationNormalizer | None = None
        self.picture: ConvEncoder | None = None
        if isinstance(space, Box) and len(space.shape) == 3:
            self.picture = ConvEncoder(space.shape, width, gain)
            self.width = width
        elif isinstance(space, Box):
            self.width = max(1, int(space.low.numel()))
            kind = GoalNormalizer if "desired_goal" in space.pieces else ObservationNormalizer
            self.statistics = kind(space.shape) if normalise else None
        else:
            self.width = space.n if isinstance(space, Discrete | MultiBinary) else sum(space.nvec)
        if normalise and self.statistics is None:
            raise RecipeError(f"normalise is for vectors of numbers; observations are {describe_space(space)}")

    def forward(self, obs: Tensor) -> Tensor:
        if self.picture is not None:
            return self.picture(obs)
        if isinstance(self.space, Discrete):
            return one_hot(obs, self.width).float()
        if self.statistics is not None:
            obs = self.statistics(obs)
        return obs.reshape(len(obs), -1).float()


class Trunk(nn.Module):
    """Encoder and hidden layers: `"N *"` to `"N hidden[-1]"`."""

    def __init__(
        self, space: Space, hidden: list[int], act: str, *, gain: float | None = None, normalise: bool = False
    ) -> None:
        super().__init__()
        self.encoder = Encoder(space, normalise, hidden[-1] if hidden else 256, gain)
        sizes = [self.encoder.width, *hidden]
        self.layers = MLP(sizes, act, gain=gain, ends=True) if hidden else nn.Identity()
        self.width = sizes[-1]

    def forward(self, obs: Tensor) -> Tensor:
        return self.layers(self.encoder(obs))


class NetHandle:
    """A net with a role: metered, copied, saved. Subclasses add what it can be asked.

    Args:
        module: the net; what it does is the subclass's business.
        net: registry name and settings that it was made from, kept for the model folder.
    """

    markov = True
    peft = None

    def __init__(self, module: nn.Module, role: str, meter: Any, device: torch.device, net: Mapping[str, Any]) -> None:
        self.module, self.role, self.meter, self.device = module.to(device), role, meter, device
        self.net = dict(net)
        self.version = 0
        self.size = sum(p.numel() for p in module.parameters())

    @property
    def source(self) -> str:
        """What the weights are, in a word: the registry name of the net."""
        return str(self.net.get("net", ""))

    def charge(self, rows: int, grad: bool | None = None) -> None:
        """Book the floating-point operations of `rows` rows through the net."""
        if self.meter is not None:
            learning = torch.is_grad_enabled() if grad is None else grad
            self.meter.charge("flops", (6 if learning else 2) * self.size * float(rows))

    def decisions(self, batch: Batch) -> tuple[Tensor, torch.Size]:
        """Observations before every decision, `"B T *"` as `"N *"`, booked as read; and the axes `(B, T)`."""
        obs = batch["obs"][:, :-1]
        self.charge(obs.shape[0] * obs.shape[1])
        return obs.flatten(0, 1), obs.shape[:2]

    def snapshot(self, role: str, frozen: bool = True) -> Any:
        """A copy with its own weights."""
        twin = copy.copy(self)
        twin.module = copy.deepcopy(self.module)
        twin.role = role
        twin.module.requires_grad_(not frozen)
        return twin

    def save(self, path: str | Path) -> None:
        """Weights as safetensors, what they fit as JSON."""
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        weights = {k: v.detach().cpu().contiguous().clone() for k, v in self.module.state_dict().items()}
        save_file(weights, path / WEIGHTS)
        (path / CONFIG).write_text(json.dumps({"format": "gainstage-net", **self.net}, indent=1), encoding="utf-8")

    def load(self, path: str | Path) -> None:
        """Take over saved weights.

        Raises:
            RecipeError: no such folder, a damaged file, or weights of another shape.
        """
        file = Path(path) / WEIGHTS if Path(path).is_dir() else Path(path)
        try:
            found = load_file(file)
        except (OSError, SafetensorError) as error:
            raise RecipeError(f"models.{self.role}.weights: {file} cannot be read: {error}") from None
        try:
            self.module.load_state_dict(found)
        except RuntimeError as error:
            what = str(error).splitlines()[-1].strip()
            raise RecipeError(f"models.{self.role}.weights: {file} does not fit this net and task: {what}") from None


H = TypeVar("H", bound=NetHandle)


def handle_of(
    kind: type[H], net: nn.Module, spec: Any, name: str, role: str, meter: Any, device: torch.device, trained: bool
) -> H:
    """A net's handle, with saved weights where the settings `spec` name some (`weights`).

    Args:
        name: registry name of the net.
        trained: whether its weights take gradients.
    """
    handle = kind(net, role, meter, device, {"net": name, **asdict(spec)})
    if getattr(spec, "weights", ""):
        handle.load(spec.weights)
    net.requires_grad_(trained)
    return handle
