"""The single-file twins give the house's numbers, bit for bit."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from gainstage.recipe import load
from gainstage.trainer import Trainer

PLAIN = Path(__file__).parents[2] / "examples" / "plain"


def twin(name: str):
    spec = importlib.util.spec_from_file_location(f"plain_{name}", PLAIN / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_plain_grpo_is_bit_equal_to_the_house() -> None:
    trainer = Trainer(load("grpo", ["iterations=3", "plan.groups=6", "plan.minibatch=16", "seed=5"]))
    trainer.run()
    plain, _ = twin("grpo").main(3, seed=5, groups=6, minibatch=16, quiet=True)
    house = trainer.models["policy"].module.state_dict()
    start = Trainer(load("grpo")).models["policy"].module.state_dict()
    assert any(not torch.equal(start[key], house[key]) for key in house), "nothing was trained"
    for key, value in plain.state_dict().items():
        assert torch.equal(value, house[key]), key


@pytest.mark.parametrize("task", ["cart_pole", "pendulum"])
def test_plain_ppo_is_bit_equal_to_the_house(task: str) -> None:
    trainer = Trainer(load("ppo", [f"task={task}", "budget.env_steps=3000", "seed=5"]))
    trainer.run()
    plain, _ = twin("ppo").main(3000, seed=5, task_name=task, quiet=True)
    house = trainer.models["policy"].module.state_dict()
    start = Trainer(load("ppo", [f"task={task}", "seed=5"])).models["policy"].module.state_dict()
    assert all(not torch.equal(start[key], house[key]) for key in house), "something was not trained"
    for key, value in plain.state_dict().items():
        assert torch.equal(value, house[key]), key


def test_plain_sac_is_bit_equal_to_the_house() -> None:
    trainer = Trainer(load("sac", ["budget.env_steps=1150", "seed=5"]))
    trainer.run()
    plain, _ = twin("sac").main(1150, seed=5, quiet=True)
    house = trainer.models["policy"].module.state_dict()
    start = Trainer(load("sac", ["seed=5"])).models["policy"].module.state_dict()
    assert all(not torch.equal(start[key], house[key]) for key in house), "something was not trained"
    for key, value in plain.state_dict().items():
        assert torch.equal(value, house[key]), key
