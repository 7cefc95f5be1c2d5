"""PPO in one file, without the chain: the same numbers as `gainstage train ppo`, bit for bit.

It shares with the house the batched environment and the net, and writes out everything else: which starts, which
noise, the fragment, values, advantages, loss, optimizer.

    python examples/plain/ppo.py --steps 100000

Paper: arXiv 1707.06347; generalised advantages: arXiv 1506.02438.
"""

from __future__ import annotations

import argparse
import math
import time

import torch

from gainstage.chain import build_task
from gainstage.ops.noise import mix
from gainstage.ops.seeding import stream
from gainstage.policies.control.actor_critic import ActorCritic

COPIES, STEPS, EPOCHS, MINIBATCH = 8, 128, 10, 64
GAMMA, LAM, CLIP, VALUE, ENTROPY = 0.99, 0.95, 0.2, 0.5, 0.01
LR, EPS, CLIP_NORM = 1e-3, 1e-5, 0.5


def main(
    budget: int, seed: int = 0, task_name: str = "cart_pole", quiet: bool = False
) -> tuple[torch.nn.Module, float]:
    task = build_task(task_name).it
    with stream(seed, "models"):
        net = ActorCritic().make(role="policy", meter=None, device=torch.device("cpu"), trained=True, task=task).module
    parameters = list(net.parameters())
    optimizer = torch.optim.Adam(parameters, lr=LR, betas=(0.9, 0.999), eps=EPS, fused=True)

    # every copy begins with an episode of its own
    env, starts = task.make(COPIES), task.problems("train")
    picked = [starts[mix("copy", seed, copy) % len(starts)] for copy in range(COPIES)]
    obs = env.reset([mix(start.meta["seed"], seed, copy) for copy, start in enumerate(picked)])
    returns, finished, spent, iteration, started = torch.zeros(COPIES), [], 0, 0, time.perf_counter()
    while spent < budget:
        # a fragment of each copy; the noise depends on (seed, iteration) alone
        kept = []
        with stream(seed, iteration, "rollout.env_steps.collect", 0), torch.no_grad():
            for _ in range(STEPS):
                dist = net.distribution(obs)
                action = dist.sample()
                stepped = env.step(net.head.to_env(action))
                ended = stepped.terminated | stepped.truncated
                kept.append(
                    (obs, action, dist.log_prob(action), stepped.reward, stepped.terminated, ended, stepped.next_obs)
                )
                obs, returns = stepped.obs, returns + stepped.reward
                finished += returns[ended].tolist()
                returns = torch.where(ended, 0.0, returns)
        seen, actions, old, rewards, terminated, ended, following = (torch.stack(part, 1) for part in zip(*kept))

        # values before and after every decision: after a cut that of the true observation, after a real end none
        with torch.no_grad():
            values = net.values(seen.flatten(0, 1)).view(COPIES, STEPS)
            after = torch.cat((values[:, 1:], torch.zeros(COPIES, 1)), 1)
            anew = ended & ~terminated
            anew[:, -1] = True
            after[anew] = net.values(following[anew])
            after = torch.where(terminated, 0.0, after)

        # generalised advantages, the carry stops at either kind of end
        delta = rewards + GAMMA * after - values
        keep = GAMMA * LAM * (~ended).float()
        advantages, carry = torch.zeros_like(delta), torch.zeros(COPIES)
        for t in reversed(range(STEPS)):
            carry = delta[:, t] + keep[:, t] * carry
            advantages[:, t] = carry
        targets = (advantages + values).flatten()
        x = advantages.double()
        x = x - x.sum() / x.numel()
        advantages = (x / (x**2).sum().div(x.numel()).clamp(min=1e-8).sqrt()).float().flatten()
        seen, actions, old = seen.flatten(0, 1), actions.flatten(0, 1), old.flatten()

        rate = LR * (1 - min(spent / budget, 1.0))
        for group in optimizer.param_groups:
            group["lr"] = rate
        for epoch in range(EPOCHS):
            shuffle = torch.Generator().manual_seed(mix(seed, iteration, "split", 0, epoch))
            for pick in torch.randperm(COPIES * STEPS, generator=shuffle).split(MINIBATCH):
                dist, value = net.both(seen[pick])
                ratio = (dist.log_prob(actions[pick]) - old[pick]).clamp(-20, 20).exp()
                a, weight = advantages[pick], 1 / torch.tensor(float(len(pick)))
                surrogate = -torch.minimum(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a)
                loss = (surrogate * weight).sum()
                loss = loss + (VALUE * (value - targets[pick]) ** 2 * weight).sum()
                loss = loss + (-ENTROPY * dist.entropy() * weight).sum()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                grads = [p.grad for p in parameters]
                norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))))
                if not math.isfinite(norm):
                    raise RuntimeError(f"iteration {iteration}: the gradient is not finite")
                if norm > CLIP_NORM:
                    torch._foreach_mul_(grads, CLIP_NORM / norm)
                optimizer.step()
        spent, iteration = spent + COPIES * STEPS, iteration + 1
        if not quiet and finished:
            print(f"{spent:8,d} steps  return {sum(finished) / len(finished):6.1f}  gradient {norm:.2f}")
        finished = []
    return net, (time.perf_counter() - started) / iteration


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task", default="cart_pole")
    options = parser.parse_args()
    main(options.steps, options.seed, options.task)
