"""Tokens per second and peak memory of generation: the torch engine against Hugging Face `generate`.

    OMP_NUM_THREADS=2 python benchmarks/generate_vs_hf.py [CASE ...] [--repeats 3]

Random weights; every figure comes from a process of its own, the two sides of a case alternate. Seconds are the
best of the repeats. Memory is the growth of the resident set while generating, weights apart.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """`prompts` contexts of `length` tokens, `samples` answers of at most `new` tokens each; `ends` of the
    vocabulary's ids end an answer."""

    sizes: dict[str, int]
    prompts: int
    samples: int
    length: int
    new: int
    ends: int = 0


MICRO = {
    "vocab_size": 64,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
SMALL = {
    "vocab_size": 512,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
}
SMOLLM = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
CASES = {
    "micro-256": Case(MICRO, 32, 8, 20, 20),
    "micro-512": Case(MICRO, 64, 8, 20, 20),
    "micro-tail": Case(MICRO, 64, 8, 20, 200, ends=6),
    "1.8M-512": Case(SMALL, 64, 8, 20, 48),
    "smollm-16": Case(SMOLLM, 2, 8, 64, 32),
    "smollm-32": Case(SMOLLM, 4, 8, 64, 32),
    "smollm-64": Case(SMOLLM, 8, 8, 64, 32),
}


class NoText:
    """A tokenizer that leaves out decoding, which both sides would pay alike."""

    eos_token_id = None
    all_special_tokens = ()

    def decode(self, ids, skip_special_tokens=True):
        return ""


def peak() -> float:
    """Largest resident set so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)


def measure(name: str, side: str, repeats: int) -> dict[str, float]:
    """One side of one case, in this process."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from gainstage.ops.noise import mix
    from gainstage.rollout.engines.torch import TorchEngine
    from gainstage.types import Prompt

    case = CASES[name]
    ends = list(range(1, case.ends + 1)) or None
    torch.manual_seed(0)
    config = LlamaConfig(
        **case.sizes,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ends,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    prompts = torch.randint(10, case.sizes["vocab_size"], (case.prompts, case.length))
    keys = [tuple(mix(0, group, sample) for sample in range(case.samples)) for group in range(case.prompts)]
    requests = [Prompt(ids, key) for ids, key in zip(prompts.tolist(), keys, strict=True)]
    engine = TorchEngine().bind(model, NoText())
    repeated = prompts.repeat_interleave(case.samples, 0)

    def ours() -> int:
        return sum(len(c.ids) for row in engine.generate(requests, max_new=case.new) for c in row)

    def theirs() -> int:
        with torch.inference_mode():
            out = model.generate(
                repeated, attention_mask=torch.ones_like(repeated), do_sample=True, top_k=0, max_new_tokens=case.new
            )[:, case.length :]
        ended = torch.isin(out, torch.tensor(ends or [-1])).cumsum(1)
        return int((ended.cumsum(1) <= 1).sum())

    before, best, tokens = peak(), float("inf"), 0
    for _ in range(repeats):
        started = time.perf_counter()
        tokens = {"engine": ours, "hf": theirs}[side]()
        best = min(best, time.perf_counter() - started)
    return {"seconds": best, "rate": tokens / best, "memory": peak() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--side", choices=("engine", "hf"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.cases[0], options.side, options.repeats)))
        return
    print(f"{'case':12} {'engine tok/s':>13} {'hf tok/s':>10} {'ratio':>6} {'engine MB':>10} {'hf MB':>7}")
    for name in options.cases:
        row = {}
        for side in ("engine", "hf"):
            command = [sys.executable, __file__, name, "--side", side, "--repeats", str(options.repeats)]
            row[side] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        ours, theirs = row["engine"], row["hf"]
        print(
            f"{name:12} {ours['rate']:13.0f} {theirs['rate']:10.0f} {ours['rate'] / theirs['rate']:6.2f} "
            f"{ours['memory']:10.0f} {theirs['memory']:7.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
