"""From a recipe to its components, checked against one another before anything runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gainstage import registry
from gainstage.recipe import LISTS, Entry, Recipe, split_entry
from gainstage.registry import RecipeError
from gainstage.reward.compose.combine import Part as RewardPart
from gainstage.reward.compose.combine import combine
from gainstage.tasks.resolve import resolve

GIVEN = ("group", "sample", "episode", "version", "stop", "truncated")
"""Columns that every row has."""


@dataclass
class Part:
    """One entry of a stage: its name, the component that does the work, and what the loop has to know of it."""

    stage: str
    name: str
    component: str
    it: Any
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.stage}.{self.name}"

    def has(self, hook: str) -> bool:
        return hasattr(self.it, hook)

    def declares(self, what: str) -> tuple[str, ...]:
        value = getattr(self.it, what, ())
        return (value,) if isinstance(value, str) else tuple(value)


@dataclass
class Chain:
    """The components of one phase, in order."""

    recipe: Recipe
    task: Part
    select: list[Part]
    rollout: list[Part]
    reward: list[Part]
    store: Part
    credit: list[Part]
    update: list[Part]

    def __iter__(self) -> Iterator[Part]:
        yield from (*self.select, *self.rollout, *self.reward, self.store, *self.credit, *self.update)

    @property
    def trained(self) -> list[str]:
        return list(dict.fromkeys(role for part in self.update for role in getattr(part.it, "train", ())))

    @property
    def used(self) -> list[str]:
        roles = [role for part in self for role in part.declares("uses")]
        if self.rollout and not any(part.declares("uses") for part in self.rollout):
            roles.append("policy")
        return list(dict.fromkeys([*roles, *self.trained]))

    @property
    def answer_limit(self) -> int | None:
        """Most tokens that the policy writes in one context; None where nothing is sampled."""
        if not self.rollout or self.simulates:
            return None
        own = [part.it.limit(self.task.it) for part in self.rollout if part.has("limit")]
        return own[0] if own else self.task.it.max_new

    @property
    def simulates(self) -> bool:
        """Whether experience comes as columns from a simulator rather than as answers to picked problems."""
        return bool(self.rollout) and bool(getattr(self.rollout[-1].it, "simulates", False))

    @property
    def samples(self) -> int | None:
        return next((part.it.samples for part in self.select if hasattr(part.it, "samples")), None)


def build_chain(recipe: Recipe) -> Chain:
    """Make every component of a recipe and check that they fit.

    Raises:
        RecipeError: a name, a setting or a combination that the user can mend.
    """
    stages = {stage: [_part(stage, entry) for entry in getattr(recipe, stage)] for stage in LISTS}
    chain = Chain(recipe=recipe, task=build_task(recipe.task), store=_part("store", recipe.store), **stages)
    _check_shape(chain)
    _check_capabilities(chain)
    _check_columns(chain)
    for part in chain.update:
        if part.has("allow"):
            try:
                part.it.allow(chain.answer_limit)
            except ValueError as error:
                raise RecipeError(f"{part.key}: {error}") from None
    return chain


def build_task(spec: Entry) -> Part:
    """The task of a recipe or of the command line: a name, `kind:place`, or a name with settings."""
    try:
        name, settings = resolve(spec)
        return Part("task", name, name, registry.build("task", name, settings, f"task.{name}"))
    except RecipeError:
        raise
    except ValueError as error:
        raise RecipeError(f"task: {error}") from None


def _part(stage: str, entry: Entry) -> Part:
    name, component, settings, options = split_entry(stage, entry)
    if stage == "reward" and ".py:" in component:
        name = name.rsplit(":", 1)[-1] if name == component else name
        settings, component = {"path": component, **settings}, "function"
    made = registry.build(stage, component, settings, f"{stage}.{name}")
    if isinstance(made, functools.partial):
        made = _HOOKS[stage](made)
    if stage == "reward":
        _check_options(name, options)
        options["then"] = [_then(item, name) for item in options.get("then", [])]
        if hasattr(made, "shape") and not hasattr(made, "judge") and options.get("combine") == "gate":
            raise RecipeError(f"reward.{name}: a reward that is shaped at every read cannot gate; use sum or replace")
    if "fit_at" in options:
        made.fit_at = options["fit_at"]
    return Part(stage, name, component, made, options)


def _check_options(name: str, options: dict[str, Any]) -> None:
    try:
        RewardPart(name, [], float(options.get("weight", 1.0)), options.get("combine", "sum"))
    except (TypeError, ValueError) as error:
        said = str(error) if str(error).startswith("reward ") else f"weight must be a number: {error}"
        raise RecipeError(f"reward.{name}: {said}") from None
    if options.get("fit_at", "after_update") not in ("before_update", "after_update"):
        raise RecipeError(f"reward.{name}: fit_at is before_update or after_update, got {options['fit_at']!r}")


def _then(item: Entry, reward: str) -> Any:
    name, component, settings, _ = split_entry("then", item)
    return registry.build("then", component, settings, f"reward.{reward}.then.{name}")


class _Plain:
    """A function as a component: its declarations, and the one hook it implements."""

    def __init__(self, function: functools.partial[Any]) -> None:
        self.function = function
        for key in registry.DECLARATIONS:
            if hasattr(function, key):
                setattr(self, key, getattr(function, key))


class _PlainCredit(_Plain):
    def assign(self, batch: Any) -> Any:
        return self.function(batch)


class _PlainReward(_Plain):
    verifies = True

    def judge(self, trajs: Sequence[Any], ctx: Any) -> list[float | None]:
        return [self.function(t.problem, t.info.get("completion", "")) for t in trajs]


_HOOKS: dict[str, type[_Plain]] = {"credit": _PlainCredit, "reward": _PlainReward}


# -- checks -----------------------------------------------------------------------------------------------------------


def _check_shape(chain: Chain) -> None:
    if chain.rollout and getattr(chain.store.it, "fixed", False):
        raise RecipeError(
            f"{chain.store.key} is a fixed set and takes no experience: leave the rollout out, or the store"
        )
    paid = any({"turn_rewards", "rewards"} & set(part.declares("writes")) for part in chain.rollout)
    if chain.rollout and not chain.reward and chain.update and not paid:
        raise RecipeError("the recipe rolls out but has no reward; add one, for instance reward: [task_verdict]")
    if chain.rollout and chain.update and not chain.simulates and not any(part.has("next") for part in chain.select):
        raise RecipeError("select: no entry picks problems; add for instance `shuffle: {samples: 8}`")
    if chain.simulates and (idle := [part.key for part in chain.reward if not part.has("shape")]):
        raise RecipeError(
            f"{idle[0]} would never be asked: where environments are stepped a reward is a class with a method "
            "shape(self, batch, ctx) that returns Float[B, T]"
        )
    if not (chain.rollout or chain.credit or chain.update):
        raise RecipeError("the recipe neither samples nor trains: give it rollout and update, or phases that have them")
    for part in chain.credit:
        if part.has("check_plan") and chain.samples is not None:
            try:
                part.it.check_plan(chain.samples)
            except ValueError as error:
                raise RecipeError(f"{part.key}: {error}") from None
    in_reward = [p.key for p in chain.reward if p.component in ("token_kl", "policy_terms.token_kl")]
    in_loss = [
        f"{p.key}.objectives.{name}" for p in chain.update for name, term in getattr(p.it, "terms", [])
        if name in ("reference_kl", "regularizers.reference_kl") and term.keywords.get("weight", 1)
    ]  # fmt: skip
    if in_reward and in_loss:
        raise RecipeError(
            f"the KL to the reference is paid twice, by {in_reward[0]} and {in_loss[0]}; remove one of them"
        )

    along = [p.key for p in chain.reward if p.component.endswith("entropy_reward") and p.it.beta]
    bonus = [
        f"{p.key}.objectives.{name}" for p in chain.update for name, term in getattr(p.it, "terms", [])
        if name.endswith("entropy_bonus") and term.keywords.get("weight", 1)
    ]  # fmt: skip
    bonus += [f"{p.key}.entropy" for p in chain.update if getattr(p.it, "entropy", 0)]
    if along and bonus:
        raise RecipeError(f"entropy is paid twice, by {along[0]} and {bonus[0]}; remove one of them")


def _check_capabilities(chain: Chain) -> None:
    offered = set(chain.task.it.capabilities)
    for part in chain:
        for wanted in part.declares("requires"):
            if wanted not in offered:
                raise RecipeError(
                    f"{part.key} needs a task that offers {wanted!r}; "
                    f"{chain.task.name} offers {', '.join(sorted(offered))}"
                )


def _check_columns(chain: Chain) -> None:
    there = {*GIVEN, "reward"}
    for part in (*chain.rollout, chain.store):
        there |= set(part.declares("writes"))
    if any(part.declares("level")[:1] == ("step",) for part in chain.reward):
        there.add("rewards")
    if any("turn" in part.declares("level") for part in chain.reward):
        there |= {"turn_rewards", "turn_mask"}
    for part in (*chain.reward, *chain.credit, *chain.update):
        wanted = part.declares("needs")
        missing = [
            c
            for c in wanted
            if c not in there
            and c not in part.declares("writes")
            and not c.endswith("?")
            and not c.startswith("parts/")
        ]
        if missing and (there & {"tokens", "obs"} or not (chain.rollout or chain.store.declares("writes"))):
            makers = [name for name in registry.names("credit") if missing[0] in _writes("credit", name)]
            hint = (
                f"put one of these before it: {', '.join(makers)}" if makers else "nothing that is registered writes it"
            )
            raise RecipeError(f"{part.key} reads the column {missing[0]!r}, which nothing before it writes; {hint}")
        there |= set(part.declares("writes"))


def _writes(kind: str, name: str) -> tuple[str, ...]:
    """What a component writes with its default settings; nothing where it has no defaults."""
    try:
        return tuple(getattr(registry.build(kind, name), "writes", ()))
    except RecipeError:
        return ()


# -- rewards ----------------------------------------------------------------------------------------------------------


def total_reward(parts: Sequence[Part], values: Sequence[Sequence[float | None]]) -> Any:
    """Weighted total of what the row-level entries of a reward list said of each trajectory."""
    return combine([
        RewardPart(part.name, value, float(part.options.get("weight", 1.0)), part.options.get("combine", "sum"))
        for part, value in zip(parts, values, strict=True)
    ])  # fmt: skip
