"""What the entries of a reward list say, put together: facts when experience is written, rewards at every read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gainstage.chain import Chain, total_reward
from gainstage.types import Batch, Stop, Trajectory

Call = Callable[..., Any]
"""`(part, hook, *args)`: calls a hook of a component."""
COLUMNS = {"row": "reward", "turn": "turn_rewards", "step": "rewards"}


def judge(chain: Chain, got: list[Trajectory], ctx: Any, call: Call) -> list[Trajectory]:
    """Facts about each trajectory. Rows that FAILED or have no finite verdict are dropped and counted.

    A component that says `verifies` checks every answer by itself: each is charged as a call of a verifier.
    """
    alive = [t for t in got if t.stop is not Stop.FAILED]
    ctx.log("failures/rollout", len(got) - len(alive))
    rows, values = [], []
    for part in [part for part in chain.reward if part.has("judge")] if alive else []:
        said = call(part, "judge", alive, ctx)
        if getattr(part.it, "verifies", False):
            ctx.meter.charge("verifier_calls", len(alive), part.key)
        for transform in part.options.get("then", []):
            said = transform(said)
        for trajectory, value in zip(alive, said, strict=True):
            trajectory.parts[part.name] = value
        rows.append(part)
        values.append(said)
    if not rows:
        for trajectory in alive:
            trajectory.columns["reward"] = torch.tensor(0.0)
        return alive
    totals = total_reward(rows, values)
    for name in totals.failed.values():
        ctx.log(f"failures/reward/{name}", 1)
    kept = []
    for trajectory, total in zip(alive, totals.values, strict=True):
        if total is not None:
            trajectory.columns["reward"] = torch.tensor(total, dtype=torch.float32)
            kept.append(trajectory)
    ctx.log("dropped/unjudged", len(alive) - len(kept) - len(totals.failed))
    return kept


def shape(chain: Chain, batch: Batch, ctx: Any, call: Call) -> None:
    """Rewards that are learned, relabelled or scheduled: computed at every read.

    They go to the rewards of their level, or to the `column` that a component names: a stream of its own.
    """
    for part in chain.reward:
        if not part.has("shape"):
            continue
        value = call(part, "shape", batch, ctx)
        for transform in part.options.get("then", []):
            value = transform(value)
        value = value * float(part.options.get("weight", 1.0))
        name = getattr(part.it, "column", None) or COLUMNS[getattr(part.it, "level", "row")]
        combine = part.options.get("combine", getattr(part.it, "combine", "sum"))
        replace = combine == "replace" or name not in batch
        batch[name] = value if replace else batch[name] + value
