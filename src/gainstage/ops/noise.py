"""Stateless randomness: a draw depends on its key and its position, never on what was drawn before.

A counter-based generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") has no
state to save, to seed or to share: workers, batches and restarts all see the same noise.
"""

from __future__ import annotations

import hashlib

import numpy as np
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


def uniform32(keys: Tensor, counter: Tensor, count: int) -> Tensor:
    """The next `count` uniform numbers of streams whose keys are hashes already, as those of `mix` are.

    The stream of a key is SplitMix64 started there (Steele, Lea, Flood 2014), half the work of `uniform`; neighbouring
    keys would have streams that are alike.

    Args:
        keys: `Int64 "S"`.
        counter: `Int64 "S"`, how many of each stream were drawn before.
        count: how many to draw.

    Returns:
        `Float32 "S count"` in (0, 1), odd multiples of 2**-24: neither 0 nor 1.
    """
    if keys.device.type == "cpu":
        return torch.from_numpy(_uniform32(keys.numpy().view(np.uint64), counter.numpy().view(np.uint64), count))
    places = counter.unsqueeze(1) + torch.arange(1, count + 1, device=counter.device)
    bits = _finalise(keys.unsqueeze(1) + places * _GOLDEN)
    return _shift(bits, 41).to(torch.float32) * 2.0**-23 + 2.0**-24


def _uniform32(keys: np.ndarray, counter: np.ndarray, count: int) -> np.ndarray:
    """The same on CPU: shifts of unsigned numbers, and cheap calls, of which a small draw consists."""
    golden = np.uint64(_GOLDEN % 2**64)
    x = (keys + counter * golden)[:, None] + np.arange(1, count + 1, dtype=np.uint64) * golden
    x ^= x >> np.uint64(30)
    x *= np.uint64(_MIX_1 % 2**64)
    x ^= x >> np.uint64(27)
    x *= np.uint64(_MIX_2 % 2**64)
    x ^= x >> np.uint64(31)
    x >>= np.uint64(41)
    drawn = x.astype(np.float32)
    drawn *= np.float32(2.0**-23)
    drawn += np.float32(2.0**-24)
    return drawn
