"""Environment steps per second and peak memory against other libraries, same hyper-parameters, same environment.

    python -m venv peers && peers/bin/pip install stable-baselines3 "gymnasium[mujoco]" sbx-rl
    ./gs python benchmarks/control_vs_peers.py --peer-python peers/bin/python
    ./gs python benchmarks/control_vs_peers.py --peer-python peers/bin/python --cases sac_halfcheetah --rounds 5

Peers are those of `sb3` (Stable-Baselines3, PyTorch) and `sbx` (the same on JAX) that the other interpreter can import.
Every measurement is a process of its own; house and peers take turns, so that a noisy machine hits all, and the ratio
of the medians is what counts. The clock runs from the first update on. `--cpu` takes the processes' own seconds, which
other processes disturb less than the clock on the wall. SAC and TD3 make one update for every environment step, all in
turns of 50 as the recipes have it; `--turns 1` lets the peers take theirs one by one, as they do by default.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WARM = 1000
CASES = {
    # name: (recipe, changes, class, environment, its copies, steps to measure)
    "ppo_cartpole": ("ppo", ["task=cart_pole"], "PPO", "CartPole-v1", 8, 20480),
    "ppo_cartpole_gym": ("ppo", ["task=gym:CartPole-v1"], "PPO", "CartPole-v1", 8, 20480),
    "ppo_halfcheetah": ("ppo_continuous", ["task=gym:HalfCheetah-v5"], "PPO", "HalfCheetah-v5", 1, 8192),
    "sac_halfcheetah": ("sac", ["task=gym:HalfCheetah-v5"], "SAC", "HalfCheetah-v5", 1, 2000),
    "td3_halfcheetah": ("td3", ["task=gym:HalfCheetah-v5"], "TD3", "HalfCheetah-v5", 1, 2000),
    "dqn_cartpole": ("dqn", ["task=cart_pole"], "DQN", "CartPole-v1", 8, 16000),
}


def settings(case: str, turns: int) -> dict:
    """What the recipe says, in the peers' words. Read off it, so that both sides change together."""
    from gainstage.recipe import load

    name, changes, *_ = CASES[case]
    recipe = load(name, changes)
    steps = next(entry["env_steps"] for entry in recipe.rollout if "env_steps" in entry)
    learner = next(iter(recipe.update[0].values()))
    found = {"batch_size": recipe.plan.minibatch, "learning_rate": learner["lr"]}
    if case.startswith("ppo"):
        weight = next((o["entropy_bonus"]["weight"] for o in learner["objectives"] if "entropy_bonus" in o), 0.0)
        return {
            **found, "n_steps": steps["steps"], "n_epochs": recipe.plan.epochs, "max_grad_norm": learner["clip"],
            "ent_coef": weight,
        }  # fmt: skip
    found |= {"buffer_size": recipe.store["replay"]["capacity"], "learning_starts": WARM}
    hidden = recipe.models["policy"].get("hidden", [256, 256])
    found["policy_kwargs"] = {"net_arch": hidden}
    if case.startswith("dqn"):
        counts = {"train_freq": steps["steps"], "gradient_steps": recipe.plan.updates}
        # the peers' targets follow at most once a step of all copies, the recipe's at every update
        lag = {"tau": recipe.models["policy_target"]["tau"], "target_update_interval": steps["copies"]}
        return {**found, **counts, **lag}
    return {**found, "train_freq": turns, "gradient_steps": turns}


class Clock:
    """Times and steps from the first look after the warm-up to the last."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, float, float]] = []

    def look(self, steps: float) -> None:
        self.looks.append((steps, time.perf_counter(), time.process_time()))

    def rates(self) -> dict[str, float]:
        (first, *began), (last, *ended) = self.looks[0], self.looks[-1]
        wall, cpu = ended[0] - began[0], ended[1] - began[1]
        return {"wall": (last - first) / wall, "cpu": (last - first) / cpu}


def house(case: str, threads: int, wanted: int) -> Clock:
    import torch

    from gainstage.recipe import load
    from gainstage.trainer import Trainer

    torch.set_num_threads(threads)
    recipe, changes, _, _, _, steps = CASES[case]
    steps, clock = wanted or steps, Clock()

    def row(numbers: dict[str, float]) -> None:
        if numbers["budget/env_steps"] > WARM:  # at least one turn of updates lies behind
            clock.look(numbers["budget/env_steps"])

    Trainer(load(recipe, [*changes, f"budget.env_steps={WARM + steps}"]), on_row=row).run()
    return clock


def peer(which: str, case: str, threads: int, said: dict, wanted: int) -> Clock:
    import warnings

    warnings.filterwarnings("ignore")
    import importlib

    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(threads)
    _, _, kind, environment, copies, steps = CASES[case]
    made = getattr(importlib.import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[which]), kind)
    env = make_vec_env(environment, copies)
    if case == "ppo_halfcheetah":
        env = VecNormalize(env)
    clock = Clock()

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.num_timesteps > WARM:
                clock.look(self.num_timesteps)

    model = made("MlpPolicy", env, seed=0, device="cpu", **said)
    model.learn(WARM + (wanted or steps), callback=Watch())
    clock.look(model.num_timesteps)
    return clock


def worker(which: str, case: str, threads: int, said: dict, steps: int) -> None:
    """Print what one measurement found."""
    clock = house(case, threads, steps) if which == "house" else peer(which, case, threads, said, steps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("RESULT " + json.dumps({**clock.rates(), "peak": peak}))


def measure(python: str, which: str, case: str, options: argparse.Namespace) -> dict[str, float]:
    """One measurement in a process of its own.

    Raises:
        RuntimeError: it ended without a result; its last words.
    """
    command = [python, str(Path(__file__).resolve()), "--worker", which, "--cases", case]
    for name in ("threads", "steps"):
        command += [f"--{name}", str(getattr(options, name))]
    command += ["--said", json.dumps(settings(case, options.turns))]
    with tempfile.TemporaryDirectory() as place:  # MuJoCo writes its complaints to where it stands
        done = subprocess.run(command, capture_output=True, text=True, cwd=place, env=os.environ | _paths())
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise RuntimeError((done.stderr.strip().splitlines() or ["no result"])[-1])


def _paths() -> dict[str, str]:
    """PYTHONPATH with places that hold from anywhere."""
    places = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(str(Path(place).resolve()) for place in places.split(os.pathsep) if place)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", default="", help="interpreter of the environment with the peers")
    parser.add_argument("--peers", nargs="*", default=["sb3", "sbx"])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=50, help="the peers' steps, and updates, in turn, of SAC and TD3")
    parser.add_argument("--cpu", action="store_true", help="CPU seconds of the process instead of the wall's")
    parser.add_argument("--steps", type=int, default=0, help="environment steps of a measurement; 0: the case's own")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    parser.add_argument("--said", default="{}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker, options.cases[0], options.threads, json.loads(options.said), options.steps)
    pythons = {"house": sys.executable} | (
        dict.fromkeys(options.peers, options.peer_python) if options.peer_python else {}
    )
    axis = "cpu" if options.cpu else "wall"
    for case in options.cases:
        found: dict[str, list[dict[str, float]]] = {which: [] for which in pythons}
        for _ in range(options.rounds):
            for which, python in pythons.items():
                try:
                    found[which].append(measure(python, which, case, options))
                except RuntimeError as error:
                    print(f"{case}: {which} did not run: {error}", file=sys.stderr)
        if not found["house"]:
            sys.exit(f"{case}: there is nothing to compare the peers with")
        own = statistics.median(one[axis] for one in found["house"])
        print(f"{case}, {options.threads} thread(s), {axis} seconds, median of {options.rounds}")
        for which, several in found.items():
            if several:
                rate = statistics.median(one[axis] for one in several)
                peak = statistics.median(one["peak"] for one in several)
                print(f"  {which:6s}{rate:9,.0f} steps/s {peak:7,.0f} MB   house {own / rate:.2f} x", flush=True)
    return None


if __name__ == "__main__":
    main()
