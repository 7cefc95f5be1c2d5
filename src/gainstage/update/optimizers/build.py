"""Optimizers by name, the learning-rate schedule, and the guard between gradients and weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from gainstage.registry import build, component, find
from gainstage.update.optimizers.roles import is_embedding_or_head, is_norm, owners

Named = Iterable[tuple[str, nn.Parameter]]
Schedule = Literal["constant", "linear", "cosine"]


class NonFinite(RuntimeError):
    """A loss or a gradient is not finite; the step was not taken and the weights are as before."""


def build_optimizer(
    named_parameters: Named,
    kind: str = "adamw",
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    module: nn.Module | None = None,
    **settings: Any,
) -> Optimizer:
    """The optimizer `kind` over the given parameters; a parameter listed twice (tied weights) counts once.

    `lr`, `betas`, `eps` and `weight_decay` reach the kinds that know them (`sgd` has no betas); `settings` are the
    kind's own and override them. A parameter group's `lr_scale`, where it has one, multiplies the scheduled rate.

    Args:
        named_parameters: `(name, parameter)` pairs in a fixed order: state is stored by position.
        module: the module that owns them: tells which matrices are embeddings, heads or attention, and which
            weights are norms.

    Raises:
        RecipeError: unknown kind or setting.
        ValueError: no parameters, or a setting out of its range.
    """
    unique = {id(parameter): (name, parameter) for name, parameter in reversed(list(named_parameters))}
    named = list(unique.values())[::-1]
    if not named:
        raise ValueError("optimizer: there are no parameters to train")
    if lr < 0 or weight_decay < 0:
        raise ValueError(f"optimizer: lr and weight_decay must be >= 0, got {lr} and {weight_decay}")
    known = find("optimizer", kind).settings
    if weight_decay and "weight_decay" not in known:
        raise ValueError(f"optimizer {kind} has no weight decay, got {weight_decay}; adamw has")
    both = settings.get("betas", betas)
    if not all(0 <= beta < 1 for beta in both):
        raise ValueError(f"optimizer: betas must lie in [0, 1), got {tuple(both)}")
    if not settings.get("eps", eps) >= 0:
        raise ValueError(f"optimizer: eps must be >= 0, got {settings.get('eps', eps)}")
    common = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    chosen = {key: value for key, value in common.items() if key in known} | settings
    return build("optimizer", kind, chosen, f"optimizer.{kind}")(named, module)


def decay_groups(
    named: list[tuple[str, nn.Parameter]], weight_decay: float, module: nn.Module | None
) -> list[dict[str, Any]]:
    """Parameter groups: matrices with `weight_decay`; biases, norms and 1-D tensors without. None is empty."""
    owner = owners(module)
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in named:
        exempt = parameter.dim() < 2 or name.endswith("bias") or is_norm(owner.get(id(parameter)))
        (plain if exempt else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


@component("optimizer")
def adamw(
    named: list[tuple[str, nn.Parameter]],
    module: nn.Module | None = None,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Adam with decoupled weight decay (arXiv 1711.05101); no decay on norms, biases and 1-D tensors."""
    return AdamW(decay_groups(named, weight_decay, module), lr=lr, betas=betas, eps=eps)


@component("optimizer")
def adam(
    named: list[tuple[str, nn.Parameter]],
    module: nn.Module | None = None,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> Optimizer:
    """Adam (arXiv 1412.6980) in one pass over the weights, the quickest on small nets; for decay take `adamw`."""
    return Adam([parameter for _, parameter in named], lr=lr, betas=betas, eps=eps, fused=True)


@component("optimizer")
def sgd(
    named: list[tuple[str, nn.Parameter]],
    module: nn.Module | None = None,
    *,
    lr: float = 1e-2,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Stochastic gradient descent, with momentum where asked."""
    return SGD(decay_groups(named, weight_decay, module), lr=lr, momentum=momentum, nesterov=nesterov)


@component("optimizer")
def rmsprop(
    named: list[tuple[str, nn.Parameter]],
    module: nn.Module | None = None,
    *,
    lr: float = 1e-3,
    alpha: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0.0,
    centered: bool = False,
    weight_decay: float = 0.0,
) -> Optimizer:
    """RMSProp: the gradient over a moving root mean square of itself (`alpha` = its memory).

    `weight_decay` is added to the gradient before it is scaled, unlike AdamW's.
    """
    groups = decay_groups(named, weight_decay, module)
    return RMSprop(groups, lr=lr, alpha=alpha, eps=eps, momentum=momentum, centered=centered)


@component("optimizer")
def muon(
    named: list[tuple[str, nn.Parameter]],
    module: nn.Module | None = None,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95,
    nesterov: bool = True,
    ns_steps: Annotated[int, Field(ge=1, lt=100)] = 5,
    lr_scale: Annotated[float, Field(gt=0)] = 1.0,
) -> Optimizer:
    """Muon for hidden matrices, AdamW for embeddings, heads, norms and biases, as one optimizer.

    Matrices step along their orthogonalised momentum, scaled to AdamW's usual update size (arXiv 2502.16982), so
    that `lr` serves both; `lr_scale` multiplies it for the matrices alone. Without `module` embeddings and heads
    are told by their names. Needs torch 2.9, which brought Muon; an older one is told so when the recipe is built.
    """
    if not hasattr(torch.optim, "Muon"):
        raise ValueError(f"optimizer muon needs torch 2.9 or later, this is {torch.__version__}: pip install -U torch")
    owner = owners(module)
    hidden = [p for n, p in named if p.dim() == 2 and not is_embedding_or_head(n, p, owner.get(id(p)), module)]
    chosen = {id(p) for p in hidden}
    parts: list[Optimizer] = []
    if hidden:
        group = {"params": hidden, "lr_scale": lr_scale}
        size: dict[str, Any] = {"ns_steps": ns_steps, "adjust_lr_fn": "match_rms_adamw"}
        parts.append(torch.optim.Muon([group], lr, weight_decay, momentum, nesterov, **size))
    if rest := [(n, p) for n, p in named if id(p) not in chosen]:
        parts.append(AdamW(decay_groups(rest, weight_decay, module), lr=lr, betas=betas, eps=eps))
    return Joined(parts)


class Joined(Optimizer):
    """Several optimizers over disjoint parameters as one: one list of groups, one state, one state dict."""

    def __init__(self, parts: list[Optimizer]) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._link()

    def _link(self) -> None:
        start = 0
        for part in self.parts:
            stop = start + len(part.param_groups)
            part.param_groups = self.param_groups[start:stop]
            part.state = self.state
            start = stop

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._link()


def scheduled_lr(lr: float, progress: float, schedule: Schedule = "constant", warmup: float = 0.0) -> float:
    """The learning rate at `progress` in [0, 1]: a pure function, so that a resumed run needs no scheduler state.

    It rises linearly over the share `warmup`, then stays (`constant`), falls in a straight line (`linear`) or along
    half a cosine (`cosine`) to 0 at progress 1.

    Raises:
        ValueError: unknown schedule, `warmup` outside [0, 1].
    """
    if not 0 <= warmup <= 1:
        raise ValueError(f"warmup is a share of the run in [0, 1], got {warmup}")
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return lr * progress / warmup
    left = (1 - progress) / (1 - warmup) if warmup < 1 else 1.0
    if schedule == "constant":
        return lr
    if schedule == "linear":
        return lr * left
    if schedule == "cosine":
        return lr * 0.5 * (1 - math.cos(math.pi * left))
    raise ValueError(f"schedule must be constant, linear or cosine, got {schedule!r}")


@torch.no_grad()
def clip_and_check(named: Named, max_norm: float | None) -> float:
    """Scale the gradients to a joint Euclidean norm of at most `max_norm` and return the norm before.

    `max_norm` 0, None or infinity only measures. Parameters without gradient are passed over; weights are never
    touched.

    Raises:
        NonFinite: a gradient holds NaN or an infinity; the message names the first such parameter.
    """
    found = [(name, parameter.grad) for name, parameter in named if parameter.grad is not None]
    if not found:
        return 0.0
    grads = [grad for _, grad in found]
    total = _joint_norm(grads)
    if not math.isfinite(total):
        for name, grad in found:
            if bad := int((~torch.isfinite(grad)).sum()):
                raise NonFinite(
                    f"the gradient of {name} is not finite ({bad} of {grad.numel()} entries); no step was taken"
                )
        total = _joint_norm([grad.double() for grad in grads])  # finite entries whose squares overflow float32
    if max_norm and total > max_norm:
        torch._foreach_mul_(grads, max_norm / total)
    return total


def _joint_norm(grads: list[Tensor]) -> float:
    return float(torch.linalg.vector_norm(torch.stack([n.to(grads[0].device) for n in torch._foreach_norm(grads)])))
