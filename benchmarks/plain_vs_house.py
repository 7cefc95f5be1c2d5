"""What the composition costs: a recipe's step against its single-file twin, in one run.

    ./gs python benchmarks/plain_vs_house.py

The two take turns, so that a noisy machine hits both; the ratio of the medians is what counts (ceiling 1.25 for the
embedded model, 1.02 for a language model where the model itself takes the time).
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


def twin(name: str):
    path = Path(__file__).resolve().parent.parent / "examples" / "plain" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=6, help="iterations a round")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plain = twin("grpo")
    house_times, plain_times = [], []
    for _ in range(options.rounds):
        trainer = Trainer(load("grpo", [f"iterations={options.iterations}"]))
        started = time.perf_counter()
        trainer.run()
        house_times.append((time.perf_counter() - started) / options.iterations)
        plain_times.append(plain.main(options.iterations, quiet=True)[1])
    house, alone = statistics.median(house_times), statistics.median(plain_times)
    ratios = sorted(h / p for h, p in zip(house_times, plain_times, strict=True))
    print(f"grpo on micro, {options.threads} thread(s), {options.rounds} rounds of {options.iterations} iterations")
    print(f"  house {1e3 * house:7.1f} ms an iteration\n  plain {1e3 * alone:7.1f} ms an iteration")
    print(f"  ratio {house / alone:.3f} (rounds {ratios[0]:.3f} to {ratios[-1]:.3f})")


if __name__ == "__main__":
    main()
