"""Running statistics that move with experience: the only way in which a net's buffers change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from gainstage.registry import RecipeError, component
from gainstage.types import Batch, Ctx


@component("update")
@dataclass
class ObservationStatistics:
    """Lets the running mean and variance of observations follow what was seen, once an iteration, after learning.

    So an iteration acts and learns with the same statistics, and the first ratio of every batch is 1. Evaluation never
    moves them.

    Args:
        roles: nets made with `normalise: true`.
        of: what moves them: `fresh` experience, or `draws`: each iteration's first draw of a replay, with what select
            has changed in it (goals in hindsight).
        fit_at: `after_update`, or `before_update` for methods without ratios, which then learn with the newest.
    """

    roles: list[str] = field(default_factory=lambda: ["policy"])
    of: Literal["fresh", "draws"] = "fresh"
    fit_at: Literal["after_update", "before_update"] = "after_update"

    needs = ("obs",)

    def __post_init__(self) -> None:
        if self.of == "draws" and self.fit_at == "before_update":
            raise ValueError("of: draws are seen while learning; set fit_at to after_update")
        self.uses = tuple(self.roles)
        self.seen: Batch | None = None

    def start(self, ctx: Ctx) -> None:
        """Raises RecipeError: a role keeps no statistics."""
        for role in self.roles:
            if not normalizers(ctx, [role]):
                raise RecipeError(
                    f"update.observation_statistics: role {role!r} keeps no statistics; "
                    f"set models.{role}.normalise=true, or remove the entry"
                )

    def see(self, minibatch: Batch, ctx: Ctx) -> None:
        """Keep the iteration's first minibatch."""
        if self.of == "draws" and self.seen is None:
            self.seen = minibatch

    def fit(self, ctx: Ctx) -> None:
        source: Any = self.seen if self.of == "draws" else ctx.fresh
        self.seen = None
        if not isinstance(source, Batch):
            return
        seen = source["obs"][:, :-1].flatten(0, 1)
        for statistics in normalizers(ctx, self.roles):
            statistics.update(seen)


def normalizers(ctx: Ctx, roles: Iterable[str]) -> list[Any]:
    """The statistics of observations that nets keep; each set once, also where nets share it."""
    found = (module for role in roles for module in ctx.models[role].module.modules())
    kept = {id(m): m for m in found if any(kind.__name__ == "ObservationNormalizer" for kind in type(m).__mro__)}
    return list(kept.values())
