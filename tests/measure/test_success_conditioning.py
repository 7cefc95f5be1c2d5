"""Success conditioning from samples, in random processes of a fixed horizon: it improves, by what was predicted."""

from __future__ import annotations

import numpy as np
import torch

from gainstage.measure.curves.value_gaps import action_influence, estimated_influence, predicted_gain, success_condition
from gainstage.tasks.control.tabular import RandomMDP, backward_values

EPISODES = 20_000
PROCESSES = 8


def play(task: RandomMDP, seed: int):
    """Uniform play: state and action of every step `"N H"`, and who succeeded."""
    env = task.make(EPISODES)
    env.reset(list(range(seed * EPISODES, (seed + 1) * EPISODES)))
    states, actions = [], []
    generator = torch.Generator().manual_seed(seed)
    for _ in range(task.horizon):
        states.append(env.state["at"])
        actions.append(torch.randint(task.actions, (EPISODES,), generator=generator))
        last = env.step(actions[-1])
    return torch.stack(states, 1), torch.stack(actions, 1), last.info["success"].bool()


def test_sampled_conditioning_improves_by_what_was_predicted():
    predicted, exact, realised = [], [], []
    for seed in range(PROCESSES):
        task = RandomMDP(seed=seed)
        uniform = torch.full((task.horizon, task.states, task.actions), 1 / task.actions, dtype=torch.float64)
        q, v = backward_values(task.moves, task.final, task.horizon, uniform)
        states, actions, won = play(task, seed)
        plus, influence = uniform.clone(), np.zeros((task.horizon, task.states))
        for h in range(task.horizon):
            cell = states[:, h] * task.actions + actions[:, h]
            size = task.states * task.actions
            seen = torch.bincount(cell, minlength=size).reshape(task.states, -1)
            good = torch.bincount(cell[won], minlength=size).reshape(task.states, -1)
            plus[h] = (good + uniform[h]) / (good.sum(1, keepdim=True) + 1)  # one pseudo-count of the old policy
            influence[h] = np.nan_to_num(estimated_influence(good.numpy(), seen.numpy()))
        paths = (torch.arange(task.horizon) * task.states + states[won]).tolist()
        predicted.append(predicted_gain(paths, influence.reshape(-1)))
        table = np.concatenate(
            [action_influence(uniform[h].numpy(), q[h].numpy()).influence for h in range(task.horizon)]
        )
        exact.append(predicted_gain(paths, table))
        _, after = backward_values(task.moves, task.final, task.horizon, plus)
        realised.append(float(after[0, 0] / v[0, 0] - 1))
        best = torch.stack(
            [torch.from_numpy(success_condition(uniform[h].numpy(), q[h].numpy())) for h in range(task.horizon)]
        )
        _, limit = backward_values(task.moves, task.final, task.horizon, best)
        assert abs(float(after[0, 0] - limit[0, 0])) < 0.03  # the samples come near the exact operator
    assert min(realised) > 0
    assert np.corrcoef(predicted, realised)[0, 1] > 0.9
    assert np.corrcoef(exact, realised)[0, 1] > 0.97
