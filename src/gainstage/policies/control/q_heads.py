"""Nets that value every choice: a trunk and streams behind it, plain or duelling, fixed or noisy."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from gainstage.models.mlp import activation
from gainstage.models.noisy import NoisyLinear
from gainstage.policies.control.handle import Trunk
from gainstage.types.spaces import Space


@dataclass
class QSettings:
    """What every net has that values choices.

    Args:
        hidden: widths of the hidden layers.
        activation: relu, tanh, elu, silu or gelu.
        dueling: the last hidden layer is split into a stream for the state's value and one for the advantages of the
            choices (arXiv 1511.06581, eq. 9).
        noisy: the last hidden layer and the output have noisy weights (arXiv 1706.10295); leave epsilon_greedy out.
        noise_std: start of that noise.
        normalise: standardise vector observations by running statistics.
        weights: folder of saved weights to start from.
    """

    hidden: list[int] = field(default_factory=lambda: [120, 84])
    activation: str = "relu"
    dueling: bool = False
    noisy: bool = False
    noise_std: float = 0.5
    normalise: bool = False
    weights: str = ""

    fits_task = True

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"hidden needs at least one layer, all at least 1 wide, got {self.hidden}")


class Stream(nn.Module):
    """One hidden layer and the output: `"N D"` to `"N out"`."""

    def __init__(self, wide: int, out: int, spec: QSettings) -> None:
        super().__init__()
        self.noisy = spec.noisy
        self.first, self.last = (self._layer(a, b, spec) for a, b in ((wide, spec.hidden[-1]), (spec.hidden[-1], out)))
        self.act = activation(spec.activation)

    def _layer(self, wide: int, out: int, spec: QSettings) -> nn.Module:
        return NoisyLinear(wide, out, spec.noise_std) if self.noisy else nn.Linear(wide, out)

    def forward(self, x: Tensor, noisy: bool) -> Tensor:
        if not self.noisy:
            return self.last(self.act(self.first(x)))
        return self.last(self.act(self.first(x, noisy)), noisy)


class ChoiceNet(nn.Module):
    """Observations `"N *"` to `"N A K"`: K numbers for each of A choices.

    With two streams `Q = V + A - mean_a A`, for each of the K numbers by itself (arXiv 1511.06581, eq. 9).
    """

    def __init__(self, observations: Space, actions: int, numbers: int, spec: QSettings) -> None:
        super().__init__()
        self.actions, self.numbers = actions, numbers
        self.trunk = Trunk(observations, spec.hidden[:-1], spec.activation, normalise=spec.normalise)
        self.advantage = Stream(self.trunk.width, actions * numbers, spec)
        self.value = Stream(self.trunk.width, numbers, spec) if spec.dueling else None

    def forward(self, obs: Tensor, noisy: bool = True) -> Tensor:
        features = self.trunk(obs)
        out = self.advantage(features, noisy).reshape(-1, self.actions, self.numbers)
        if self.value is None:
            return out
        return self.value(features, noisy).unsqueeze(1) + out - out.mean(1, keepdim=True)
