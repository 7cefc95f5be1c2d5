"""Which rows carry a gradient once the baseline is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gainstage.credit import ROW_REWARDS
from gainstage.ops.groups import finite_or_absent, group_rows
from gainstage.registry import component
from gainstage.types import Batch


def positive_only(advantage: Tensor) -> Tensor:
    """`max(A, 0)`: only better than baseline answers train (ablation of arXiv 2603.18756)."""
    return advantage.clamp(min=0)


def reject_constant(r: Tensor, keys: Tensor, wrong: bool = True, right: bool = True, success_at: float = 1.0) -> Tensor:
    """Bool "N": false for the rows of groups whose rewards are all equal (Reinforce-Rej, arXiv 2504.11343).

    A constant group is right where its reward reaches `success_at`, else wrong; a group of one is constant.

    Args:
        r: rewards, `Float "N"`; NaN takes no part and is kept out.
        keys: group of each row.
        wrong: reject the groups that are all wrong.
        right: reject the groups that are all right.
        success_at: reward that counts as right.
    """
    member = finite_or_absent(r, "reject_constant")
    groups = group_rows(keys, member)
    constant = groups.constant(r)
    solved = groups.mean(r) >= success_at - 1e-6
    rejected = constant & torch.where(
        solved, torch.tensor(right, device=r.device), torch.tensor(wrong, device=r.device)
    )
    return member & ~rejected[groups.index]


@component("credit")
@dataclass
class PositiveOnly:
    """Negative advantages become 0; their tokens stay in the loss's denominator."""

    needs = ("advantage",)
    writes = ("advantage",)

    def assign(self, batch: Batch) -> dict[str, Tensor]:
        return {"advantage": positive_only(batch["advantage"])}


@component("credit")
@dataclass
class RejectConstant:
    """Advantage 0 for every answer of a group whose answers are all wrong or all right."""

    wrong: bool = True
    """Reject the groups in which every answer fails; it is what steadies REINFORCE with negative rewards."""
    right: bool = True
    """Reject the groups in which every answer succeeds; keeps entropy up."""
    success_at: float = 1.0
    """Reward from which a constant group counts as right."""
    denominator: Literal["kept", "batch"] = "kept"
    """`kept`: rejected tokens leave the loss's denominator too; `batch`: they stay, which shrinks the step."""

    needs = (*ROW_REWARDS, "group", "advantage")

    @property
    def writes(self) -> tuple[str, ...]:
        return ("advantage", "mask") if self.denominator == "kept" else ("advantage",)

    def check_plan(self, samples: int) -> None:
        if samples < 2:
            raise ValueError(
                f"reject_constant would reject every group: select's samples must be 2 or more, got {samples}"
            )

    def assign(self, batch: Batch) -> dict[str, Tensor]:
        keep = self._keep(batch)
        written = {"advantage": torch.where(keep, batch["advantage"], torch.zeros_like(batch["advantage"]))}
        if self.denominator == "kept":
            written["mask"] = batch["mask"] & keep.unsqueeze(1)
        return written

    def statistics(self, batch: Batch) -> dict[str, float]:
        return {"groups/keep_rate": float(self._keep(batch).float().mean())}

    def _keep(self, batch: Batch) -> Tensor:
        return reject_constant(batch.rewards_at("row"), batch["group"], self.wrong, self.right, self.success_at)
