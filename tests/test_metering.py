"""What a run spends adds up: every recipe against counters of its own, put where the cost occurs."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from gainstage.judging import judge
from gainstage.measure.budget import AXES, Meter
from gainstage.policies.language.causal_lm import CausalPolicy
from gainstage.policies.language.value_head import ValuePolicy
from gainstage.recipe import catalog, check, load
from gainstage.running import Run
from gainstage.tasks.control.batched_env import TorchEnv
from gainstage.trainer import Trainer

TINY = ["plan.groups=2", "plan.minibatch=8", "evaluate.problems=2", "evaluate.samples=1", "evaluate.final_problems=2",
        "evaluate.final_samples=1"]  # fmt: skip
ALIKE = ("gopo", "dr_grpo", "bnpo", "grpo_muon", "reinforce_pp_baseline")
"""They differ from GRPO in arithmetic only."""
RUNS = [name for name in catalog() if name not in ALIKE and "control" not in load(name).tags]
"""Every kind of cost of language models."""


def tiny(name: str, *overrides: str):
    recipe = load(name, [*TINY, "iterations=2", *overrides])
    if recipe.phases:
        data = recipe.model_dump()
        for phase in data["phases"]:
            phase |= {"iterations": 1, "plan": {"groups": 2, "minibatch": 8}}
        recipe = check(data)
    return recipe


@pytest.fixture
def counted(monkeypatch):
    """Counters at the engines, at the models and at the optimizers, whoever calls them."""
    seen = Counter()

    def around(owner, name, count):
        plain = getattr(owner, name)

        def wrapped(self, *args, **more):
            found = plain(self, *args, **more)
            count(self, args, found)
            return found

        monkeypatch.setattr(owner, name, wrapped)

    def generated(self, args, found):
        seen["generated_tokens"] += sum(len(c.ids) for group in found for c in group)

    def read(self, args, found):
        kind = "trained" if torch.is_grad_enabled() else "scored_tokens"
        seen[kind] += int((args[0]["mask"] if kind == "trained" else args[0].real()).sum())

    def stepped(self, args, found):
        seen["gradient_steps"] += 1

    around(CausalPolicy, "generate", generated)
    around(CausalPolicy, "evaluate", read)
    around(ValuePolicy, "evaluate", read)
    around(torch.optim.AdamW, "step", stepped)
    return seen


@pytest.mark.parametrize("name", RUNS)
def test_tokens_and_steps_add_up(name: str, counted) -> None:
    trainer = Trainer(tiny(name, "iterations=1"))
    checks = Counter()
    for chain in trainer.chains.values():
        task = chain.task.it
        if "check" in task.capabilities:
            real = type(task).check
            object.__setattr__(task, "check", lambda p, o, t=task, f=real: checks.update(n=1) or f(t, p, o))
    trainer.run()
    spent = trainer.meter.snapshot()
    for axis in ("generated_tokens", "scored_tokens"):
        assert spent[axis] == counted[axis], axis
    assert spent["trained_tokens"] == counted["trained"]
    if name not in ("grpo_adam_mini",):
        assert spent["gradient_steps"] == counted["gradient_steps"]
    if "task_verdict" in str(trainer.recipe.reward) + str(trainer.recipe.phases):
        assert spent["verifier_calls"] == checks["n"] > 0
    assert spent["flops"] > 0 and spent["seconds"] > 0


@pytest.mark.parametrize("name", ["ppo", "a2c", "ppo_recurrent", "dqn", "prioritized_dqn", "sac", "td3"])
def test_environment_and_optimizer_steps_add_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Counter()

    plain = TorchEnv.step

    def step(self, action):
        seen["env_steps"] += self.size
        return plain(self, action)

    monkeypatch.setattr(TorchEnv, "step", step)
    counting = register_optimizer_step_post_hook(lambda *_: seen.update(gradient_steps=1))
    trainer = Trainer(load(name, ["iterations=3", "budget={}", "evaluate.problems=2"]))
    if hasattr(store := trainer.chain.store.it, "least"):
        store.least = 1
    try:
        trainer.run()
    finally:
        counting.remove()
    spent = trainer.meter.snapshot()
    assert spent["env_steps"] == seen["env_steps"] > 0
    assert spent["gradient_steps"] == seen["gradient_steps"] > 0
    assert spent["flops"] > 0 and spent["seconds"] > 0 and not spent["generated_tokens"]


@pytest.mark.parametrize("name", ["grpo", "ppo_lm", "opd", "dpo"])
def test_every_cost_is_booked_to_the_component_that_caused_it(name: str) -> None:
    trainer = Trainer(tiny(name))
    trainer.run()
    books = trainer.meter.by_component()
    keys = {part.key for chain in trainer.chains.values() for part in chain}
    assert set(books) <= keys | {""}
    assert set(books.get("", {})) <= {"answers", "problems", "seconds"}, "only the loop's own"
    wanted = {
        "grpo": {"rollout.generate": "generated_tokens", "reward.task_verdict": "verifier_calls",
                 "credit.reference_logprobs": "scored_tokens", "update.policy": "trained_tokens"},
        "ppo_lm": {"reward.token_kl": "scored_tokens", "credit.gae": "scored_tokens", "update.value": "trained_tokens"},
        "opd": {"credit.reference_logprobs": "scored_tokens", "rollout.generate": "generated_tokens"},
        "dpo": {"store.dataset": "labels", "credit.reference_logprobs": "scored_tokens"},
    }[name]  # fmt: skip
    for component, axis in wanted.items():
        assert books[component][axis] > 0, component


def test_discarded_answers_are_paid_for(counted) -> None:
    """Dynamic sampling throws groups without spread away; the meter has seen them, the optimizer has not."""
    batches: list = []
    trainer = Trainer(tiny("dapo", "iterations=1"), on_batch=lambda i, batch: batches.append(batch))
    trainer.run()
    spent = trainer.meter.snapshot()
    assert spent["generated_tokens"] == counted["generated_tokens"] > sum(int(b["mask"].sum()) for b in batches)
    assert spent["answers"] == 8 * spent["problems"] and spent["verifier_calls"] == spent["answers"]
    assert spent["problems"] > sum(b.rows for b in batches) / 8


def test_twin_copies_are_paid_for(counted) -> None:
    trainer = Trainer(tiny("grpo"))
    trainer.enter()
    before = trainer.meter.snapshot()
    batch: list = []
    trainer.on_batch = lambda i, b: batch.append(b)
    trainer.iterate()
    middle = trainer.meter.snapshot()
    with trainer.models.scratch("policy") as twin, torch.no_grad():
        twin.evaluate(batch[0])
    after = trainer.meter.snapshot()
    assert not any(before.values()) and middle["scored_tokens"] > 0
    assert after["scored_tokens"] - middle["scored_tokens"] == int(batch[0].real().sum())
    assert after["scored_tokens"] == counted["scored_tokens"]


def test_the_teacher_is_paid_for() -> None:
    """On-policy distillation: what the teacher reads is scored, prompt included, and so is how it was trained."""
    batches: list = []
    trainer = Trainer(tiny("opd"), on_batch=lambda i, batch: batches.append(int(batch.real().sum())))
    trainer.run()
    scored = trainer.meter.by_component()["credit.reference_logprobs"]["scored_tokens"]
    assert scored == batches[-1] and trainer.meter.total("trained_tokens") > 0


def test_a_label_is_paid_for_once() -> None:
    for name, per_step in (("sft", 8), ("dpo", 8)):
        trainer = Trainer(tiny(name, "store.dataset.rows=10", "plan.updates=1", "iterations=3"))
        labels = []
        trainer.on_mark = lambda t, labels=labels: labels.append(t.meter.total("labels")) or {}
        trainer.run()
        assert labels == [per_step, 10, 10], name


def test_evaluation_has_an_account_of_its_own(counted) -> None:
    run = Run(tiny("grpo", "evaluate.every=0.5", "evaluate.retain=[reverse]"))
    run.execute()
    own, other = run.trainer.meter.snapshot(), run.trainer.meter.snapshot("evaluation")
    alone = Trainer(tiny("grpo"))
    alone.run()
    steady = [axis for axis in AXES if axis != "seconds"]
    assert {a: own[a] for a in steady} == {a: alone.meter.snapshot()[a] for a in steady}
    assert other["generated_tokens"] > 0 and other["verifier_calls"] > 0 and not other["gradient_steps"]
    counted.subtract(generated_tokens=int(alone.meter.total("generated_tokens")))
    assert own["generated_tokens"] + other["generated_tokens"] == counted["generated_tokens"]


def test_verifiers_that_check_by_themselves_are_charged() -> None:
    trainer = Trainer(tiny("grpo", "reward=[{exact: {after: '='}}]"))
    trainer.run()
    spent = trainer.meter.snapshot()
    assert spent["verifier_calls"] == spent["answers"] > 0
    assert trainer.meter.by_component()["reward.exact"] == {"verifier_calls": spent["answers"]}
    term = SimpleNamespace(judge=lambda trajs, ctx: [1.0] * len(trajs))
    chain = SimpleNamespace(
        reward=[SimpleNamespace(it=term, name="length", key="reward.length", options={}, has=lambda h: True)]
    )
    meter = Meter()
    row = SimpleNamespace(stop=None, parts={}, columns={})
    judge(chain, [row], SimpleNamespace(meter=meter, log=lambda *a: None), lambda part, hook, *a: term.judge(*a))
    assert not meter.total("verifier_calls"), "a term that verifies nothing costs no call"


@pytest.mark.parametrize("axis", ["generated_tokens", "trained_tokens", "scored_tokens", "gradient_steps", "problems",
                                  "answers", "verifier_calls", "flops"])  # fmt: skip
def test_any_axis_ends_a_run(axis: str) -> None:
    whole = Trainer(tiny("grpo", "iterations=3"))
    whole.run()
    limit = whole.meter.total(axis) / 2
    cut = Trainer(tiny("grpo", "iterations=3", f"budget={{{axis}: {limit}}}"))
    cut.run()
    assert cut.iteration == 2 and cut.meter.total(axis) >= limit
