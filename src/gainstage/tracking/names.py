"""The names of metrics: one tree, `what/who/statistic`, each with its unit and one line of meaning."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

from gainstage.measure.budget import AXES


class Metric(NamedTuple):
    """What a number is: the unit it is counted in and its meaning in one line."""

    unit: str
    meaning: str


NAMES: dict[str, Metric] = {
    "reward/mean": Metric("reward", "mean total reward of the answers (episodes) of the iteration, before any filter"),
    "reward/std": Metric("reward", "standard deviation of the total reward over the answers of the iteration"),
    "reward/scale": Metric("reward", "what rewards are divided by where they are learned from"),
    "reward/part/{name}/mean": Metric("reward", "mean of one part of the reward where it applies, before its weight"),
    "groups/size": Metric("answers", "answers a group that were trained on"),
    "groups/zero_variance": Metric("share", "groups whose rewards are all equal: they give no group-relative signal"),
    "groups/equal": Metric("groups", "groups whose rewards count as equal (spread below the threshold): advantage 0"),
    "groups/no_baseline": Metric("groups", "groups without an answer to take a baseline from"),
    "groups/small_spread": Metric("share", "groups whose rewards differ by less than a hundredth"),
    "groups/single": Metric("groups", "groups that shrank to one answer at run time; its advantage is 0"),
    "groups/keep_rate": Metric("share", "groups that the filter kept"),
    "dropped/groups": Metric("groups", "groups sampled and then filtered out; their tokens are spent all the same"),
    "dropped/unjudged": Metric("answers", "answers to which no reward applies; they are not trained on"),
    "dropped/no_room": Metric("answers", "answers whose prompt fills the model's context; they are not trained on"),
    "dropped/empty_iterations": Metric("iterations", "iterations that left nothing to train on"),
    "dropped/{kind}": Metric("count", "what the iteration sampled and did not train on"),
    "length/mean": Metric("tokens", "mean number of tokens (steps) the policy wrote in an answer (episode)"),
    "length/max": Metric("tokens", "longest answer (episode) of the iteration"),
    "length/truncated": Metric("share", "answers cut off by a limit of tokens, context or turns"),
    "episode/return": Metric(
        "reward", "mean return of the episodes that ended in the iteration, as the task pays them"
    ),
    "episode/length": Metric("steps", "mean length of the episodes that ended in the iteration"),
    "episode/success": Metric("share", "episodes that ended in the iteration and reached the task's goal"),
    "episode/count": Metric("episodes", "episodes that ended in the iteration"),
    "episode/rooms": Metric("rooms", "mean number of distinct rooms of the episodes that ended in the iteration"),
    "visits/places": Metric("places", "distinct places of the world that training has been to so far"),
    "bonus/raw": Metric("bonus", "mean of an exploration bonus before it is scaled"),
    "bonus/scale": Metric("bonus", "what the exploration bonus is divided by"),
    "bonus/mean": Metric("reward", "mean of an exploration bonus as it is learned from, before its weight"),
    "bonus/loss": Metric("loss", "loss of the nets that an exploration bonus is made of"),
    "bonus/count": Metric("visits", "mean number of visits of the states that actions led to, in episode or life"),
    "bonus/distinct": Metric("states", "distinct states counted so far"),
    "bonus/feature_std": Metric("std", "mean std of the embedding that a bonus is made of; near 0 it tells nothing"),
    "bonus/clipped": Metric("share", "steps whose reward and bonus together are cut"),
    "turns/mean": Metric("turns", "mean number of turns of an episode"),
    "thompson/picks/{lower}": Metric("share", "picks whose believed success rate lies in the fifth that begins there"),
    "thompson/coverage": Metric("share", "problems that were picked at least once so far"),
    "thompson/most_picks": Metric("picks", "how often the problem picked most often was picked so far"),
    "advantage/mean": Metric("advantage", "mean advantage over trained decisions"),
    "advantage/std": Metric("advantage", "standard deviation of the advantage over trained decisions"),
    "loss": Metric("loss", "what the policy's optimizer minimises, mean over its steps"),
    "{learner}/loss": Metric("loss", "what this learner's optimizer minimises, mean over its steps"),
    "skipped": Metric("share", "optimizer steps left out because nothing in the minibatch could be learned from"),
    "kl/ref": Metric("nats per token", "estimate of the divergence of the policy from the reference (k3 in a loss)"),
    "kl/ref_dropped": Metric("share", "decisions without a finite reference log-prob; they are left out"),
    "kl/start": Metric("nats per token", "divergence of the policy from the weights it started with"),
    "kl/behaviour": Metric("nats per token", "k3 estimate of how far the update moved from the policy that sampled"),
    "kl/sampler": Metric("nats per token", "log-prob that the sampler recorded less that of the trainer, mean"),
    "kl/full": Metric("nats per token", "divergence of the policy from a role over the whole vocabulary"),
    "kl/position/{place}": Metric("nats", "the same at one place of the answer, 1 = its first decision"),
    "entropy/mean": Metric("nats per token", "mean entropy of the policy over trained decisions"),
    "ratio/mean": Metric("ratio", "mean importance ratio of trained decisions"),
    "ratio/max": Metric("ratio", "largest importance ratio of a trained decision"),
    "ratio/clipped_low": Metric("share", "decisions whose gradient is cut because their ratio fell below the range"),
    "ratio/clipped_high": Metric("share", "decisions whose gradient is cut because their ratio rose above the range"),
    "ratio/masked": Metric("share", "decisions that a mask on ratios leaves out of the loss"),
    "ratio/dropped": Metric("share", "decisions without a finite ratio; they are left out"),
    "importance/weight": Metric("ratio", "mean weight that corrects for the policy that sampled"),
    "tv/mean": Metric("share", "mean total variation between the policy and the one that sampled, per decision"),
    "ratio/clipped_dual": Metric("share", "decisions of negative advantage whose gradient the dual clip cuts"),
    "drift/mean": Metric("return", "mean of what the drift takes off the surrogate, per trained decision"),
    "drift/log_ratio_negative": Metric("nats", "mean size of the log-ratio of decisions with a negative advantage"),
    "grad/norm": Metric("norm", "norm of the gradient before it is clipped, mean over optimizer steps"),
    "{learner}/grad/norm": Metric("norm", "the same of this learner"),
    "lr": Metric("per step", "learning rate of the policy's optimizer, mean over its steps"),
    "{learner}/lr": Metric("per step", "learning rate of this learner"),
    "value/loss": Metric("loss", "loss of the value function, mean over optimizer steps"),
    "value/mean": Metric("return", "mean of the values that the value function gives to trained decisions"),
    "value/explained_variance": Metric("share", "variance of the returns that the values explain; 1 is perfect"),
    "eval/{task}/pass@{k}": Metric("share", "held-out problems solved by at least one of k answers, unbiased estimate"),
    "eval/{task}/greedy": Metric("share", "held-out problems that the likeliest answer (temperature 0) solves"),
    "eval/{task}/greedy/{end}": Metric("share", "an end of the 95 % interval of that share"),
    "eval/{task}/pass@{k}/{end}": Metric("share", "an end of the 95 % interval of that share"),
    "eval/{task}/reward/mean": Metric("reward", "mean reward on held-out problems"),
    "eval/{task}/reward/mean/{end}": Metric(
        "reward", "an end of the 95 % interval of that mean, over problems (starts)"
    ),
    "eval/{task}/length/mean": Metric("tokens", "mean length of an answer to a held-out problem"),
    "eval/{task}/{statistic}": Metric("", "a figure of the evaluation on held-out problems"),
    "eval/{task}/{what}/{statistic}": Metric("", "a figure of the evaluation on held-out problems"),
    **{f"budget/{axis}": Metric(kind.unit, kind.meaning + ", so far") for axis, kind in AXES.items()},
    "iteration": Metric("iterations", "number of the iteration, from 0; -1 is before training"),
    "seconds": Metric("seconds", "wall-clock time since the run began, evaluation included"),
    "progress": Metric("share", "how much of the run is done, by iterations or budget, whichever is further"),
    "time/collect": Metric("seconds", "time of the iteration's rollout, judging and filtering"),
    "time/learn": Metric("seconds", "time of the iteration's credit and optimizer steps"),
    "time/{stage}": Metric("seconds", "time this stage took in the iteration"),
    "failures/log": Metric("count", "records that could not be written, for example because the disk was full"),
    "failures/reward/{name}": Metric("answers", "answers whose reward was not finite; they are not trained on"),
    "failures/{kind}": Metric("count", "failures of this kind in the iteration; what failed is never trained on"),
}
"""Name -> unit and meaning. `{...}` stands for one word; the first entry that fits a name is its meaning."""

ALIASES: dict[str, dict[str, str]] = {
    "trl": {
        "reward/mean": "reward",
        "reward/std": "reward_std",
        "reward/part/{name}/mean": "rewards/{name}/mean",
        "groups/zero_variance": "frac_reward_zero_std",
        "length/mean": "completions/mean_length",
        "length/max": "completions/max_length",
        "length/truncated": "completions/clipped_ratio",
        "kl/ref": "kl",
        "entropy/mean": "entropy",
        "ratio/clipped_low": "clip_ratio/low_mean",
        "ratio/clipped_high": "clip_ratio/high_mean",
        "grad/norm": "grad_norm",
        "lr": "learning_rate",
        "loss": "loss",
        "budget/generated_tokens": "num_tokens",
    },
    "verl": {
        "reward/mean": "critic/rewards/mean",
        "reward/std": "critic/rewards/std",
        "advantage/mean": "critic/advantages/mean",
        "length/mean": "response_length/mean",
        "length/max": "response_length/max",
        "length/truncated": "response_length/clip_ratio",
        "turns/mean": "num_turns/mean",
        "kl/ref": "actor/kl_loss",
        "kl/behaviour": "actor/ppo_kl",
        "entropy/mean": "actor/entropy",
        "ratio/clipped_high": "actor/pg_clipfrac",
        "ratio/clipped_low": "actor/pg_clipfrac_lower",
        "grad/norm": "actor/grad_norm",
        "loss": "actor/pg_loss",
        "lr": "actor/lr",
        "value/loss": "critic/vf_loss",
        "value/explained_variance": "critic/vf_explained_var",
        "time/collect": "timing_s/gen",
        "time/learn": "timing_s/update_actor",
    },
    "sb3": {
        "reward/mean": "rollout/ep_rew_mean",
        "length/mean": "rollout/ep_len_mean",
        "kl/behaviour": "train/approx_kl",
        "ratio/clipped_high": "train/clip_fraction",
        "entropy/mean": "train/entropy",
        "value/loss": "train/value_loss",
        "value/explained_variance": "train/explained_variance",
        "loss": "train/policy_gradient_loss",
        "lr": "train/learning_rate",
        "eval/{task}/reward/mean": "eval/mean_reward",
        "budget/env_steps": "time/total_timesteps",
        "budget/seconds": "time/time_elapsed",
    },
}
"""Spelling -> our name -> theirs, for `--log-names`. Names without an alias keep ours."""


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", name)
    return re.compile("".join(f"(?P<{part}>[^/]+)" if i % 2 else re.escape(part) for i, part in enumerate(parts)))


def _match(name: str, table: Mapping[str, object]) -> tuple[str, dict[str, str]] | None:
    if name in table:
        return name, {}
    for candidate in table:
        if "{" in candidate and (found := _pattern(candidate).fullmatch(name)):
            return candidate, found.groupdict()
    return None


def describe(name: str) -> Metric | None:
    """Unit and meaning of a metric; None where a component logs a name of its own."""
    found = _match(name, NAMES)
    return NAMES[found[0]] if found else None


def fits(name: str) -> dict[str, str] | None:
    """What stands in the places of the entry that a name fits; None where it fits none."""
    found = _match(name, NAMES)
    return found[1] if found else None


def spelling(name: str, scheme: str | None) -> str:
    """The name of a metric as TRL, verl or Stable-Baselines3 write it; ours where they have none.

    Raises:
        ValueError: an unknown scheme.
    """
    if scheme is None or scheme == "gainstage":
        return name
    if scheme not in ALIASES:
        raise ValueError(f"log_names must be one of gainstage, {', '.join(ALIASES)}; got {scheme!r}")
    found = _match(name, ALIASES[scheme])
    return ALIASES[scheme][found[0]].format(**found[1]) if found else name
