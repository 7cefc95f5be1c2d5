"""A policy small enough to be trained a hundred thousand times: a softmax, by group-relative policy gradient.

A problem is a vector of features; one of four actions is right, the one that a fixed teacher likes best. Runs are
trained all at once as arrays "R ..." (runs). Seed s has the same training problems, starting weights and evaluation
noise in every arm, as in the house's own comparisons; what an arm samples while training is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gainstage.measure.audits.contamination import Overlap
from gainstage.measure.evaluate import Answer, EvalRecord
from gainstage.measure.runs import ParityManifest, RunRecord

FEATURES, ACTIONS, TRAIN, HELD_OUT, SAMPLES = 6, 4, 256, 24, 8
_WORLD = np.random.default_rng(20)
TEACHER = _WORLD.normal(size=(FEATURES, ACTIONS))
PROBLEMS = _WORLD.normal(size=(TRAIN + HELD_OUT, FEATURES))
RIGHT = (PROBLEMS @ TEACHER).argmax(-1)
ANSWERS = {True: Answer(1.0, True, length=1), False: Answer(0.0, False, length=1)}


@dataclass(frozen=True)
class Method:
    """How an arm trains. `collapse`: chance that a run ends with a policy that knows nothing."""

    steps: int = 24
    groups: int = 12
    samples: int = 4
    rate: float = 0.8
    head: float = 0.2
    collapse: float = 0.0


@dataclass
class Run(RunRecord):
    """A run record that counts its answers once, and only what is compared: pass@1."""

    @cached_property
    def score(self) -> float:
        return float(np.mean([sum(record.correct) / len(record.correct) for record in self.evaluation["bandit"]]))

    def numbers(self, ks=(1, 4, 16)) -> dict[str, float]:
        return {"eval/bandit/pass@1": self.score}


def train(method: Method, seeds: np.ndarray, arm: int) -> np.ndarray:
    """Chance of the right answer to every held-out problem after training, "R P".

    Args:
        seeds: what arms share, one a run, "R".
        arm: number of the arm: noise of its own.
    """
    shared = np.random.default_rng([1, int(seeds[0])])
    own = np.random.default_rng([2, int(seeds[0]), arm])
    runs = len(seeds)
    weights = method.head * TEACHER + 0.3 * shared.normal(size=(runs, FEATURES, ACTIONS))
    for _ in range(method.steps):
        asked = shared.integers(0, TRAIN, (runs, 16))[:, : method.groups]
        x = PROBLEMS[asked]
        p = softmax(x @ weights)
        uniform = own.random((runs, method.groups, method.samples, 1))
        taken = (p.cumsum(-1)[:, :, None, :] < uniform).sum(-1).clip(max=ACTIONS - 1)
        reward = (taken == RIGHT[asked][..., None]).astype(float)
        advantage = reward - reward.mean(-1, keepdims=True)
        chosen = np.eye(ACTIONS)[taken]
        slope = (advantage[..., None] * (chosen - p[:, :, None, :])).mean(2)
        weights += method.rate * np.einsum("rgf,rga->rfa", x, slope) / method.groups * ACTIONS
    weights[own.random(runs) < method.collapse] = 0.0
    found = softmax(PROBLEMS[TRAIN:] @ weights)
    return found[:, np.arange(HELD_OUT), RIGHT[TRAIN:]]


def softmax(logits: np.ndarray) -> np.ndarray:
    out = np.exp(logits - logits.max(-1, keepdims=True))
    return out / out.sum(-1, keepdims=True)


def evaluate(chances: np.ndarray, seeds: np.ndarray, samples: int = SAMPLES) -> np.ndarray:
    """Verdicts "R P K": the noise belongs to the seed, so paired arms share it."""
    noise = np.random.default_rng([3, int(seeds[0])]).random((len(seeds), HELD_OUT, samples))
    return noise < chances[..., None]


def record(arm: str, seed: int, verdicts: np.ndarray, samples: int = SAMPLES) -> Run:
    """One run as the command line would hand it over."""
    rows = [EvalRecord(f"p{i}", tuple(map(ANSWERS.__getitem__, row))) for i, row in enumerate(verdicts.tolist())]
    return Run(
        arm, seed, evaluation={"bandit": rows}, spent={"generated_tokens": 1.0},
        manifest=ParityManifest("bandit", budget={"generated_tokens": 1.0}, samples=samples),
        contamination={"exact": Overlap(0, HELD_OUT, TRAIN)},
    )  # fmt: skip
