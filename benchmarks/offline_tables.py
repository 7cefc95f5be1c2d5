"""Tables of offline learning and success conditioning: sweeps and ablations around the checks in the catalogue.

    python benchmarks/offline_tables.py TABLE [--seeds 3] [--first 0] [--budget 640000] [--out FILE]

Each row is an arm: recipe and changes. Returns are brought to [0, 1] between the random and the expert controller where
a table says so; the interval is Student's over seeds. Rows are printed as they end.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from gainstage.chain import build_task
from gainstage.recipe import load
from gainstage.running import Run

Arm = tuple[str, str, list[str]]
"""Label, recipe, changes."""
LOOK = [
    "evaluate.problems=128",
    "evaluate.samples=1",
    "evaluate.final_samples=1",
    "evaluate.every=1",
    "save.rollouts=0",
]
SHARP = [
    "credit.smoothed_target.noise=0.05", "credit.smoothed_target.noise_clip=0.1", "update.td.schedule=cosine",
    "update.behaviour_term.schedule=cosine",
]  # fmt: skip
"""What hits a small target, for the raw learner too."""
MAZE = "{point_maze: {maze: open, start: drawn, goal: drawn, reward: dense, max_steps: 50%s}}"


def recorded(task: str, mix: str, episodes: int = 200) -> str:
    return f'task={{recorded: {{task: {task}, mix: "{mix}", episodes: {episodes}}}}}'


def numbers(method: str, changes: list[str], seed: int) -> dict[str, float]:
    """What a run ended with, evaluation and log together."""
    run = Run(load(method, [*LOOK, *changes, f"seed={seed}"]))
    run.execute()
    out: dict[str, float] = {}
    for row in run.curve:
        out |= {key.split("/", 2)[-1] if key.startswith("eval/") else key: value for key, value in row.items()}
    return out


def interval(values: list[float], digits: int = 2) -> str:
    """Mean and Student's 95 % interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    half = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


class Table:
    """Rows on the screen and, where wanted, in a file."""

    def __init__(self, out: Path | None, *heads: str) -> None:
        self.out = out
        self.row(*heads)
        self.row(*("---" for _ in heads))

    def row(self, *cells: str) -> None:
        line = "| " + " | ".join(cells) + " |"
        print(line, flush=True)
        if self.out is not None:
            with self.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def measured(arms: list[Arm], seeds: range, keys: list[str]) -> Iterator[tuple[str, dict[str, list[float]]]]:
    for label, method, changes in arms:
        runs = [numbers(method, changes, seed) for seed in seeds]
        yield label, {key: [run[key] for run in runs if key in run] for key in keys}


def share(task: str, values: list[float]) -> list[float]:
    low, high = build_task(load("bc", [task]).task).it.reference
    return [(value - low) / (high - low) for value in values]


# -- tables ------------------------------------------------------------------------------------------------------------


def psv(args: argparse.Namespace) -> None:
    """Gain of weighting over the mean of the data, by positive-sided variance of their returns."""
    table = Table(
        args.out, "expert share", "learner", "data mean", "PSV", "uniform", "weighted by return", "gain over J"
    )
    for expert in (0.01, 0.03, 0.1, 0.3):
        task = recorded("pendulum", f"random={1 - expert:g},expert={expert:g}")
        for learner in ("bc", "td3_bc"):
            base = [task, f"budget.transitions={args.budget}"]
            arms: list[Arm] = [("u", learner, base), ("w", learner, [*base, "select=[trajectory_weights]"])]
            found = dict(measured(arms, args.runs, ["reward/mean", "data/psv_scaled", "data/mean"]))
            data = share(task, found["w"]["data/mean"][:1])[0]
            plain, weighted = (share(task, found[arm]["reward/mean"]) for arm in ("u", "w"))
            table.row(
                f"{expert:g}", learner, f"{data:.2f}", f"{found['w']['data/psv_scaled'][0]:.4f}", interval(plain),
                interval(weighted), interval([value - data for value in weighted]),
            )  # fmt: skip


def noise(args: argparse.Namespace) -> None:
    """Weighting where the world adds noise to actions, and where an episode's return hangs on its start."""
    table = Table(args.out, "action noise", "learner", "uniform", "weighted by return", "weighted by advantage")
    for level in (0.0, 0.1):
        task = recorded(MAZE % f", noise: {level}", "random=0.97,expert=0.03")
        for learner in ("bc", "td3_bc", "iql"):
            base = [task, f"budget.transitions={args.budget}"]
            weighted = [*base, "select=[trajectory_weights]"]
            arms: list[Arm] = [
                ("u", learner, base), ("rw", learner, weighted),
                ("aw", learner, [*base, "select=[{trajectory_weights: {score: advantage}}]"]),
            ]  # fmt: skip
            found = [
                share(task, row["reward/mean"]) for _, row in measured(arms, args.runs, ["reward/mean"])
            ]  # fmt: skip
            table.row(f"{level:g}", learner, *map(interval, found))


def shortcuts(args: argparse.Namespace) -> None:
    """Steps to the target by data: raw log, log with shortcuts, log of the augmented logger with and without them."""
    table = Table(
        args.out, "axes", "distortion", "episodes", "logged steps", "kept a step", "raw", "shortcuts",
        "augmented log", "augmented log and shortcuts",
    )  # fmt: skip
    cells = [(4, "none", n) for n in (20, 50, 200)] + [(2, "none", 20), (8, "none", 20), (4, "rotation", 20),
                                                       (4, "scaling", 20)]  # fmt: skip
    for axes, distortion, episodes in cells:
        world = f"{{positioning: {{dims: {axes}, distortion: {distortion}}}}}"
        found, kept = [], ""
        for mix in ("walk", "augmented"):
            for method in ("td3_bc", "shortcut_augmentation"):
                changes = [recorded(world, mix, episodes), f"budget.transitions={args.budget}", *SHARP]
                ((_, row),) = measured([(mix, method, changes)], args.runs, ["length/mean", "shortcuts/per_step"])
                found.append(interval(row["length/mean"], 1))
                if row["shortcuts/per_step"] and mix == "walk":
                    kept = f"{row['shortcuts/per_step'][0]:.2f}"
        data = build_task(load("bc", [recorded(world, "walk", episodes)]).task).it.transitions()
        table.row(f"{axes}", distortion, f"{episodes}", f"{data.lengths.float().mean():.1f}", kept, *found)


def values(args: argparse.Namespace) -> None:
    """What critics promise beside what is paid, with and without A2PR's gates, on mixed and on expert data."""
    table = Table(args.out, "data", "method", "return", "promised", "paid", "gap")
    report = "{value_report: {gamma: 0.97, every: 25}}"
    plain = (
        "update=[data_statistics, {td: {train: [critic], lr: 1.0e-3}}, {behaviour_term: {train: [policy], lr: 1.0e-3}}"
    )
    for mix in ("random=0.8,medium=0.2", "expert"):
        task = recorded("pendulum", mix, 300)
        base = [task, f"budget.transitions={args.budget}"]
        arms: list[Arm] = [
            ("bc", "bc", base),
            ("td3_bc", "td3_bc", [*base, f"{plain}, {report}]"]),
            ("a2pr", "a2pr", base),
            ("a2pr, no model", "a2pr", [*base, "update.guided_term.pick=false", "update.behaviour_model=null"]),
            ("a2pr, no gate", "a2pr", [*base, "update.guided_term.gate=false"]),
            ("a2pr, target not detached", "a2pr", [*base, "update.guided_term.detach_target=false"]),
        ]
        keys = ["reward/mean", "values/promised", "values/paid", "values/gap"]
        for label, row in measured(arms, args.runs, keys):
            table.row(mix, label, *(interval(row[key], 1) if row[key] else "–" for key in keys))


def thresholds(args: argparse.Namespace) -> None:
    """Conditioning on returns above a quantile, where tails are heavy: exact numbers, and ten rounds from samples."""
    from gainstage.measure.curves.policy_steps import threshold_sweep
    from gainstage.tasks.control.pareto_bandit import ParetoBandit

    task = ParetoBandit()
    u = (np.arange(20_000) + 0.5) / 20_000
    outcomes = np.array([s * u ** (-1 / t) for s, t in zip(task.scales, task.tails, strict=True)])
    table = Table(
        args.out, "quantile", "chance of it", "after", "mean return", "after", "influence", "alignment",
        "after 10 rounds, measured",
    )  # fmt: skip
    exact = threshold_sweep(np.full(len(outcomes), 1 / len(outcomes)), outcomes, np.arange(10) / 10)
    for row in exact:
        changes = [
            "task=pareto_bandit", "select=[]", "rollout=[{env_steps: {copies: 4096, steps: 1}}]",
            f"credit=[{{episode_success: {{by: return, quantile: {row['quantile']:.1f}}}}}]", "budget.env_steps=40960",
            "evaluate.problems=2000",
        ]  # fmt: skip
        ((_, found),) = measured([("", "success_conditioning", changes)], args.runs, ["reward/mean"])
        names = ("reached", "reached_after", "return", "return_after", "influence", "alignment")
        table.row(f"{row['quantile']:.1f}", *(f"{row[name]:.3f}" for name in names), interval(found["reward/mean"], 3))


def text(args: argparse.Namespace) -> None:
    """One round of success conditioning of a language model: the gain foretold, and what new answers show."""
    table = Table(args.out, "seed", "success rate", "foretold gain", "compounded", "rate after one round", "real gain")
    for seed in args.runs:
        changes = [
            "task={arithmetic: {train_size: 16}}", "select.shuffle.samples=128", "plan.groups=16", "iterations=2",
            "plan.epochs=12", "plan.minibatch=256", "budget={}", f"seed={seed}", *LOOK, "evaluate.problems=16",
        ]  # fmt: skip
        run = Run(load("success_conditioning_text", changes))
        run.execute()
        before, after = [row for row in run.curve if "success/rate" in row][:2]
        rate, new = before["success/rate"], after["success/rate"]
        told = (before["success/predicted_gain"], before["success/compounded_gain"], new, new / rate - 1)
        table.row(f"{seed}", f"{rate:.3f}", *(f"{value:.3f}" for value in told))


def processes(args: argparse.Namespace) -> None:
    """Fifty random processes: exact rounds beside gradient steps of the same size, sampled rounds with forecasts."""
    import torch

    from gainstage.measure.curves.policy_steps import counted_policy, gradient_step
    from gainstage.measure.curves.value_gaps import action_influence, estimated_influence, success_condition
    from gainstage.tasks.control.tabular import RandomMDP, backward_values

    exact: dict[str, list[float]] = {"success conditioning": [], "plain gradient": [], "natural gradient": []}
    sampled: dict[int, list[tuple[float, ...]]] = {2_000: [], 20_000: []}
    for seed in range(50):
        task = RandomMDP(seed=seed)
        pi = np.full((task.horizon, task.states, task.actions), 1 / task.actions)

        def worth(policy: Any, task: RandomMDP = task) -> float:
            return float(backward_values(task.moves, task.final, task.horizon, torch.from_numpy(policy))[1][0, 0])

        q = backward_values(task.moves, task.final, task.horizon, torch.from_numpy(pi))[0].numpy()
        true = np.stack([action_influence(p, x).influence for p, x in zip(pi, q, strict=True)])
        before = worth(pi)
        ways = (
            ("success conditioning", lambda p, x, size: success_condition(p, x)),
            ("plain gradient", lambda p, x, size: gradient_step(p, x, size)),
            ("natural gradient", lambda p, x, size: gradient_step(p, x, size, natural=True)),
        )
        for name, way in ways:
            after = worth(np.stack([way(*row) for row in zip(pi, q, true, strict=True)]))
            exact[name].append(after / before - 1)
        rng = np.random.default_rng(seed)
        moves, final = task.moves.numpy().cumsum(-1), task.final.numpy()
        for count, found in sampled.items():
            at, states, actions = np.zeros(count, int), [], []
            for _ in range(task.horizon):
                states.append(at)
                actions.append(rng.integers(task.actions, size=count))
                at = (moves[at, actions[-1]] < rng.random((count, 1))).sum(1).clip(max=task.states - 1)
            won = final[at] > 0
            plus, influence = np.empty_like(pi), np.zeros((task.horizon, task.states))
            for h, (state, action) in enumerate(zip(states, actions, strict=True)):
                cell = state * task.actions + action
                seen, good = (
                    np.bincount(part, minlength=pi[h].size).reshape(pi[h].shape) for part in (cell, cell[won])
                )
                plus[h], influence[h] = counted_policy(good, pi[h]), np.nan_to_num(estimated_influence(good, seen))
            along = [(influence[h, s[won]], true[h, s[won]]) for h, s in enumerate(states)]
            told, known = (float(np.mean(sum(part))) for part in zip(*along, strict=True))
            found.append((worth(plus) / before - 1, told, known, float(influence.mean())))
    table = Table(args.out, "from exact values", "mean relative gain", "best of the three in")
    best = np.argmax(np.array([*exact.values()]) + 1e-12 * np.array([[1], [0], [0]]), 0)
    for number, (name, gains) in enumerate(exact.items()):
        table.row(name, interval(gains, 3), f"{int((best == number).sum())} of {len(gains)}")
    table = Table(
        args.out, "episodes", "gain > 0 in", "mean relative gain", "r(foretold, real)", "r(exact forecast, real)",
        "r(mean influence, real)",
    )  # fmt: skip
    for count, found in sampled.items():
        real, *forecasts = np.array(found).T
        r = [float(np.corrcoef(part, real)[0, 1]) for part in forecasts]
        share = f"{int((real > 0).sum())} of {len(real)}"
        table.row(f"{count}", share, interval([*real], 3), *(f"{value:.2f}" for value in r))


TABLES: dict[str, Any] = {f.__name__: f for f in (psv, noise, shortcuts, values, thresholds, processes, text)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--budget", type=int, default=640_000, help="transitions of each run")
    parser.add_argument("--out", type=Path, help="file that rows are added to")
    args = parser.parse_args()
    args.runs = range(args.first, args.first + args.seeds)
    warnings.simplefilter("ignore")
    TABLES[args.table](args)


if __name__ == "__main__":
    sys.exit(main())
