"""Adam with one second moment per block of weights: about half the optimizer's memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gainstage.registry import component
from gainstage.update.optimizers.build import decay_groups
from gainstage.update.optimizers.partition import Blocks, Partition

FLOOR = 1e-30
"""Least second moment: a block whose gradient stays 0 decays to nothing, and m / eps would explode."""
NOTHING = 1e-20
"""First moments below count as 0."""


class AdamMini(Optimizer):
    """AdamW whose second moment is a mean per block of the Hessian's structure (Adam-mini, arXiv 2406.16793).

    With vbar_B the moving mean of g^2 averaged over block B, every weight of B steps by
    `lr m_hat / (sqrt(vbar_hat_B) + eps)`; decay is decoupled and spares norms, biases and 1-D tensors. Blocks of
    single elements give AdamW. Numbers held: one a weight and one a block, instead of two a weight.

    A parameter without gradient is passed over: no decay, and its step count (one per tensor) stays.

    Args:
        named: `(name, parameter)` pairs, each parameter once.
        partition: `(name, parameter) -> Blocks`.
        module: the module that owns the parameters; tells norms for the decay.

    Raises:
        ValueError: betas outside [0, 1), or the partition refuses a tensor.
    """

    def __init__(
        self,
        named: list[tuple[str, nn.Parameter]],
        partition: Callable[[str, nn.Parameter], Blocks],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        module: nn.Module | None = None,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"adam_mini.betas must lie in [0, 1), got {betas}")
        self.blocks = {id(parameter): partition(name, parameter) for name, parameter in named}
        self.names = {id(parameter): name for name, parameter in named}
        super().__init__(decay_groups(named, weight_decay, module), {"lr": lr, "betas": betas, "eps": eps})
        self._write_rules()

    def _write_rules(self) -> None:
        for group in self.param_groups:
            group["rules"] = [self.blocks[id(parameter)].rule for parameter in group["params"]]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group)
        return loss

    @torch.no_grad()
    def _step(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        blocks, state, (b1, b2) = self.blocks[id(parameter)], self.state[parameter], group["betas"]
        grad = parameter.grad
        assert grad is not None
        square = blocks.means(grad.float().square())
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(square)
        state["step"] += 1
        count = float(state["step"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        first = state["exp_avg"].lerp_(grad.to(parameter.dtype), 1 - b1)
        second = state["exp_avg_sq"].mul_(b2).add_(square, alpha=1 - b2)
        root = (second.clamp(min=FLOOR) / (1 - b2**count)).sqrt() + group["eps"]
        moved = torch.nn.functional.hardshrink(first, NOTHING) / blocks.spread(root, parameter.shape)
        parameter.add_(moved.to(parameter.dtype), alpha=-group["lr"] / (1 - b1**count))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take a saved state, also AdamW's, whose second moments are averaged over the blocks.

        Raises:
            ValueError: a tensor was cut by another rule when the state was saved.
        """
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        saved = state_dict["param_groups"]
        positions = [index for group in saved for index in group["params"]]
        rules = [rule for group in saved for rule in group.get("rules", [None] * len(group["params"]))]
        second: dict[int, Tensor] = {}
        for parameter, position, rule in zip(parameters, positions, rules, strict=True):
            blocks = self.blocks[id(parameter)]
            if rule is not None and rule != blocks.rule:
                name = self.names[id(parameter)]
                raise ValueError(
                    f"adam_mini: {name} was saved with the rule {rule!r}, this run cuts it by {blocks.rule!r}"
                )
            if position in state_dict["state"]:
                value = state_dict["state"][position]["exp_avg_sq"].to(parameter.device, torch.float32)
                second[id(parameter)] = blocks.means(value) if rule is None else value.clone()
        super().load_state_dict(state_dict)  # type: ignore[arg-type]
        for parameter in parameters:
            if id(parameter) in second:
                self.state[parameter]["exp_avg_sq"] = second[id(parameter)]  # in float32, whatever the weights are
        self._write_rules()

    def numbers(self) -> tuple[int, int]:
        """How many first and second moments are held: weights and blocks."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        return sum(p.numel() for p in parameters), sum(self.blocks[id(p)].count for p in parameters)

    def table(self, fold: bool = False) -> str:
        """The partition, one tensor a line: name, shape, rule, number of blocks; and the sum.

        Args:
            fold: layers that are cut alike share a line, `*` for their number.
        """
        seen: dict[tuple[str, str, str], int] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                name, blocks = self.names[id(parameter)], self.blocks[id(parameter)]
                shape = "x".join(map(str, parameter.shape)) or "scalar"
                key = (re.sub(r"\.\d+\.", ".*.", name) if fold else name, shape, blocks.rule)
                seen[key] = seen.get(key, 0) + blocks.count
        weights, count = self.numbers()
        rows = [("tensor", "shape", "rule", "blocks"), *((*key, f"{blocks:,}") for key, blocks in seen.items())]
        rows.append(("sum", f"{weights:,} weights", "", f"{count:,}"))
        a, b, c, d = (max(map(len, column)) for column in zip(*rows))
        return "\n".join(f"{name:<{a}}  {shape:<{b}}  {rule:<{c}}  {count:>{d}}" for name, shape, rule, count in rows)


@component("optimizer")
def adam_mini(
    named: list[tuple[str, nn.Parameter]],
    module: nn.Module | None = None,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    heads: int | None = None,
    kv_heads: int | None = None,
    value: Literal["rows", "tensor"] = "rows",
    rules: dict[str, str] | None = None,
) -> Optimizer:
    """Adam-mini: one second moment per head, row or norm; learning rate and decay as for AdamW.

    `heads` and `kv_heads` are read from the model where it says them; `value: tensor` gives each value matrix one
    block (short runs); `rules` maps glob patterns of parameter names to element, tensor, rows, columns, heads or
    kv_heads. `table()` of the result shows the cut.
    """
    partition = Partition(module, heads, kv_heads, value, rules or {})
    return AdamMini(named, partition, lr, betas, eps, weight_decay, module)
