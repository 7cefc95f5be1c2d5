"""Q-learning on a chain at discounts from 0.1 to 0.99, in ordinary and in log space: where is the best action found?

    python examples/log_q_chain.py --widths 2 --gammas 0.5 0.9

50 states in a row, a reward of 1 for leaving at the left end and of -1 at the right, moves reversed with probability
1/4, features that 1 to 3 neighbouring states share. With a low discount the values of neighbours differ by orders of
magnitude along the chain, and shared features cannot hold them; their logarithms differ by the same amount everywhere
(van Seijen et al., arXiv 1906.00572). Printed: the share of the second half of the sweeps in which going left is the
better action in all states.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from gainstage.credit.returns.value_mapping import mapped_target
from gainstage.ops.value_maps import Identity, OffsetLog, ValueMap, forward, inverse, steps_floor
from gainstage.tasks.control.tabular import Chain

GAMMAS = (0.1, 0.2, 0.5, 0.8, 0.9, 0.96, 0.99)
STEPS = 200
"""Steps that the logarithm tells apart."""
CAP = 1.0
"""Largest return of the chain. Without it, shared features feed errors back to themselves through the exponential."""


def decayed(start: float, end: float, sweep: int, over: int) -> float:
    """From `start` to `end` in a geometric line."""
    return start * (end / start) ** min(sweep / over, 1.0)


def maps_of(gamma: float, log: bool) -> tuple[list[ValueMap], Tensor]:
    """The maps of the channels, and what each counts: one signed channel, or what is good and what is bad."""
    if not log:
        return [Identity()], torch.ones(1, dtype=torch.float64)
    one = OffsetLog(c=1.0, offset=steps_floor(gamma, STEPS))
    return [one, one], torch.tensor([1.0, -1.0], dtype=torch.float64)


def share_solved(width: int, gamma: float, log: bool, sweeps: int = 20_000, seeds: int = 2, length: int = 50) -> Tensor:
    """Share of the last half of the sweeps in which left is strictly better everywhere, of each seed, `"seeds"`.

    A sweep visits every state and action once, with one outcome each, and changes the weights by all of them at once.
    """
    chain = Chain(length=length, view="tiles", width=width)
    features, generator = chain.tiles.double(), torch.Generator().manual_seed(0)
    maps, signs = maps_of(gamma, log)
    weights = torch.zeros(len(maps), seeds, features.shape[1], 2, dtype=torch.float64)
    start = forward(maps, torch.zeros(len(maps), 1)).reshape(-1, 1, 1, 1)  # an output of 0 stands for the value 0
    left = torch.arange(length).unsqueeze(1) - torch.tensor([1, -1])  # where each action means to go, S 2
    right = torch.arange(length).unsqueeze(1) + torch.tensor([1, -1])
    solved = torch.zeros(seeds, dtype=torch.float64)
    for sweep in range(sweeps):
        over = sweeps // 5
        beta = decayed(1.0, 0.1, sweep, over) if log else 1.0
        rate = decayed(0.5, 0.1, sweep, over) if log else decayed(0.5, 0.02, sweep, over)
        out = features @ weights + start  # L seeds S 2
        values = inverse(maps, out)
        best = torch.einsum("l,lnsa->nsa", signs, values).argmax(-1)
        after = values.gather(-1, best.expand(len(maps), *best.shape).unsqueeze(-1)).squeeze(-1)  # L seeds S
        to = torch.where(torch.rand(seeds, length, 2, generator=generator) < chain.reversal, right, left)
        paid = (to < 0).double() - (to >= length).double()
        ends = paid != 0
        rewards = torch.stack([(sign * paid).clamp(min=0) for sign in signs]) if log else paid.unsqueeze(0)
        goes = to.clamp(0, length - 1).flatten(1).expand(len(maps), -1, -1)
        onward = after.gather(-1, goes).reshape(rewards.shape)
        target = mapped_target(rewards, ends, onward, values, maps, gamma, beta, cap=CAP)
        weights = weights + rate * torch.einsum("sf,lnsa->lnfa", features, target - out)
        if sweep >= sweeps // 2:
            total = torch.einsum("l,lnsa->nsa", signs, inverse(maps, features @ weights + start))
            solved += (total[..., 0] > total[..., 1]).all(1)
    return solved / (sweeps - sweeps // 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--gammas", type=float, nargs="+", default=list(GAMMAS))
    parser.add_argument("--sweeps", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=2)
    settings = parser.parse_args()
    print("width  gamma  ordinary  log")
    for width in settings.widths:
        for gamma in settings.gammas:
            both = [share_solved(width, gamma, log, settings.sweeps, settings.seeds).mean() for log in (False, True)]
            print(f"{width:5d}  {gamma:5.2f}  {both[0]:8.3f}  {both[1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
