"""Evolution strategies: optimisers that ask for the worth of parameter vectors and need no gradient.

Both draw mirrored samples, so that what is common to a pair cancels. Noise depends on seed and generation alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gainstage.ops.noise import mix


def shaped(fitness: Tensor, how: Literal["z", "rank"] = "z") -> Tensor:
    """Fitness of a generation, `"N"`, in units that do not depend on the task; what is not finite is the worst.

    `z`: zero mean and unit population std, 0 where all are alike. `rank`: evenly spaced in [-0.5, 0.5], equal fitness
    shares its mean rank (Salimans et al., arXiv 1703.03864).

    Raises:
        ValueError: no member has a finite fitness, or an unknown `how`.
    """
    finite = torch.isfinite(fitness)
    if not bool(finite.any()):
        raise ValueError("evolution: no member of the generation has a finite fitness; lower std, or look at one run")
    f = torch.where(finite, fitness, fitness[finite].min()).double()
    if how == "z":
        std = f.std(unbiased=False)
        return (f - f.mean()) / std if std > 1e-12 * f.abs().max() else torch.zeros_like(f)
    if how == "rank":
        below = (f.unsqueeze(0) < f.unsqueeze(1)).sum(1)
        alike = (f.unsqueeze(0) == f.unsqueeze(1)).sum(1).double()
        return (below + (alike - 1) / 2) / max(len(f) - 1, 1) - 0.5
    raise ValueError(f"evolution: fitness is z or rank, got {how!r}")


@dataclass
class Adam:
    """Steps of Adam on one vector, uphill (arXiv 1412.6980)."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def start(self, like: Tensor) -> None:
        self.first, self.second, self.count = torch.zeros_like(like), torch.zeros_like(like), 0

    def step(self, gradient: Tensor) -> Tensor:
        self.count += 1
        self.first = self.betas[0] * self.first + (1 - self.betas[0]) * gradient
        self.second = self.betas[1] * self.second + (1 - self.betas[1]) * gradient.square()
        mean = self.first / (1 - self.betas[0] ** self.count)
        size = self.second / (1 - self.betas[1] ** self.count)
        return self.lr * mean / (size.sqrt() + self.eps)


class OpenES:
    """Evolution strategy of Salimans et al. (arXiv 1703.03864): a normal of fixed width, its mean moved by Adam.

    Args:
        mean: start, `"P"`.
        population: members of a generation, even: each draw and its mirror image.
        std: width of the search.
        lr: of Adam.
        fitness: `z` or `rank`, see `shaped`.
        seed: of the draws.

    Raises:
        ValueError: an odd population, or a width or rate that is not positive.
    """

    def __init__(
        self, mean: Tensor, population: int = 16, std: float = 0.05, lr: float = 1e-2,
        fitness: Literal["z", "rank"] = "z", seed: int = 0,
    ) -> None:  # fmt: skip
        if population < 2 or population % 2:
            raise ValueError(f"evolution: population must be even and at least 2, got {population}")
        if not (std > 0 and lr > 0):
            raise ValueError(f"evolution: std and lr must be positive, got {std} and {lr}")
        self.mean, self.population, self.fitness, self.seed = mean.detach().clone(), population, fitness, seed
        self.std = torch.full_like(self.mean, std)
        self.generation = 0
        self.adam = Adam(lr)
        self.adam.start(self.mean)

    def directions(self) -> Tensor:
        """Standard normal numbers of this generation, `"N/2 P"`; the same however often they are asked for."""
        generator = torch.Generator().manual_seed(mix("evolution", self.seed, self.generation))
        return torch.randn(self.population // 2, len(self.mean), generator=generator, dtype=self.mean.dtype)

    def ask(self) -> Tensor:
        """Members of this generation, `"N P"`: all draws, then their mirror images in the same order."""
        step = self.std * self.directions()
        return torch.cat((self.mean + step, self.mean - step))

    def tell(self, fitness: Tensor) -> None:
        """Move on by the members' fitness `"N"`, more is better.

        Raises:
            ValueError: not one number a member, or none of them is finite.
        """
        if fitness.shape != (self.population,):
            raise ValueError(f"evolution: {self.population} members need as many numbers, got {tuple(fitness.shape)}")
        plus, minus = shaped(fitness, self.fitness).to(self.mean.dtype).chunk(2)
        self.move(self.directions(), plus, minus)
        self.generation += 1

    def move(self, z: Tensor, plus: Tensor, minus: Tensor) -> None:
        """Ascend the estimated gradient of the expected fitness, `mean of f z / std`."""
        gradient = ((plus - minus) @ z) / (self.population * self.std)
        self.mean = self.mean + self.adam.step(gradient)

    def state_dict(self) -> dict[str, Any]:
        return {
            "mean": self.mean, "std": self.std, "generation": self.generation,
            "first": self.adam.first, "second": self.adam.second, "count": self.adam.count,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mean, self.std, self.generation = state["mean"].clone(), state["std"].clone(), int(state["generation"])
        self.adam.first, self.adam.second = state["first"].clone(), state["second"].clone()
        self.adam.count = int(state["count"])


class PGPE(OpenES):
    """Policy gradients with parameter-based exploration (Sehnke et al. 2010): the width of each number is learned too.

    A draw wider than one std that does better than the generation's mean widens the search there, and the other way
    round. One generation changes no std by more than `most` of itself.

    Args:
        std_lr: rate of the std.
        most: bound of its relative change.
    """

    def __init__(self, mean: Tensor, *args: Any, std_lr: float = 0.1, most: float = 0.2, **settings: Any) -> None:
        super().__init__(mean, *args, **settings)
        if not (std_lr >= 0 and 0 < most < 1):
            raise ValueError(f"evolution: std_lr must be at least 0 and most in (0, 1), got {std_lr} and {most}")
        self.std_lr, self.most = std_lr, most

    def move(self, z: Tensor, plus: Tensor, minus: Tensor) -> None:
        better = (plus + minus) / 2 - torch.cat((plus, minus)).mean()
        widen = self.std_lr * (better @ (z.square() - 1)) / (self.population / 2)
        super().move(z, plus, minus)
        self.std = self.std * (1 + widen.clamp(-self.most, self.most))
