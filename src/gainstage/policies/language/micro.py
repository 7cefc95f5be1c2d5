"""The embedded model: a Llama of some 0.3 million parameters that runs in seconds, and how it is pre-trained."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gainstage import registry
from gainstage.policies.language.micro_rates import base_rates
from gainstage.policies.language.micro_tokenizer import END, PAD, VOCABULARY, build_tokenizer, encode
from gainstage.types.records import Author, Problem

Progress = Callable[[int, int, float], None]
Row = tuple[list[int], list[bool]]
"""Ids of a demonstration, and for each whether it is learnt."""
WEIGHTS = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class Size:
    """Shape and training length of an embedded model.

    Attributes:
        hidden: width D of the residual stream.
        layers, heads: depth and attention heads.
        inner: width of the gated feed-forward layer.
        steps: optimizer steps of the shipped weights.
        batch: demonstrations a step.
        peak, peak_matrices: highest learning rates of AdamW (embeddings, norms) and Muon (all other matrices).
    """

    hidden: int
    layers: int = 3
    heads: int = 4
    inner: int = 192
    steps: int = 2300
    batch: int = 192
    peak: float = 3e-3
    peak_matrices: float = 0.02


SIZES = {
    "micro": Size(hidden=96),
    "micro-half": Size(hidden=48, inner=96, steps=700),
}


@dataclass(frozen=True)
class Part:
    """One share of the pre-training mix: demonstrations of a task whose steps go wrong with probability `noise`.

    The noise keeps the model's entropy up and leaves room for reinforcement learning.
    """

    task: str
    share: float
    noise: float
    settings: dict[str, Any]


MIX = (
    Part("arithmetic", 0.40, 0.6, {"ops": ("+", "-", "*"), "levels": (2, 3, 4, 5)}),
    Part("arithmetic", 0.08, 0.6, {"ops": ("+", "-", "*"), "levels": (1, 2)}),
    Part("modular_chain", 0.10, 0.15, {"lengths": (2, 3, 4, 5, 6)}),
    Part("key_value", 0.12, 0.05, {"pairs": (2, 3, 4, 6, 8)}),
    Part("countdown", 0.07, 0.1, {}),
    Part("maze", 0.05, 0.1, {}),
    Part("sort_letters", 0.04, 0.1, {"lengths": (2, 3, 4, 5, 6, 7)}),
    Part("reverse", 0.03, 0.15, {"lengths": (2, 3, 4, 5, 6, 7)}),
    Part("count_letters", 0.03, 0.1, {"lengths": (2, 4, 6, 8, 10)}),
    Part("calculator", 0.04, 0.4, {}),
    Part("room_quest", 0.02, 0.3, {}),
    Part("key_door", 0.02, 0.35, {}),
)
"""What `pretrain` shows; only problems of the train split occur."""


def micro(size: str = "micro") -> Path:
    """The folder (Hugging Face format) of an embedded model.

    Raises:
        ValueError: there is no such size, or its weights are not part of this installation.
    """
    _size(size)
    folder = WEIGHTS / size
    if not (folder / "model.safetensors").is_file():
        raise ValueError(f"size {size!r}: no weights in {folder}; make them with `gainstage pretrain {size}`")
    return folder


def _size(name: str) -> Size:
    if name not in SIZES:
        raise ValueError(f"size: no embedded model {name!r}; there are {', '.join(SIZES)}")
    return SIZES[name]


def build_model(size: Size) -> Any:
    """A `LlamaForCausalLM` with fresh weights (drawn from torch's global generator)."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    special: dict[str, Any] = {"pad_token_id": VOCABULARY[PAD], "bos_token_id": None, "eos_token_id": VOCABULARY[END]}
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=size.hidden,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        initializer_range=0.04,
        tie_word_embeddings=True,
        **special,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, **special)
    return model


def demonstrations(mix: Sequence[Part], seed: int) -> Iterator[Row]:
    """An endless stream of worked problems of the train splits: prompt, solution, end token."""
    rng = random.Random(f"pretrain/{seed}")
    parts = [(registry.build("task", part.task, part.settings), part.noise) for part in mix]
    shares = [part.share for part in mix]
    while True:
        task, noise = rng.choices(parts, shares)[0]
        problem = task.draw(rng, rng.randrange(2**16))
        if task.split_of(problem) == "train":
            yield demonstration(task, problem, rng, noise)


def demonstration(task: Any, problem: Problem, rng: random.Random, noise: float) -> Row:
    """One worked problem. Where a task plays in turns, what the world says is read and not learnt."""
    if hasattr(task, "segments"):
        pieces = task.segments(problem, rng, noise)
    else:
        pieces = [(Author.POLICY, task.demonstrate(problem, rng, noise))]
    prompt = str(problem.prompt)
    ids, learnt = encode(prompt), [False] * len(prompt)
    for author, text in pieces:
        ids += encode(text)
        learnt += [author == Author.POLICY] * len(text)
    if not pieces[-1][1].endswith(tuple(getattr(task, "turn_stop", ())) or ("\0",)):
        ids.append(VOCABULARY[END])
        learnt.append(True)
    return ids, learnt


def buckets(rows: Sequence[Row], slack: float = 1.4) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows sorted by length, in right-padded pieces: ids `Int "B T"`, targets `Int "B T"` (-100 = none).

    The longest row of a piece has at most `slack` times the tokens of its shortest, so that little is padding.
    """
    rows = sorted(rows, key=lambda row: len(row[0]))
    starts = [0]
    for at, (tokens, _) in enumerate(rows):
        if len(tokens) > slack * len(rows[starts[-1]][0]):
            starts.append(at)
    for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True):
        part = rows[start:stop]
        ids = torch.full((len(part), len(part[-1][0])), VOCABULARY[PAD])
        targets = torch.full_like(ids, -100)
        for row, (tokens, learnt) in enumerate(part):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            targets[row, : len(tokens) - 1] = torch.where(torch.tensor(learnt[1:]), torch.tensor(tokens[1:]), -100)
        yield ids, targets


def train_step(model: Any, rows: Sequence[Row]) -> float:
    """Gradients of the mean cross entropy over all tokens of the solutions; returns that mean in nats."""
    tokens = sum(sum(learnt) for _, learnt in rows)
    total = 0.0
    for ids, targets in buckets(rows):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        asked = targets >= 0
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[asked]), targets[asked], reduction="sum")
        (loss / tokens).backward()
        total += loss.item()
    return total / tokens


@contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """One thread and a generator of its own: the same seed gives the same bits, and the caller's state is kept."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def pretrain(
    out: Path,
    seed: int = 0,
    steps: int | None = None,
    size: str = "micro",
    progress: Progress | None = None,
    rates: bool = True,
) -> dict[str, Any]:
    """Train an embedded model from nothing on worked solutions of the text tasks, and write it to `out`.

    Args:
        out: folder for weights, tokenizer and `card.json`; made where it is missing.
        seed: decides initial weights and demonstrations; the same seed gives the same weights.
        steps: optimizer steps; None takes those of the shipped weights.
        size: a name of `SIZES`.
        progress: called after every step with (steps done, steps in all, loss in nats per token).
        rates: measure the base rates of every task at the end (minutes).

    Returns:
        The card: how the weights were made and, if asked, the measured base rates of every task.
    """
    shape = _size(size)
    steps = shape.steps if steps is None else steps
    if steps < 1:
        raise ValueError(f"steps must be >= 1, got {steps}")
    started = time.monotonic()
    with _reproducible(seed):
        model = build_model(shape)
        loss = _fit(model, shape, seed, steps, progress)
        seconds = time.monotonic() - started
        tasks = dict.fromkeys(part.task for part in MIX) if rates else ()
        measured = {name: base_rates(model, name, seed=seed) for name in tasks}
    card = {
        "command": f"gainstage pretrain {size} --seed {seed} --steps {steps}",
        "parameters": model.num_parameters(),
        "shape": asdict(shape),
        "seed": seed,
        "steps": steps,
        "seconds": round(seconds),
        "loss": round(loss, 4),
        "mix": [asdict(part) for part in MIX],
        "base_rates": measured,
    }
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    build_tokenizer().save_pretrained(out)
    (out / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    return card


def _fit(model: Any, shape: Size, seed: int, steps: int, progress: Progress | None) -> float:
    """Matrices by Muon, embeddings and norms by AdamW; linear warm-up, cosine decay. Returns the recent mean loss."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    taken = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in taken]
    optimizers = [
        torch.optim.Muon(matrices, lr=shape.peak_matrices, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=shape.peak, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    peaks = (shape.peak_matrices, shape.peak)
    stream = demonstrations(MIX, seed)
    warm = min(100, steps // 10 + 1)
    recent = math.nan
    model.train()
    for step in range(steps):
        rate = min((step + 1) / warm, 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        loss = train_step(model, [next(stream) for _ in range(shape.batch)])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * rate
            optimizer.step()
            optimizer.zero_grad()
        recent = loss if math.isnan(recent) else 0.98 * recent + 0.02 * loss
        if progress is not None:
            progress(step + 1, steps, recent)
    model.eval()
    return recent
