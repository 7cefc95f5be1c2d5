"""A student learns a teacher's distribution: from its own samples, or over the whole vocabulary."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gainstage.ops.divergences import full_kl, jsd

Divergence = Literal["forward_kl", "reverse_kl", "jsd"]


def sampled_token_distillation(
    logp: Tensor, student: Tensor, teacher: Tensor, mask: Tensor, weight: Tensor | None = None
) -> Tensor:
    """`-w (teacher - student) log pi "B T"` on the tokens that the student sampled; mean over tokens as aggregation.

    The mean of `teacher - student` under the student is minus the reverse KL at that prefix (on-policy
    distillation). It carries no gradient; only `logp` does.

    Args:
        logp: log-probs under the weights being trained.
        student: log-probs at sampling time, same temperature.
        teacher: the teacher's log-probs of the same tokens at the same prefixes.
        weight: `"B T"`, e.g. one that falls with the drift of the prefix (arXiv 2606.22600); 1 where absent.

    Raises:
        ValueError: a decision without a finite log-prob of teacher or student; the message counts them.
    """
    mask = mask.bool()
    for name, given in (("teacher", teacher), ("student", student)):
        if bad := int((mask & ~torch.isfinite(given)).sum()):
            raise ValueError(f"distillation: {bad} decisions have no finite {name} log-prob")
    advantage = torch.where(mask, teacher, 0.0) - torch.where(mask, student, 0.0)
    factor = advantage if weight is None else advantage * torch.where(mask, weight, 0.0)
    return -factor.detach() * torch.where(mask, logp, 0.0)


def token_distillation(
    student: Tensor,
    teacher: Tensor,
    mask: Tensor,
    divergence: Divergence = "reverse_kl",
    beta: float = 0.5,
    temperature: float = 1.0,
) -> Tensor:
    """Divergence of two next-token distributions at every decision, `"B T"`, 0 outside the mask.

    Generalised knowledge distillation, arXiv 2306.13649.

    `forward_kl` is KL(teacher || student): covers all that the teacher may say. `reverse_kl` is KL(student ||
    teacher): settles on what it says most. `jsd` lies between; `beta` is the teacher's share of the mixture.

    Args:
        student, teacher: logits `Float "B T V"`; no gradient through the teacher. NaN outside the mask is not read.
        temperature: divides both logits; the divergence is not multiplied by its square.

    Raises:
        ValueError: unknown divergence, another vocabulary size, a temperature that is not positive.
    """
    if student.shape[-1] != teacher.shape[-1]:
        raise ValueError(f"distillation: vocabularies differ, student {student.shape[-1]}, teacher {teacher.shape[-1]}")
    if not temperature > 0:
        raise ValueError(f"distillation.temperature must be > 0, got {temperature}")
    real = mask.bool().unsqueeze(-1)
    log_student = torch.log_softmax(torch.where(real, student, 0.0).float() / temperature, -1)
    log_teacher = torch.log_softmax(torch.where(real, teacher.detach(), 0.0).float() / temperature, -1)
    if divergence == "forward_kl":
        terms = full_kl(log_teacher, log_student)
    elif divergence == "reverse_kl":
        terms = full_kl(log_student, log_teacher)
    elif divergence == "jsd":
        terms = jsd(log_teacher, log_student, beta)
    else:
        raise ValueError(f"divergence must be forward_kl, reverse_kl or jsd, got {divergence!r}")
    return torch.where(mask.bool(), terms, 0.0)
