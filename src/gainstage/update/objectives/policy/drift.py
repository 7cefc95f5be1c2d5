"""Mirror learning: ratio times advantage, less a drift that keeps the new policy near the old one.

`E[r A - D(r, A)]` improves monotonically, in theory, for every D that is at least 0, is 0 at r = 1 and has no slope
there (Grudzien et al., arXiv 2201.02373). PPO's clip is one such D. Lu et al., "Discovered policy optimisation"
(arXiv 2210.05639), let evolution find another one as a small net, and read a closed form off it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file as load_tensors
from torch import Tensor

from gainstage.ops.divergences import kl_estimate
from gainstage.ops.masked import masked_mean, masked_var
from gainstage.registry import RecipeError, component, load_file, near
from gainstage.types import Batch, PolicyOut
from gainstage.update.objectives.policy.importance import dropped, log_ratio

LIMIT = 10.0
"""Bound of a log-ratio, nats: an action whose old probability is 0 has a ratio that is large, not infinite."""
EQUAL = 1e-6
"""Advantages that differ by less than this share of the largest are equal: what is left of them is rounding."""
SLACK = 1e-4
"""A learnt drift is 0 until its net exceeds this."""


class Drift(Protocol):
    """`(ratio, log_ratio, advantage) -> D >= 0`, all `Float "*"`."""

    def __call__(self, ratio: Tensor, log_ratio: Tensor, adv: Tensor) -> Tensor: ...


def none(ratio: Tensor, log_ratio: Tensor, adv: Tensor) -> Tensor:
    """No drift: the ratio's surrogate without a bound. For comparison; it is unstable over many passes."""
    return torch.zeros_like(ratio)


def ppo_clip(ratio: Tensor, log_ratio: Tensor, adv: Tensor, *, eps: float = 0.2) -> Tensor:
    """`relu((r - clip(r, 1 - eps, 1 + eps)) A)`: the same objective as PPO's `min(r A, clip(r) A)`.

    Raises:
        ValueError: eps is not positive.
    """
    if not eps > 0:
        raise ValueError(f"drift ppo_clip: eps must be positive, got {eps}")
    return torch.relu((ratio - ratio.clamp(1 - eps, 1 + eps)) * adv)


def discovered(ratio: Tensor, log_ratio: Tensor, adv: Tensor, *, alpha: float = 2.0, beta: float = 0.6) -> Tensor:
    """Discovered policy optimisation (arXiv 2210.05639, section 5).

    For A >= 0 `relu((r - 1) A - alpha tanh((r - 1) A / alpha))`, a smooth cut-off; for A < 0
    `relu(log r A - beta tanh(log r A / beta))`, which takes an action back up that has fallen too far. Both constants
    suppose standardised advantages.

    Raises:
        ValueError: alpha or beta is not positive.
    """
    if not (alpha > 0 and beta > 0):
        raise ValueError(f"drift discovered: alpha and beta must be positive, got {alpha} and {beta}")
    up, down = (ratio - 1) * adv, log_ratio * adv
    return torch.relu(torch.where(adv >= 0, up - alpha * (up / alpha).tanh(), down - beta * (down / beta).tanh()))


def kl(ratio: Tensor, log_ratio: Tensor, adv: Tensor, *, beta: float = 1.0) -> Tensor:
    """`beta (r - 1 - log r)`, whose mean over the old policy's actions is beta KL(old || new).

    Raises:
        ValueError: beta is negative.
    """
    if not beta >= 0:
        raise ValueError(f"drift kl: beta must not be negative, got {beta}")
    return beta * (ratio - 1 - log_ratio)


def features(ratio: Tensor, log_ratio: Tensor, adv: Tensor) -> Tensor:
    """What a learnt drift sees, `"* 8"`: x and A x with x = [log r, (log r)^2, 1 - r, (1 - r)^2], all 0 at r = 1."""
    gap = 1 - ratio
    x = torch.stack((log_ratio, log_ratio.square(), gap, gap.square()), -1)
    return torch.cat((x, adv.unsqueeze(-1) * x), -1)


def learnt(
    ratio: Tensor, log_ratio: Tensor, adv: Tensor, *, params: Mapping[str, Tensor], eps: float | None = None
) -> Tensor:
    """`relu(net(features) - 1e-4)` of a net without biases: a drift whatever its weights are (arXiv 2210.05639).

    At r = 1 the features are 0, so is the net, and the relu is flat around there.

    Args:
        params: `hidden "H 8"` and `out "H"`.
        eps: PPO's clip of this width is added inside the relu, so that weights near 0 mean PPO; None = without.
    """
    hidden, out = params["hidden"].to(ratio), params["out"].to(ratio)
    net = (features(ratio, log_ratio, adv) @ hidden.T).tanh() @ out
    start = 0.0 if eps is None else ppo_clip(ratio, log_ratio, adv, eps=eps)
    return torch.relu(start + net - SLACK)


def unflatten(theta: Tensor) -> dict[str, Tensor]:
    """A learnt drift's weights from one vector `"9 H"`, as evolution moves them.

    Raises:
        ValueError: its length is no multiple of 9.
    """
    width, rest = divmod(theta.shape[-1], 9)
    if rest or not width:
        raise ValueError(f"a drift net of H hidden units has 9 H weights, got {theta.shape[-1]}")
    return {"hidden": theta[..., : 8 * width].unflatten(-1, (width, 8)), "out": theta[..., 8 * width :]}


KINDS: dict[str, Callable[..., Tensor]] = {
    "discovered": discovered, "ppo_clip": ppo_clip, "kl": kl, "learnt": learnt, "none": none,
}  # fmt: skip
SHIPPED = "shipped"


@lru_cache(maxsize=16)
def load_params(source: str) -> dict[str, Tensor]:
    """Weights of a learnt drift: those that come with the package (`shipped`), or a file of safetensors.

    Raises:
        RecipeError: no such file, a damaged one, or other weights than a drift's.
    """
    try:
        if source == SHIPPED:
            with as_file(files(__package__) / "learnt_drift.safetensors") as path:
                found = load_tensors(path)
        else:
            found = load_tensors(Path(source))
    except (OSError, SafetensorError) as error:
        raise RecipeError(f"drift learnt: params {source!r} cannot be read: {error}") from None
    if set(found) != {"hidden", "out"} or found["hidden"].shape != (*found["out"].shape, 8):
        shapes = {name: tuple(value.shape) for name, value in found.items()}
        raise RecipeError(f"drift learnt: {source!r} must hold hidden [H, 8] and out [H], it holds {shapes}")
    return found


def make_drift(kind: str | Mapping[str, Any]) -> Drift:
    """A drift by name, by `name: settings`, or a function of the user's own, `file.py:name`.

    Raises:
        RecipeError: an unknown name or setting, or one that is out of its range; a function that is no drift.
    """
    name, settings = (kind, {}) if isinstance(kind, str) else next(iter(kind.items()), ("", {}))
    settings = dict(settings or {})
    if not isinstance(kind, str) and len(kind) != 1:
        raise RecipeError(f"drift.kind is a name or one `name: settings` pair, got {dict(kind)}")
    if ".py:" in name:
        file, _, function = name.rpartition(":")
        own = getattr(load_file(Path(file)), function, None) if Path(file).is_file() else None
        if not callable(own):
            raise RecipeError(f"drift.kind: {name} names no function; write file.py:function")
        made: Drift = partial(own, **settings)
        check_drift(made, name)
        return made
    if name not in KINDS:
        raise RecipeError(f"drift.kind: no drift {name!r}; {near(name, KINDS)}, or file.py:function")
    known = list(inspect.signature(KINDS[name]).parameters)[3:]
    if unknown := sorted(set(settings) - set(known)):
        raise RecipeError(f"drift.kind.{name}: no setting {unknown[0]!r}; {near(unknown[0], known)}")
    if name == "learnt":
        settings["params"] = load_params(str(settings.get("params", SHIPPED)))
    made = partial(KINDS[name], **settings)
    try:
        made(torch.ones(1), torch.zeros(1), torch.ones(1))
    except (TypeError, ValueError) as error:
        raise RecipeError(f"drift.kind.{name}: {error}") from None
    return made


def check_drift(drift: Drift, name: str = "drift") -> None:
    """Hold a function to a drift's conditions on a grid of ratios and advantages.

    Raises:
        ValueError: it is negative, not 0 at r = 1, or has a slope there; the message names ratio and advantage.
    """
    ratios = torch.cat((torch.logspace(-2, 2, 81, base=4.0), torch.tensor([1.0]))).double()
    advs = torch.tensor([-5.0, -2.0, -1.0, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 2.0, 5.0]).double()
    r, a = (grid.flatten() for grid in torch.meshgrid(ratios, advs, indexing="ij"))
    value = drift(r, r.log(), a)
    if value.shape != r.shape:
        raise ValueError(f"{name}: gives shape {tuple(value.shape)} for ratios of shape {tuple(r.shape)}")

    def refuse(bad: Tensor, what: str, at: Tensor, of: Tensor, number: Tensor) -> None:
        if bool(bad.any()):
            i = int(bad.nonzero()[0])
            place = f"ratio {float(at[i]):.4g}, advantage {float(of[i]):.4g}"
            raise ValueError(f"{name}: {what}, at {place} it gives {float(number[i]):.4g}")

    refuse(~(value >= -1e-9), "must be at least 0", r, a, value)
    one = torch.ones_like(advs)
    at_one = drift(one, torch.zeros_like(one), advs)
    refuse(~(at_one.abs() <= 1e-9), "must be 0 where the policies agree", one, advs, at_one)
    for step in (1e-6, -1e-6):  # a slope on either side: a kink has one that autograd may not see
        near_one = one + step
        slope = drift(near_one, near_one.log(), advs) / abs(step)
        refuse(~(slope.abs() <= 1e-2), "must have no slope where the policies agree", near_one, advs, slope)


def standardised(adv: Tensor, mask: Tensor | None = None) -> Tensor:
    """`(A - mean) / (std + 1e-8)` over all true positions (population std), 0 where all are equal and off the mask."""
    mask = torch.ones_like(adv, dtype=torch.bool) if mask is None else mask.bool()
    kept = torch.where(mask, adv.double(), 0.0)
    largest = kept.abs().amax()
    spread = torch.where(mask, kept, -torch.inf).amax() - torch.where(mask, kept, torch.inf).amin()
    scaled = torch.where(mask, (kept - masked_mean(kept, mask)) / (masked_var(kept, mask).sqrt() + 1e-8), 0.0)
    return torch.where(spread > EQUAL * largest, scaled, 0.0).to(adv.dtype)


def mirror_terms(
    logp: Tensor, old: Tensor, adv: Tensor, mask: Tensor, drift: Drift
) -> tuple[Tensor, dict[str, Tensor]]:
    """`-(r A - D(r, A))` at every decision, `"B T"`, 0 outside the mask, and statistics.

    Args:
        logp, old: log-probs of the same actions under the trained and the earlier policy.
        adv: standardised advantages, no gradient.
    """
    difference, usable = log_ratio(logp, old, mask, LIMIT)
    ratio, signal = difference.exp(), torch.where(usable, adv.detach(), 0.0)
    pull = drift(ratio, difference, signal)
    value, gap = ratio.detach(), difference.detach()
    falling = usable & (signal < 0)
    stats = {
        "ratio/mean": value,
        "drift/mean": torch.where(usable, pull.detach(), 0.0),
        "drift/log_ratio_negative": (gap.abs() * falling).sum() / falling.sum().clamp(min=1),
        "kl/behaviour": kl_estimate(torch.zeros_like(gap), gap, "k3"),
    }
    return torch.where(usable, pull - ratio * signal, 0.0), stats | dropped(mask, usable)


@component("objective", "drift")
@dataclass
class DriftSurrogate:
    """Ratio times advantage less a drift: PPO with the clip replaced (mirror learning, arXiv 2210.05639).

    `kind` is `discovered: {alpha: 2, beta: 0.6}`, `learnt: {params: FILE}` (or `shipped`, found here by evolution on
    cart_pole), `ppo_clip: {eps: 0.2}`, `kl: {beta: 1}`, `none`, or a function of your own, `file.py:name`, of (ratio,
    log_ratio, advantage), whose conditions are checked. `standardise` scales the advantages of each minibatch; leave
    it off where `whiten` did it for the whole rollout.
    """

    kind: str | dict[str, Any] = "discovered"
    standardise: bool = False
    denominator: Literal["behaviour_logprobs", "old_logprobs"] = "behaviour_logprobs"

    def __post_init__(self) -> None:
        self.drift = make_drift(self.kind)
        # as a bound function has them, for listings
        self.func = type(self).__call__
        self.keywords = {"kind": self.kind, "standardise": self.standardise, "denominator": self.denominator}
        self.needs = ("mask", "advantages", self.denominator)
        self.splits = not self.standardise

    def __call__(self, out: PolicyOut, mb: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Ratio times advantage less a drift: PPO with the clip replaced."""
        adv = standardised(mb["advantages"], mb["mask"]) if self.standardise else mb["advantages"]
        return mirror_terms(out.logprobs, mb[self.denominator], adv, mb["mask"], self.drift)
