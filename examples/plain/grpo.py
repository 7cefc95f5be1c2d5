"""GRPO in one file, without the chain: the same numbers as `gainstage train grpo`, bit for bit.

It shares with the house what sampling and scoring need (the model handle: its engine, its packed log-probs, its
tokenizer) and the task, and writes out everything else: which problems, which noise, advantages, loss, optimizer.

    python examples/plain/grpo.py --iterations 20

Paper: DeepSeekMath, arXiv 2402.03300, section 4.1.
"""

from __future__ import annotations

import argparse
import math
import time

import torch

from gainstage.chain import build_task
from gainstage.ops.noise import mix
from gainstage.policies.snapshots import Models
from gainstage.types import Batch, Prompt, Sampling

SAMPLES, GROUPS, MINIBATCH, EPOCHS = 8, 32, 128, 1
LR, CLIP_NORM, LOW, HIGH, BETA = 5e-4, 1.0, 0.2, 0.2, 0.001


def main(iterations: int, seed: int = 0, task_name: str = "arithmetic", load: str = "micro", groups: int = GROUPS,
         minibatch: int = MINIBATCH, quiet: bool = False) -> tuple[torch.nn.Module, float]:  # fmt: skip
    task = build_task(task_name).it
    models = Models(
        {"policy": {"load": load}, "reference": {"of": "policy", "on": "start"}}, ["reference", "policy"], ["policy"]
    )
    policy, reference = models["policy"], models["reference"]
    parameters = [p for p in policy.module.parameters() if p.requires_grad]
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.0}, {"params": vectors, "weight_decay": 0.0}],
        lr=LR,
        betas=(0.9, 0.999),
        eps=1e-8,
    )
    problems = task.problems("train")
    cursor, started = 0, time.perf_counter()
    for iteration in range(iterations):
        # which problems: every one once a pass, in an order that depends on (seed, pass)
        chosen = []
        for _ in range(groups):
            number, place = divmod(cursor, len(problems))
            order = torch.randperm(len(problems), generator=torch.Generator().manual_seed(mix("shuffle", seed, number)))
            chosen.append(problems[int(order[place])])
            cursor += 1

        # answers: the noise of a sample depends on (seed, iteration, group, sample) alone
        prompts = [
            Prompt(
                policy.encode(problem.prompt),
                tuple(mix(seed, iteration, group, k) for k in range(SAMPLES)),
                Sampling(1.0),
            )
            for group, problem in enumerate(chosen)
        ]
        answers = [answer for group in policy.generate(prompts, max_new=task.max_new) for answer in group]
        rewards = torch.tensor(
            [float(task.check(chosen[i // SAMPLES], a.text).reward or 0.0) for i, a in enumerate(answers)]
        )

        # rows: prompt and answer, padded on the right
        contexts = [prompts[i // SAMPLES].ids for i in range(len(answers))]
        rows, longest = len(answers), max(len(p) + len(a.ids) for p, a in zip(contexts, answers, strict=True))
        tokens = torch.zeros(rows, longest, dtype=torch.long)
        author = torch.full((rows, longest), -1)
        mask = torch.zeros(rows, longest, dtype=torch.bool)
        old = torch.zeros(rows, longest)
        for i, (prompt, answer) in enumerate(zip(contexts, answers, strict=True)):
            start, end = len(prompt), len(prompt) + len(answer.ids)
            tokens[i, :end] = torch.tensor([*prompt, *answer.ids])
            author[i, :start], author[i, start:end] = 0, 1
            mask[i, start:end] = True
            old[i, start:end] = torch.tensor(answer.logprobs)

        # advantages: against the mean of the group, over its sample std
        grouped = rewards.double().view(groups, SAMPLES)
        centred = grouped - grouped.mean(1, keepdim=True)
        advantages = (centred / (grouped.std(1, keepdim=True) + 1e-6)).reshape(-1).float()
        with torch.no_grad():
            ref = reference.evaluate(Batch({"tokens": tokens, "author": author, "mask": mask})).logprobs

        for epoch in range(EPOCHS):
            shuffled = torch.randperm(
                rows, generator=torch.Generator().manual_seed(mix(seed, iteration, "split", 0, epoch))
            )
            for first in range(0, rows, minibatch):
                pick = shuffled[first : first + minibatch] if minibatch < rows else torch.arange(rows)
                cut = int((author[pick] >= 0).sum(1).max()) if minibatch < rows else longest
                m, a = mask[pick, :cut], advantages[pick].unsqueeze(1) * mask[pick, :cut]
                weight = m / (m.sum(1, keepdim=True).float().clamp(min=1) * (m.any(1)).sum())
                batch = Batch({"tokens": tokens[pick, :cut], "author": author[pick, :cut], "mask": m})
                logp = policy.evaluate(batch).logprobs
                ratio = (logp - old[pick, :cut]).where(m, 0.0).exp()
                surrogate = -torch.minimum(ratio * a, ratio.clamp(1 - LOW, 1 + HIGH) * a)
                d = ref[pick, :cut] - logp
                k3 = torch.where(m, torch.expm1(d) - d, 0.0)
                loss = (surrogate * weight).sum() + (BETA * k3 * weight).sum()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                grads = [p.grad for p in parameters if p.grad is not None]
                norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))))
                if not math.isfinite(norm):
                    raise RuntimeError(f"iteration {iteration}: the gradient is not finite")
                if norm > CLIP_NORM:
                    torch._foreach_mul_(grads, CLIP_NORM / norm)
                optimizer.step()
        if not quiet:
            print(f"{iteration:4d}  reward {rewards.mean():.3f}  gradient {norm:.2f}")
    return policy.module, (time.perf_counter() - started) / iterations


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task", default="arithmetic")
    options = parser.parse_args()
    main(options.iterations, options.seed, options.task)
