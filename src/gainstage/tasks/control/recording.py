"""Recording episodes: who acts, from which starts, in which proportion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gainstage.ops.masked import over
from gainstage.ops.noise import mix
from gainstage.tasks.control.augmented_logger import AugmentedLogger
from gainstage.tasks.control.batched_env import seats
from gainstage.tasks.control.controllers import Controller, CoordinateWalk, Noisy, expert
from gainstage.types.episodes import Episode
from gainstage.types.spaces import Box, Space, random_choices

COPIES = 16
"""Episodes that are played side by side."""
LONGEST = 100_000
"""Steps after which an episode that nothing ends is cut off."""
MEDIUM = 0.5
"""Share of random actions that makes a scripted expert a medium one."""
MIXES: dict[str, dict[str, float]] = {
    "random": {"random": 1.0},
    "medium": {"medium": 1.0},
    "expert": {"expert": 1.0},
    "walk": {"walk": 1.0},
    "augmented": {"augmented": 1.0},
    "medium-expert": {"medium": 0.5, "expert": 0.5},
    "random-medium": {"random": 0.8, "medium": 0.2},
    "random-expert": {"random": 0.95, "expert": 0.05},
}
"""Mixtures by name: shares of the episodes."""


class Random(Controller):
    """Uniform over the action space; standard normal where numbers have no bounds."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        self.space, self.generator = space, torch.Generator().manual_seed(seed)

    def act(self, obs: Tensor) -> Tensor:
        space, rows, g = self.space, len(obs), self.generator
        if not isinstance(space, Box):
            return random_choices(space, rows, g)
        if not space.bounded:
            return torch.randn(rows, *space.shape, generator=g)
        return space.low + (space.high - space.low) * torch.rand(rows, *space.shape, generator=g)


class Acting(Controller):
    """A trained policy as a controller.

    Args:
        policy: a handle with `act` and `to_env`.
        explore: draw actions as in training; false: the likeliest one.
        seed: of the draws.
    """

    def __init__(self, policy: Any, explore: bool = False, seed: int = 0) -> None:
        self.policy, self.explore, self.seed, self.calls = policy, explore, seed, 0
        self.memory: Any = None

    def reset(self, ended: Tensor) -> None:
        if not hasattr(self.policy, "initial_state"):
            return
        if self.memory is None or len(self.memory) != len(ended):
            self.memory = self.policy.initial_state(len(ended))
        self.memory = torch.where(over(ended, self.memory), 0.0, self.memory)

    def act(self, obs: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(mix("acting", self.seed, self.calls) % 2**63)
            self.calls += 1
            act = self.policy.act(obs.to(self.policy.device), self.memory, explore=self.explore)
        self.memory = act.state
        return self.policy.to_env(act.action).cpu()

    def rewarded(self, reward: Tensor) -> None:
        """Tell a policy that is asked for a return what came."""
        if hasattr(self.policy, "rewarded"):
            self.memory = self.policy.rewarded(self.memory, reward)


def controller(name: str, task: Any, seed: int = 0) -> Controller:
    """A controller by name: `random`, `expert`, `medium` (an expert with every second action random), `walk`, and
    `augmented`, a walk that tries shortcuts which it learns from its own log.

    Raises:
        ValueError: unknown name, or the task has no such script.
    """
    if name == "random":
        return Random(task.action_space, seed)
    if name == "expert":
        return expert(task)
    if name == "medium":
        return Noisy(expert(task), task.action_space, epsilon=MEDIUM, seed=seed)
    if name in ("walk", "augmented"):
        if not hasattr(task, "reach") or not hasattr(task, "dims"):
            raise ValueError(f"{task.name}: a coordinate walk is for the task positioning")
        walk = CoordinateWalk(task)
        return walk if name == "walk" else AugmentedLogger(task, walk, seed=seed)
    raise ValueError(f"{name!r} is no policy: random, expert, medium, walk, augmented, or the folder of a finished run")


def parse_mix(text: str | Mapping[str, float]) -> dict[str, float]:
    """Shares by policy, scaled to 1: a name of `MIXES`, `expert=0.3,random=0.7`, a single policy, or a mapping.

    Raises:
        ValueError: no number, a share that is not positive and finite.
    """
    if isinstance(text, Mapping):
        found = {str(key): float(value) for key, value in text.items()}
    elif text in MIXES:
        return dict(MIXES[text])
    elif "=" not in text:
        return {text: 1.0}
    else:
        found = {}
        for item in text.split(","):
            name, _, share = item.rpartition("=")
            try:
                found[name.strip()] = float(share)
            except ValueError:
                raise ValueError(f"mix {text!r}: {share!r} is no number; write it as expert=0.3,random=0.7") from None
    total = sum(found.values())
    if not found or "" in found or not all(0 < value < math.inf for value in found.values()):
        raise ValueError(f"mix {text!r}: every policy needs a positive share; write it as expert=0.3,random=0.7")
    return {name: value / total for name, value in found.items()}


def assign(shares: Mapping[str, float], count: int, seed: int) -> list[str]:
    """Which policy plays each of `count` episodes: shares by largest remainder, in an order of its own seed."""
    exact = {name: share * count for name, share in shares.items()}
    whole = {name: int(value + 1e-9) for name, value in exact.items()}
    short = sorted(exact, key=lambda name: whole[name] - exact[name])
    for name in short[: count - sum(whole.values())]:
        whole[name] += 1
    names = [name for name, number in whole.items() for _ in range(number)]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(mix("assign", seed) % 2**63)).tolist()
    return [names[place] for place in order]


def episodes(
    task: Any, controller: Controller, seeds: Sequence[int], *, copies: int = COPIES, source: int | None = None,
    facts: Sequence[str] = (), limit: int = LONGEST,
) -> Iterator[Episode]:  # fmt: skip
    """One episode from each seed, in their order; actions as the environment took them.

    Args:
        copies: episodes side by side; what a controller draws depends on it.
        source: number of the controller, kept as a fact `source` of each step.
        facts: facts of a step that are kept.
        limit: steps after which an episode is cut off.
    """
    env = task.make(seats(task, min(copies, len(seeds))))
    try:
        for first in range(0, len(seeds), env.size):
            wave = list(seeds[first : first + env.size])
            spare = [mix("spare", wave[0], copy) % 2**31 for copy in range(env.size - len(wave))]
            yield from _wave(env, controller, [*wave, *spare], len(wave), source, facts, limit)
    finally:
        env.close()


def _wave(
    env: Any,
    controller: Controller,
    seeds: list[int],
    wanted: int,
    source: int | None,
    facts: Sequence[str],
    limit: int,
) -> Iterator[Episode]:
    obs = env.reset(seeds)
    controller.reset(torch.ones(env.size, dtype=torch.bool))
    seen, kept = [obs.cpu()], list[tuple[Any, ...]]()
    length = torch.full((env.size,), limit)
    running = torch.ones(env.size, dtype=torch.bool)
    tell = getattr(controller, "rewarded", None)
    for step in range(limit):
        action = controller.act(obs)
        stepped = env.step(action.to(env.device))
        ends = (stepped.terminated | stepped.truncated).cpu()
        if tell is not None:
            tell(stepped.reward)
        info = {name: stepped.info[name].cpu() for name in facts if name in stepped.info}
        kept.append((action.cpu(), stepped.reward.cpu(), stepped.terminated.cpu(), stepped.truncated.cpu(), info))
        seen.append(stepped.next_obs.cpu())
        length = torch.where(running & ends, step + 1, length)
        running &= ~ends
        if not bool(running[:wanted].any()):
            break
        controller.reset(ends)
        obs = stepped.obs
    columns = [torch.stack([row[place] for row in kept], 1) for place in range(4)]
    info = {name: torch.stack([row[4][name] for row in kept], 1) for name in kept[0][4]}
    shown = torch.stack(seen, 1)
    for copy in range(wanted):
        size = int(length[copy])
        action, reward, terminated, truncated = (column[copy, :size] for column in columns)
        truncated = truncated & ~terminated
        if bool(running[copy]):
            truncated[-1] = True
        extra = {name: value[copy, :size] for name, value in info.items()}
        if source is not None:
            extra["source"] = torch.full((size,), float(source))
        yield Episode(shown[copy, : size + 1], action, reward.float(), terminated, truncated, extra, seeds[copy])


def mixed(
    task: Any, make: Callable[[str, int], Controller], shares: Mapping[str, float], starts: Sequence[int], seed: int,
    chunk: int = 64, copies: int = COPIES,
) -> Iterator[Episode]:  # fmt: skip
    """Episodes from the given starts by several policies, mixed in their shares all the way.

    Args:
        make: a controller for a policy's name and a seed. One with `learn` is shown its episodes after each of its
            own `chunk`.
        starts: seeds of the episodes.
        chunk: episodes after which the shares are nearly kept.
    """
    players = {name: make(name, mix("player", seed, name) % 2**31) for name in shares}
    chunk = min([chunk, *(player.chunk for player in players.values() if hasattr(player, "chunk"))])
    numbers = {name: number for number, name in enumerate(shares)}
    for first in range(0, len(starts), chunk):
        wanted = starts[first : first + chunk]
        names = (
            assign(shares, len(wanted), mix("chunk", seed, first)) if len(shares) > 1 else list(shares) * len(wanted)
        )
        made: dict[int, Episode] = {}
        for name, player in players.items():
            places = [place for place, chosen in enumerate(names) if chosen == name]
            if places:
                played = episodes(
                    task, player, [wanted[place] for place in places], copies=copies, source=numbers[name]
                )
                own = dict(zip(places, played, strict=True))
                if hasattr(player, "learn"):
                    player.learn([*own.values()])
                made |= own
        yield from (made[place] for place in range(len(wanted)))


def start_seeds(task: Any, count: int, seed: int, first: int = 0) -> list[int]:
    """Seeds of `count` episodes from the n-th on, from starts of the train split."""
    starts = task.problems("train")
    return [
        mix(int(starts[mix("start", seed, n) % len(starts)].meta["seed"]), seed, n) % 2**31
        for n in range(first, first + count)
    ]


def mean_return(task: Any, controller: Controller, count: int = 50) -> float:
    """Undiscounted mean return of a controller over `count` fixed starts."""
    seeds = start_seeds(task, count, mix("reference") % 2**31)
    return float(torch.tensor([float(e.rewards.double().sum()) for e in episodes(task, controller, seeds)]).mean())
