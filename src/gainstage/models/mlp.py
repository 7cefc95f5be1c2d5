"""Plain trunks: multi-layer perceptrons, one or several side by side, and a small picture encoder."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU, "gelu": nn.GELU,
}  # fmt: skip


def activation(name: str) -> nn.Module:
    """An activation by name.

    Raises:
        ValueError: unknown name.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]()


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float = math.sqrt(2)) -> None:
    """Orthogonal weights of a given gain, zero bias (the usual start of on-policy nets)."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class MLP(nn.Sequential):
    """Linear layers with an activation between them: `x "... D"` to `"... sizes[-1]"`.

    Args:
        sizes: widths, input and output included.
        act: activation between the layers; none after the last one unless `ends`.
        gain: orthogonal start, of this gain in the last layer and sqrt 2 before; None = torch's own start.
    """

    def __init__(self, sizes: Sequence[int], act: str = "relu", gain: float | None = None, ends: bool = False) -> None:
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"an MLP needs the widths of input and output, all at least 1, got {list(sizes)}")
        layers: list[nn.Module] = []
        for place, (wide, out) in enumerate(itertools.pairwise(sizes)):
            layer = nn.Linear(wide, out)
            last = place == len(sizes) - 2
            if gain is not None:
                orthogonal(layer, gain if last and not ends else math.sqrt(2))
            layers.append(layer)
            if not last or ends:
                layers.append(activation(act))
        super().__init__(*layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self._modules.values():
            # a small layer costs less than the call of a module: linear ones go straight to the function
            x = linear(x, layer.weight, layer.bias) if type(layer) is nn.Linear else layer(x)
        return x


class Ensemble(nn.Module):
    """`members` MLPs of one shape in stacked weights: `x "N D"` (or `"M N D"`, one input each) to `"M N O"`.

    One batched product a layer instead of M small ones.
    """

    def __init__(self, members: int, sizes: Sequence[int], act: str = "relu", norm: bool = False) -> None:
        super().__init__()
        if members < 1:
            raise ValueError(f"members must be at least 1, got {members}")
        self.members = members
        self.act = activation(act)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.norms = nn.ModuleList()
        for place, (wide, out) in enumerate(itertools.pairwise(sizes)):
            made = [nn.Linear(wide, out) for _ in range(members)]  # torch's own start, member by member
            self.weights.append(nn.Parameter(torch.stack([m.weight.detach().T.contiguous() for m in made])))
            self.biases.append(nn.Parameter(torch.stack([m.bias.detach() for m in made]).unsqueeze(1)))
            if norm and place < len(sizes) - 2:
                self.norms.append(nn.LayerNorm(out))

    def forward(self, x: Tensor) -> Tensor:
        x = x.expand(self.members, *x.shape) if x.dim() == 2 else x
        last = len(self.weights) - 1
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            x = torch.baddbmm(bias, x, weight)
            if place < last:
                x = self.norms[place](x) if len(self.norms) else x
                x = self.act(x)
        return x


class ConvEncoder(nn.Module):
    """Pictures `uint8 "N H W C"` (or float in [0, 1]) to features `"N width"`; fits any size from 3 x 3 up."""

    def __init__(self, shape: Sequence[int], width: int = 256, gain: float | None = math.sqrt(2)) -> None:
        super().__init__()
        height, wide, channels = shape
        large = min(height, wide) >= 36
        plan = [(32, 8, 4), (64, 4, 2), (64, 3, 1)] if large else [(16, 2, 1), (32, 2, 1), (64, 2, 1)]
        layers: list[nn.Module] = []
        for out, kernel, stride in plan:
            layer = nn.Conv2d(channels, out, min(kernel, height, wide), stride)
            if gain is not None:
                orthogonal(layer, gain)
            layers += [layer, nn.ReLU()]
            kernel = min(kernel, height, wide)
            height, wide, channels = (height - kernel) // stride + 1, (wide - kernel) // stride + 1, out
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.out = nn.Linear(height * wide * channels, width)
        if gain is not None:
            orthogonal(self.out, gain)

    def forward(self, x: Tensor) -> Tensor:
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        return torch.relu(self.out(self.layers(x.permute(0, 3, 1, 2))))
