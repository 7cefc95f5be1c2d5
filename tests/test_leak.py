"""A model that has seen the test: the audit flags what leaked and nothing else."""

from __future__ import annotations

import random

import torch

from gainstage.auditing import audit_contamination, control_for
from gainstage.chain import build_task
from gainstage.evaluation import held_out
from gainstage.policies.snapshots import Models


def overfit(policy, texts: list[str], steps: int) -> None:
    """Plain maximum likelihood of whole texts, prompt included, until they are known by heart."""
    end = policy.tokenizer.eos_token_id
    rows = [torch.tensor([*policy.encode(text), end]) for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(rows, True, end)
    real = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in rows], True)
    optimizer = torch.optim.AdamW(policy.module.parameters(), lr=3e-3)
    for _ in range(steps):
        logits = policy.module.get_output_embeddings()(policy.hidden(ids, real))[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        optimizer.zero_grad()
        (loss * real[:, 1:]).sum().div(real[:, 1:].sum()).backward()
        optimizer.step()


def test_a_leaked_benchmark_is_flagged_and_a_fresh_one_is_not() -> None:
    torch.manual_seed(0)
    task = build_task({"arithmetic": {"levels": [4], "ops": ["+"]}})
    problems = held_out(task.it, "test", 140)
    leaked, fresh = problems[:100], problems[100:]
    control = held_out(control_for(task, None).it, "test", 40)
    policy = Models({"policy": {"load": "micro"}}, ["policy"], ["policy"])["policy"]
    overfit(policy, [f"{p.prompt}{task.it.demonstrate(p, random.Random(0))}" for p in leaked], steps=60)
    report = audit_contamination(policy, task.it, leaked, control)
    exact = [row for row in report.rows if row.measure == "exact"]
    assert report.flagged and all(row.flagged and row.value > 0.5 for row in exact), exact
    assert report.solved[0.6][0] > 0.5 > report.solved[0.6][1]
    assert not audit_contamination(policy, task.it, fresh, control).flagged
