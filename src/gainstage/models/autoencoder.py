"""Variational autoencoders of vectors, conditioned on something or not, with a loss a row so that weights can act."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gainstage.models.mlp import MLP
from gainstage.ops.distributions import Gaussian, gaussian_kl

LOG_STD = (-4.0, 15.0)
"""Bounds of the encoder's log-std: those of the widely used conditional VAE of actions (BCQ, arXiv 1812.02900)."""


class Autoencoder(nn.Module):
    """`x "N D"` under a condition `"N C"` through a latent of `latent` numbers and back.

    Args:
        size: D.
        latent: numbers of the code.
        condition: C; 0 = none.
        hidden: widths of encoder and decoder.
        act: activation.
    """

    def __init__(
        self, size: int, latent: int, condition: int = 0, hidden: list[int] | None = None, act: str = "relu"
    ) -> None:
        super().__init__()
        hidden = [128, 128] if hidden is None else hidden
        self.latent = latent
        self.encoder = MLP([condition + size, *hidden, 2 * latent], act)
        self.decoder = MLP([condition + latent, *hidden, size], act)

    def encode(self, x: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and log-std of the code, `"N latent"` each."""
        mean, log_std = self.encoder(_joined(condition, x)).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD)

    def decode(self, z: Tensor, condition: Tensor | None = None) -> Tensor:
        """What a code stands for, `"N D"`, before any squash."""
        return self.decoder(_joined(condition, z))

    def forward(self, x: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstruction from a drawn code, mean and log-std of the code."""
        mean, log_std = self.encode(x, condition)
        return self.decode(Gaussian(mean, log_std).sample(), condition), mean, log_std


def kl_to_normal(mean: Tensor, log_std: Tensor) -> Tensor:
    """KL of the code's normal from the standard normal, mean over the code's numbers, `"N"`."""
    nothing = torch.zeros_like(mean)
    return gaussian_kl(mean, log_std, nothing, nothing) / mean.shape[-1]


def _joined(condition: Tensor | None, x: Tensor) -> Tensor:
    return x if condition is None else torch.cat((condition, x), -1)
