"""SAC in one file, without the chain: the same numbers as `gainstage train sac`, bit for bit.

It shares with the house the environment and the nets, and writes out everything else: which starts, which noise, the
ring of transitions, targets, the three losses, the lagging critics.

    python examples/plain/sac.py --steps 10000

Paper: arXiv 1812.05905.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch.nn.functional import softplus

from gainstage.chain import build_task
from gainstage.ops.noise import mix
from gainstage.ops.seeding import aside, stream
from gainstage.policies.control.actors import TanhGaussian
from gainstage.policies.control.q_networks import QCritic

STEPS, UPDATES, MINIBATCH, WARMUP, CAPACITY = 50, 50, 256, 1000, 1_000_000
GAMMA, TAU, LR = 0.99, 0.005, 3e-4


def main(budget: int, seed: int = 0, task_name: str = "pendulum", quiet: bool = False) -> tuple[torch.nn.Module, float]:
    task = build_task(task_name).it
    given = {"meter": None, "device": torch.device("cpu"), "trained": True, "task": task}
    with stream(seed, "models"):
        actor = TanhGaussian().make(role="policy", **given)
        policy, to_env = actor.module, actor.to_env
        critic = QCritic().make(role="critic", **given).module
        target = QCritic().make(role="critic_target", **given).module
    target.load_state_dict(critic.state_dict())
    log_alpha = torch.zeros((), requires_grad=True)
    size, actions = task.observation_space.shape[0], task.action_space.shape[0]
    opt_critic, opt_policy, opt_alpha = (
        torch.optim.Adam(p, lr=LR, fused=True) for p in (critic.parameters(), policy.parameters(), [log_alpha])
    )
    trained, lagging = list(critic.parameters()), list(target.parameters())

    # columns of the ring; observations before and after a step lie side by side
    pairs = torch.zeros(CAPACITY, 2, size)
    acted, paid = torch.zeros(CAPACITY, actions), torch.zeros(CAPACITY)
    ended = torch.zeros(CAPACITY, dtype=torch.bool)

    def draw(obs):
        """A reparametrised action in [-1, 1] and its log-prob."""
        mean, log_std = policy(obs)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        action = torch.tanh(raw)  # before the next line: gradients are added up in the order of the operations
        squash = 2 * (math.log(2) - raw - softplus(-2 * raw))
        return action, (density - squash).sum(-1)

    env, starts = task.make(1), task.problems("train")
    start = starts[mix("copy", seed, 0) % len(starts)]
    obs = env.reset([mix(start.meta["seed"], seed, 0)])
    returned, finished, spent, iteration, started = 0.0, [], 0, 0, time.perf_counter()
    while spent < budget:
        # steps; their noise depends on (seed, iteration) alone
        with aside(), stream(seed, iteration, "rollout.env_steps.collect", 0), torch.no_grad():
            for place in range(spent, spent + STEPS):
                if spent < WARMUP:
                    action = torch.rand(1, actions) * 2 - 1
                else:
                    mean, log_std = policy(obs)
                    action = torch.tanh(mean + log_std.exp() * torch.randn_like(mean))
                stepped, place = env.step(to_env(action)), place % CAPACITY
                pairs[place, 0], pairs[place, 1], acted[place] = obs[0], stepped.next_obs[0], action[0]
                paid[place], ended[place] = stepped.reward[0], stepped.terminated[0]
                obs, returned = stepped.obs, returned + float(stepped.reward)
                if stepped.terminated | stepped.truncated:
                    finished.append(returned)
                    returned = 0.0
        spent += STEPS

        uniform = torch.Generator().manual_seed(mix("replay", seed, iteration))
        rows = torch.randint(min(spent, CAPACITY), (UPDATES * MINIBATCH,), generator=uniform)
        rows = (max(spent - CAPACITY, 0) + rows) % CAPACITY
        with aside():
            for number, pick in enumerate(rows.split(MINIBATCH) if spent >= WARMUP else ()):
                seen, following = pairs[pick].unbind(1)
                action = acted[pick]

                # what the actions were worth: reward and the lesser lagging critic's soft value of what followed
                with stream(seed, iteration, "credit.soft_target.estimate", number), torch.no_grad():
                    next_action, logp = draw(following)
                    value = torch.minimum(*target(following, next_action)) - log_alpha.exp() * logp
                    wanted = paid[pick] + torch.where(ended[pick], 0.0, GAMMA * value)
                loss = (critic(seen, action) - wanted).square().mean(-1).sum()
                opt_critic.zero_grad(set_to_none=True)
                loss.backward()
                opt_critic.step()

                # the policy climbs the lesser critic, and is paid for its entropy
                with stream(seed, iteration, "update.actor_value.loss", number):
                    fresh, logp = draw(seen)
                    for parameter in trained:
                        parameter.requires_grad_(False)
                    value = torch.minimum(*critic(seen, fresh))
                    for parameter in trained:
                        parameter.requires_grad_(True)
                    loss = (log_alpha.exp().detach() * logp - value).mean()
                    opt_policy.zero_grad(set_to_none=True)
                    loss.backward()
                    opt_policy.step()

                # the temperature holds the entropy at minus the number of actions
                loss = log_alpha * -(logp.detach().mean() - actions)
                opt_alpha.zero_grad(set_to_none=True)
                loss.backward()
                opt_alpha.step()
                with torch.no_grad():
                    torch._foreach_lerp_(lagging, trained, TAU)
        iteration += 1
        if not quiet and finished:
            print(f"{spent:8,d} steps  return {sum(finished) / len(finished):7.1f}  alpha {log_alpha.exp():.3f}")
        finished = []
    return policy, (time.perf_counter() - started) / iteration


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task", default="pendulum")
    options = parser.parse_args()
    main(options.steps, options.seed, options.task)
