"""Token values from a language-model trunk of their own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gainstage.policies.language.causal_lm import CausalPolicy
from gainstage.registry import RecipeError, component
from gainstage.types import Batch, PolicyOut


class ValueModel(nn.Module):
    """A trunk and one linear output a position."""

    def __init__(self, trunk: nn.Module, width: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


class ValuePolicy:
    """`evaluate(batch, want=("values",))`: V(context before token t) at every decision, `Float "B T"`.

    The value of a decision sees the tokens before it and not the token itself.
    """

    markov = False

    def __init__(self, policy: CausalPolicy, module: ValueModel, role: str) -> None:
        self.policy, self.module, self.role, self.version, self.peft = policy, module, role, 0, None
        self.size = sum(p.numel() for p in module.parameters())

    def evaluate(self, batch: Batch, want: Sequence[str] = ()) -> PolicyOut:
        ids, mask, real = batch["tokens"], batch["mask"].clone(), batch.real()
        mask[:, 0] = False
        rows, steps = torch.nonzero(mask, as_tuple=True)
        hidden = self.policy.hidden(ids, real)
        meter = self.policy.meter
        if not torch.is_grad_enabled():
            meter.charge("scored_tokens", float(real.sum()))
        meter.charge("flops", (6 if torch.is_grad_enabled() else 2) * self.size * float(real.sum()))
        found = self.module.head(hidden[rows, steps - 1]).squeeze(-1).float()
        index = rows * mask.shape[1] + steps
        values = torch.zeros(mask.shape, device=ids.device).view(-1).index_put((index,), found).view(mask.shape)
        return PolicyOut(torch.zeros_like(values), values=values)

    def snapshot(self, role: str, *, frozen: bool = True) -> ValuePolicy:
        module = copy.deepcopy(self.module).requires_grad_(not frozen)
        return ValuePolicy(_over(module, self.policy, role), module, role)


def _over(module: ValueModel, like: CausalPolicy, role: str) -> Any:
    """A handle that runs the value model's own trunk with the packing of a policy."""
    handle = copy.copy(like)
    handle.module, handle.role, handle.peft, handle.adapters = module.trunk, role, None, True
    return handle


@component("net")
@dataclass
class ValueHead:
    """A critic with a trunk of its own: a copy of the role named by `of` and a linear head that starts at zero.

    `of` names the policy whose weights and tokenizer it begins with.
    """

    def make(
        self, role: str, meter: Any, device: torch.device, trained: bool, of: CausalPolicy | None = None
    ) -> ValuePolicy:
        if of is None:
            raise RecipeError(
                f"models.{role}: a value head needs a policy to start from; write {{net: value_head, of: policy}}"
            )
        trunk = copy.deepcopy(of.module).requires_grad_(trained)
        trunk.get_output_embeddings().weight.requires_grad_(trained)
        module = ValueModel(trunk, trunk.config.hidden_size).to(device).requires_grad_(trained)
        return ValuePolicy(_over(module, of, role), module, role)
