"""Where an environment step's time goes, stage by stage, beside what its matrix products alone would need.

    ./gs python benchmarks/control_profile.py
    ./gs python benchmarks/control_profile.py sac --task gym:HalfCheetah-v5 --steps 5000

Seconds are those of the process, on one thread unless told otherwise. The floor is the floating-point operations that
the run booked while it learned and collected, at the rate of a 256 x 256 x 256 product measured in the same run.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import torch

from gainstage.recipe import load
from gainstage.trainer import Trainer

CASES = {
    "ppo": ("cart_pole", 40_000), "dqn": ("cart_pole", 16_000), "sac": ("gym:HalfCheetah-v5", 3_000),
    "td3": ("gym:HalfCheetah-v5", 3_000),
}  # fmt: skip
"""Recipe -> task and environment steps."""
SIDE = 256


class Watched(Trainer):
    """Counts the seconds of every hook, those of a hook inside another left out of the outer one."""

    def __init__(self, *args, **settings) -> None:
        self.seconds, self.inner = Counter(), [0.0]
        super().__init__(*args, **settings)

    def _within(self, part, hook, function, *given):
        begin = time.process_time()
        self.inner.append(0.0)
        try:
            return super()._within(part, hook, function, *given)
        finally:
            whole = time.process_time() - begin
            self.seconds[f"{part.key}.{hook}"] += whole - self.inner.pop()
            self.inner[-1] += whole


def product_rate() -> float:
    """Floating-point operations a second of one matrix product."""
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    for _ in range(50):
        a @ b
    begin = time.process_time()
    for _ in range(500):
        a @ b
    return 500 * 2 * SIDE**3 / (time.process_time() - begin)


def profile(name: str, task: str, steps: int) -> None:
    looks: list[tuple[float, float, float, Counter]] = []

    def look(row: dict[str, float]) -> None:
        flops = trainer.meter.total("flops")
        looks.append((row["budget/env_steps"], time.process_time(), flops, Counter(trainer.seconds)))

    trainer = Watched(load(name, [f"task={task}", f"budget.env_steps={steps}"]), on_row=look)
    trainer.run()
    first, last = looks[len(looks) // 3], looks[-1]
    done, spent = last[0] - first[0], last[1] - first[1]
    floor = (last[2] - first[2]) / product_rate()
    print(f"\n{name} on {task}: {1e6 * spent / done:,.0f} us an environment step, {done / spent:,.0f} steps/s")
    print(f"  {'matrix products alone (floor)':40s} {1e6 * floor / done:8,.1f} us  {floor / spent:5.0%}")
    hooks = last[3] - first[3]
    for key, seconds in hooks.most_common(7):
        print(f"  {key:40s} {1e6 * seconds / done:8,.1f} us  {seconds / spent:5.0%}")
    rest = spent - hooks.total()
    print(f"  {'between the hooks':40s} {1e6 * rest / done:8,.1f} us  {rest / spent:5.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=list(CASES), help=f"recipes; without: {', '.join(CASES)}")
    parser.add_argument("--task", help="another task than the usual one")
    parser.add_argument("--steps", type=int, help="environment steps")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.names:
        task, steps = CASES.get(name, ("cart_pole", 10_000))
        profile(name, options.task or task, options.steps or steps)


if __name__ == "__main__":
    main()
