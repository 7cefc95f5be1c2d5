"""Recurrent policies: a fragment scored at once equals acting step by step, across ends of episodes."""

from __future__ import annotations

import pytest
import torch

from gainstage.policies.control.recurrent import RecurrentActorCritic, RecurrentCore
from gainstage.recipe import load
from gainstage.registry import RecipeError, build
from gainstage.trainer import Trainer
from gainstage.types import Batch


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_core_forgets_where_an_episode_begins(kind: str):
    torch.manual_seed(0)
    core = RecurrentCore(3, 5, kind)
    x, memory = torch.randn(2, 6, 3), torch.randn(2, core.size)
    start = torch.tensor([[0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 1, 0]]).bool()
    y, after = core(x, memory, start)
    for row in range(2):
        state = memory[row : row + 1]
        for t in range(6):
            state = torch.zeros_like(state) if start[row, t] else state
            out, state = core.run(x[row : row + 1, t : t + 1], state)
            assert torch.allclose(out[0, 0], y[row, t], atol=1e-6)
            if t in after:
                assert torch.allclose(after[t][row], state[0], atol=1e-6)
    assert set(after) == {1, 3, 5}


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_what_was_acted_is_what_is_scored(core: str):
    """Log-probs of the fragment equal those that acting recorded, so that the first ratio is 1."""
    batches: list[Batch] = []
    made = Trainer(
        load("ppo_recurrent", ["iterations=3", f"models.policy.core={core}", "update.policy.lr=0"]),
        on_batch=lambda i, batch: batches.append(batch),
    )
    made.run()
    policy = made.models["policy"]
    for batch in batches:
        assert bool(batch["start"][:, 1:].any()) and batch["state0"].shape == (16, policy.module.core.size)
        out = policy.evaluate(batch, want=("values", "next_values"))
        assert float((out.logprobs.detach() - batch["behaviour_logprobs"]).abs().max()) < 1e-5
    assert bool(batches[1]["state0"].any()) and not bool(batches[0]["state0"].any())


def test_next_values_follow_the_true_observation_at_a_cut_and_at_the_border():
    task = build("task", "identity", {"max_steps": 3, "space": "box"})
    spec = RecurrentActorCritic(memory=8, hidden=[8])
    torch.manual_seed(1)
    policy = spec.make(role="policy", meter=None, device=torch.device("cpu"), trained=True, task=task)
    obs, following = torch.randn(1, 5, 2), torch.randn(1, 4, 2)
    cut = torch.tensor([[False, True, False, False]])
    start = torch.tensor([[True, False, True, False]])
    batch = Batch({
        "mask": torch.ones(1, 4).bool(), "obs": obs, "next_obs": following, "cut": cut, "start": start,
        "actions": torch.zeros(1, 4, 2), "state0": policy.initial_state(1),
    })  # fmt: skip
    out = policy.evaluate(batch, want=("values", "next_values"))

    def value(*seen: torch.Tensor) -> float:
        state = policy.initial_state(1)
        for x in seen:
            y, state = policy.module.core.run(policy.module.trunk(x).unsqueeze(1), state)
        return float(policy.module.values(y[:, 0]))

    want = [value(obs[:, 0], obs[:, 1]), value(obs[:, 0], obs[:, 1], following[:, 1]),
            value(obs[:, 2], obs[:, 3]), value(obs[:, 2], obs[:, 3], following[:, 3])]  # fmt: skip
    assert out.extras["next_values"][0].tolist() == pytest.approx(want, abs=1e-5)


def test_rows_are_never_cut_into_decisions():
    with pytest.raises(RecipeError, match=r"models\.policy remembers what came before; set plan\.unit=row"):
        Trainer(load("ppo_recurrent", ["plan.unit=step"]))
    batches: list[Batch] = []
    made = Trainer(load("ppo_recurrent", ["iterations=1"]), on_batch=lambda i, b: batches.append(b))
    made.run()
    with pytest.raises(ValueError, match=r"set plan\.unit=row"):
        made.models["policy"].evaluate(Batch({k: v for k, v in batches[0].columns.items() if k != "state0"}))
    with pytest.raises(RecipeError, match="memory must be at least 1"):
        RecurrentCore(3, 0)
