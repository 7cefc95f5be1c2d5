"""The policy that is asked for a return: what it sees, what it remembers, when it forgets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gainstage.models.trajectory_transformer import TrajectoryTransformer
from gainstage.policies.control.decision_transformer import DecisionTransformer
from gainstage.types import Batch
from gainstage.types.spaces import Box, Discrete
from gainstage.update.data_statistics import ReturnRange


def made(space=None, **settings):
    task = SimpleNamespace(
        observation_space=Box.of(-1, 1, (3,)), action_space=space or Box.of(-2, 2, (2,)), max_steps=50
    )
    torch.manual_seed(0)
    net = DecisionTransformer(**({"context": 4, "width": 16, "layers": 2, "heads": 2} | settings))
    policy = net.make(role="policy", meter=None, device=torch.device("cpu"), trained=True, task=task)
    policy.module.target.fill_(10.0)
    policy.module.scale.fill_(10.0)
    policy.module.eval()
    return policy


def test_nobody_sees_what_comes_later_or_padding():
    net = TrajectoryTransformer(16, 2, 2, dropout=0.0).eval()
    x, real = torch.randn(2, 6, 16), torch.ones(2, 6).bool()
    out = net(x, real)
    changed = x.clone()
    changed[:, 4:] += 1
    torch.testing.assert_close(net(changed, real)[:, :4], out[:, :4])
    real[:, :2] = False
    changed = x.clone()
    changed[:, :2] += 1
    torch.testing.assert_close(net(changed, real)[:, 2:], net(x, real)[:, 2:])
    with pytest.raises(ValueError, match="heads"):
        TrajectoryTransformer(10, 1, 3)


@pytest.mark.parametrize("space", [Box.of(-2, 2, (2,)), Discrete(3)])
def test_acting_step_by_step_is_reading_the_whole_row(space):
    """The remembered window gives the action that the recorded row gives, from the first step to beyond the window."""
    policy = made(space)
    rewards = torch.tensor([1.0, 0.5, -2.0, 0.25, 3.0, 1.0])
    obs = torch.randn(7, 1, 3)
    memory, actions, wanted = policy.initial_state(1), [], [10.0]
    for t in range(6):
        act = policy.act(obs[t], memory, explore=False)
        actions.append(act.action)
        memory = policy.rewarded(act.state, rewards[t : t + 1])
        wanted.append(wanted[-1] - float(rewards[t]))
    for end in (2, 4, 6):
        first = max(0, end - policy.context)
        batch = Batch({
            "obs": obs[first : end + 1].transpose(0, 1), "actions": torch.cat(actions[first:end]).unsqueeze(0),
            "returns_to_go": torch.tensor([wanted[first:end]]), "step": torch.arange(first, end).unsqueeze(0),
            "mask": torch.ones(1, end - first).bool(),
        })  # fmt: skip
        out = policy.evaluate(batch)
        if isinstance(space, Discrete):
            # the greedy choice is the likeliest one
            others = [Batch(batch.columns | {"actions": torch.cat((batch["actions"][:, :-1], torch.tensor([[a]])), 1)})
                      for a in range(3)]  # fmt: skip
            likely = [float(policy.evaluate(other).logprobs[0, -1].detach()) for other in others]
            assert int(actions[end - 1]) == max(range(3), key=lambda a: likely[a])
        else:
            torch.testing.assert_close(out.extras["mean"][:, -1], actions[end - 1], rtol=1e-4, atol=1e-5)


def test_zeros_are_the_begin_of_an_episode():
    policy = made()
    obs = torch.randn(2, 3)
    memory = policy.rewarded(policy.act(obs, policy.initial_state(2), explore=False).state, torch.tensor([4.0, 4.0]))
    memory[0] = 0.0
    state = policy.act(obs, memory, explore=False).state
    assert state[:, 0].tolist() == [1.0, 2.0] and state[:, 1].tolist() == [10.0, 6.0]


def test_a_policy_asks_for_what_the_data_hold_times_a_factor():
    policy = made(factor=0.5)
    state = policy.act(torch.randn(1, 3), policy.initial_state(1)).state
    assert float(state[0, 1]) == 5.0


def test_actions_of_the_environment_and_back():
    policy = made()
    env = torch.tensor([[-2.0, 1.0]])
    torch.testing.assert_close(policy.to_env(policy.from_env(env)), env)
    with pytest.raises(ValueError, match="continuous bounds"):
        made(Box.of(-float("inf"), float("inf"), (2,)))


def test_what_is_asked_for_is_a_quantile_of_the_recorded_returns():
    policy = made()
    ctx = SimpleNamespace(
        models={"policy": policy}, store=SimpleNamespace(returns=lambda: torch.tensor([-8.0, -4.0, 0.0]))
    )
    ReturnRange().start(ctx)
    assert float(policy.module.target) == 0.0 and float(policy.module.scale) == 8.0
    ReturnRange(quantile=0.5).start(ctx)
    assert float(policy.module.target) == -4.0
    with pytest.raises(ValueError, match="quantile"):
        ReturnRange(quantile=1.5)
