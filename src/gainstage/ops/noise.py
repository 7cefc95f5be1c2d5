"""Stateless randomness: a draw depends on its key and its position, never on what was drawn before.

A counter-based generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") has no
state to save, to seed or to share: workers, batches and restarts all see the same noise.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_GOLDEN = -0x61C8864680B583EB  # 2**64 / golden ratio, as a signed number
_MIX_1 = -0x40A7B892E31B1A47  # multipliers of the SplitMix64 finaliser (Steele, Lea, Flood 2014)
_MIX_2 = -0x6B2FB644ECCEEE15


def mix(*parts: int | str) -> int:
    """A stable hash of integers and strings: the same on every machine, run and Python version.

    Args:
        parts: what the number stands for, e.g. `(seed, iteration, group, sample)`; order counts.

    Returns:
        A number in [0, 2**63): fits a signed 64-bit tensor and every seeding function.

    Raises:
        TypeError: a part is neither an integer nor a string.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, int):
            digest.update(b"i%d;" % part)
        elif isinstance(part, str):
            data = part.encode()
            digest.update(b"s%d:" % len(data) + data)
        else:
            raise TypeError(f"mix takes integers and strings, got {type(part).__name__}: {part!r}")
    return int.from_bytes(digest.digest(), "little") >> 1


def signed(key: int) -> int:
    """Any integer as the signed 64-bit number with the same low 64 bits."""
    return ((key + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift; that of signed tensors copies the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _finalise(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def uniform(keys: Tensor, position: int | Tensor) -> Tensor:
    """Independent uniform numbers in the open interval (0, 1), one for each key and position.

    Args:
        keys: `Int64 "*"`; neighbouring keys are as independent as distant ones.
        position: counter inside a key's stream, a number or a tensor that broadcasts against `keys`.

    Returns:
        `Float64 "*"`, multiples of 2**-52 plus 2**-53: neither 0 nor 1.
    """
    counter = torch.as_tensor(position, dtype=torch.int64, device=keys.device) + 1
    bits = _finalise(_finalise(keys.to(torch.int64) + _GOLDEN) + counter * _GOLDEN)
    return (_shift(bits, 12).to(torch.float64) + 0.5) * 2.0**-52
