"""From sampled pieces to a trajectory: what every text rollout shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gainstage.types import Author, Completion, Ids, Message, Prompt, Request, Sampling, Stop, Trajectory

COLUMNS = ("tokens", "author", "turn", "mask", "behaviour_logprobs", "temperature", "greedy")
"""Columns of every text row."""

PROMPT_TURN = -1


@dataclass
class Context:
    """One context as it grows: ids in the order a model saw them, never tokenised again.

    Appending is the only way to change it, so all columns keep equal length.
    """

    ids: Ids = field(default_factory=list)
    author: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def append(self, ids: Ids, author: Author, turn: int, logprobs: Sequence[float] | None = None) -> None:
        """Add ids of one author.

        Args:
            logprobs: behaviour log-probs of sampled ids; None for text that nobody sampled (zeros).

        Raises:
            ValueError: sampled ids without a log-prob each.
        """
        if author is Author.POLICY and (logprobs is None or len(logprobs) != len(ids)):
            have = "none" if logprobs is None else str(len(logprobs))
            raise ValueError(
                f"an engine returned {len(ids)} sampled ids with {have} log-probs; it must return one each"
            )
        self.ids.extend(int(i) for i in ids)
        self.author.extend([int(author)] * len(ids))
        self.turn.extend([turn] * len(ids))
        self.logprobs.extend([0.0] * len(ids) if logprobs is None else [float(x) for x in logprobs])

    def copy(self) -> Context:
        """A context that grows on its own from here."""
        return Context(list(self.ids), list(self.author), list(self.turn), list(self.logprobs))

    def columns(self, sampling: Sampling, *, trained: bool) -> dict[str, Tensor]:
        """Step columns `[T]` and the row columns of the draw.

        The mask holds the policy's own tokens; it is empty where the row is not `trained` and for greedy rows,
        whose log-prob under temperature 0 is no log-prob that a gradient could use.
        """
        greedy = sampling.temperature == 0
        author = torch.tensor(self.author, dtype=torch.long)
        mask = author == int(Author.POLICY) if trained and not greedy else torch.zeros(len(self), dtype=torch.bool)
        return {
            "tokens": torch.tensor(self.ids, dtype=torch.long),
            "author": author,
            "turn": torch.tensor(self.turn, dtype=torch.long),
            "mask": mask,
            "behaviour_logprobs": torch.tensor(self.logprobs, dtype=torch.float32),
            "temperature": torch.tensor(sampling.temperature, dtype=torch.float32),
            "greedy": torch.tensor(float(greedy)),
        }


def opening(policy: Any, prompt: str | Sequence[Message], hint: Ids | None = None) -> Context:
    """The context before the first answer: the encoded prompt and, behind it, the hint's ids."""
    context = Context()
    context.append(policy.encode(prompt), Author.PROMPT, PROMPT_TURN)
    context.append(hint or [], Author.HINT, PROMPT_TURN)
    return context


def episode_id(group: int, sample: int) -> int:
    """One id per (group, sample), in int64: the sample takes the low 20 bits."""
    if not 0 <= sample < 1 << 20:
        raise ValueError(f"sample index {sample} of group {group} must lie in [0, {1 << 20})")
    return (group << 20) | sample


def trajectory(
    request: Request,
    sample: int,
    policy: Any,
    context: Context,
    stop: Stop,
    sampling: Sampling,
    *,
    turns: Mapping[str, Tensor] | None = None,
    parts: Mapping[str, float | None] | None = None,
    info: Mapping[str, Any] | None = None,
) -> Trajectory:
    """The row of one context. A failed row keeps its tokens for the eye and an empty mask for the gradient.

    Args:
        sample: index inside the group (`request.first` included).
        turns: turn columns `[U]`.
    """
    return Trajectory(
        problem=request.problem,
        group=request.group,
        sample=sample,
        episode=episode_id(request.group, sample),
        actor=policy.role,
        version=policy.version,
        stop=stop,
        columns={**context.columns(sampling, trained=stop is not Stop.FAILED), **(turns or {})},
        parts=dict(parts or {}),
        info=dict(info or {}),
    )


def sampling_for(request: Request, default: Sampling, *, allow_support_cuts: bool) -> Sampling:
    """The request's own sampling where it has one, else the rollout's; checked."""
    sampling = default if request.sampling is None else request.sampling
    refuse_support_cuts(sampling, allow_support_cuts)
    return sampling


def training_sampling(
    temperature: float, top_k: int, top_p: float, min_p: float, *, allow_support_cuts: bool
) -> Sampling:
    """The sampling of a rollout whose rows are trained.

    Raises:
        ValueError: a setting out of range, temperature 0, or a cut tail that is not allowed.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p)
    if temperature == 0:
        raise ValueError(
            "temperature 0 answers greedily and leaves nothing to train: set it above 0; greedy answers are asked for "
            "one request at a time (Request.sampling)"
        )
    refuse_support_cuts(sampling, allow_support_cuts)
    return sampling


def refuse_support_cuts(sampling: Sampling, allow: bool) -> None:
    """Refuse top-k, top-p and min-p where rows are trained.

    Raises:
        ValueError: the sampling cuts off tokens and `allow` is false.
    """
    if sampling.changes_support and not allow:
        raise ValueError(
            f"top_k={sampling.top_k}, top_p={sampling.top_p}, min_p={sampling.min_p} cut off tokens while sampling; "
            "but the log-probs of training are those of the full softmax, so every importance ratio would be "
            "wrong: leave them at 0, 1 and 0 (temperature is fine), or set allow_support_cuts=true where the rows are "
            "only evaluated"
        )


@dataclass(frozen=True)
class Draw:
    """One sample to be drawn: where it goes on, and under which key."""

    ids: Ids
    key: int
    sampling: Sampling


def draw(
    policy: Any, wanted: Sequence[Draw], *, max_new: int, stop: Sequence[str] = (), limit: int | None = None
) -> list[Completion]:
    """One completion per draw, in order, by one call of the engine.

    Draws with the same context and sampling share one prompt, so their prefill is shared. Where `limit` (the
    context's size in tokens) leaves less than `max_new`, the draw gets what is left in a call of its own size and
    ends with `Stop.CONTEXT` instead of `Stop.LENGTH`; where it leaves nothing, the completion is empty.
    """
    if max_new < 1:
        raise ValueError(f"max_new must be at least 1, got {max_new}")
    room = [max_new if limit is None else min(max_new, limit - len(item.ids)) for item in wanted]
    found: list[Completion | None] = [None if r > 0 else Completion([], [], Stop.CONTEXT) for r in room]
    for size in sorted({r for r in room if r > 0}, reverse=True):
        members = [i for i, r in enumerate(room) if r == size]
        for index, completion in zip(members, _draw([wanted[i] for i in members], policy, size, stop), strict=True):
            short = size < max_new and completion.stop is Stop.LENGTH
            found[index] = replace(completion, stop=Stop.CONTEXT) if short else completion
    return [completion for completion in found if completion is not None]


def _draw(wanted: Sequence[Draw], policy: Any, max_new: int, stop: Sequence[str]) -> list[Completion]:
    shared: dict[tuple[tuple[int, ...], Sampling], list[int]] = {}
    for index, item in enumerate(wanted):
        shared.setdefault((tuple(item.ids), item.sampling), []).append(index)
    prompts = [
        Prompt(list(ids), tuple(wanted[i].key for i in members), sampling)
        for (ids, sampling), members in shared.items()
    ]
    answers = policy.generate(prompts, max_new=max_new, stop=tuple(stop))
    found: dict[int, Completion] = {}
    for members, completions in zip(shared.values(), answers, strict=True):
        found.update(zip(members, completions, strict=True))
    return [found[i] for i in range(len(wanted))]


def closed_text(policy: Any, completion: Completion, stop: Sequence[str]) -> str:
    """The completion's text with the stop string that ended it, if one did.

    `Completion.text` is trimmed at the stop string; a parser of calls needs the closing marker back to tell a
    closed call from one that was cut.
    """
    if completion.stop is not Stop.EOS or not stop:
        return completion.text
    whole = policy.decode(completion.ids)
    for marker in sorted(stop, key=len, reverse=True):
        if whole.startswith(completion.text + marker):
            return completion.text + marker
    return completion.text
