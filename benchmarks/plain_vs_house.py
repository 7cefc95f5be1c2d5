"""What the composition costs: a recipe's step against its single-file twin, in one run.

    ./gs python benchmarks/plain_vs_house.py
    ./gs python benchmarks/plain_vs_house.py ppo

The two take turns, so that a noisy machine hits both; the ratio of the medians is what counts (ceiling 1.25 for small
nets and the embedded model, 1.02 for a language model where the model itself takes the time). Seconds are those of the
process (CPU), which other processes disturb less than the clock on the wall; --wall takes that one.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from pathlib import Path

import torch

from gainstage.recipe import load
from gainstage.trainer import Trainer

STEPS = {"grpo": 0, "ppo": 1024, "sac": 50}
"""Twin -> environment steps of an iteration, by which control runs are cut; 0: cut by iterations."""
BEFORE = {"sac": 1000}
"""Twin -> environment steps before the first update, which cost next to nothing and are not counted."""


def twin(name: str):
    path = Path(__file__).resolve().parent.parent / "examples" / "plain" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def house(name: str, iterations: int) -> None:
    end = (
        f"budget.env_steps={iterations * STEPS[name] + BEFORE.get(name, 0)}"
        if STEPS[name]
        else f"iterations={iterations}"
    )
    Trainer(load(name, [end])).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=list(STEPS), help=", ".join(STEPS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=6, help="iterations a round; three times as many in control")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="time on the wall instead of the process's own")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.wall else time.process_time
    for name in options.names:
        plain, iterations = twin(name), options.iterations * (3 if STEPS[name] else 1)
        runs = {
            "house": lambda name=name, n=iterations: house(name, n),
            "plain": lambda plain=plain, name=name, n=iterations: plain.main(
                n * (STEPS[name] or 1) + BEFORE.get(name, 0), quiet=True
            ),
        }
        times: dict[str, list[float]] = {"house": [], "plain": []}
        for number in range(options.rounds + 1):
            for which, run in runs.items():
                started = clock()
                run()
                if number:  # the first round warms up
                    times[which].append((clock() - started) / iterations)
        medians = {which: statistics.median(values) for which, values in times.items()}
        ratios = sorted(h / p for h, p in zip(times["house"], times["plain"], strict=True))
        print(f"{name}, {options.threads} thread(s), {options.rounds} rounds of {iterations} iterations")
        for which, value in medians.items():
            rate = f", {STEPS[name] / value:,.0f} environment steps a second" if STEPS[name] else ""
            print(f"  {which} {1e3 * value:7.1f} ms an iteration{rate}")
        print(
            f"  ratio {medians['house'] / medians['plain']:.3f} (rounds {ratios[0]:.3f} to {ratios[-1]:.3f}, "
            f"median of rounds {statistics.median(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
