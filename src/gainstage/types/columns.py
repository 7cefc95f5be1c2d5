"""Batch: named columns of declared kind, batch first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gainstage.types.levels import place_on_last, place_on_turns, settle_on_decisions
from gainstage.types.records import Problem, Trajectory

KINDS = {"row": "B *", "turn": "B U *", "step": "B T *", "edge": "B T+1 *"}


@dataclass(frozen=True)
class Column:
    """What a column is: its kind (never guessed from a shape), its trailing axes, the filler of padding."""

    name: str
    kind: str
    dims: str = ""
    fill: float = 0


_COLUMNS: dict[str, Column] = {}


def column(name: str, kind: str, dims: str = "", fill: float = 0) -> Column:
    """Declare a column. Declaring it again with other properties is an error.

    Args:
        name: column name; `parts/x` style prefixes are declared with a trailing `/`.
        kind: `row`, `turn`, `step` or `edge`.
        dims: names of trailing axes, e.g. "D".
        fill: value of padded positions.
    """
    if kind not in KINDS:
        raise ValueError(f"column {name!r}: kind must be one of {sorted(KINDS)}, got {kind!r}")
    new = Column(name, kind, dims, fill)
    old = _COLUMNS.setdefault(name, new)
    if old != new:
        raise ValueError(f"column {name!r} is declared already as {old}")
    return old


def declared(name: str) -> Column:
    """The declaration of a column; prefixes such as `parts/` cover their members.

    Raises:
        KeyError: no component declared it.
    """
    if name in _COLUMNS:
        return _COLUMNS[name]
    prefix = name.split("/")[0] + "/"
    if "/" in name and prefix in _COLUMNS:
        return _COLUMNS[prefix]
    raise KeyError(f"column {name!r} is not declared: call column({name!r}, kind) first")


for _name in (  # noqa: SIM905
    "reward group sample episode actor version stop truncated parts/ length temperature greedy advantage "
    "success problem weight_row"
).split():
    column(_name, "row")
column("turn_rewards", "turn")
column("turn_mask", "turn")
for _name in (  # noqa: SIM905
    "mask tokens behaviour_logprobs old_logprobs ref_logprobs rewards terminated values next_values returns "
    "advantages weight entropy"
).split():
    column(_name, "step")
column("author", "step", fill=-1)
column("turn", "step", fill=-2)
column("actions", "step", dims="*")
for _name in ("obs", "state", "avail", "x"):
    column(_name, "edge", dims="*")


def declared_kind(name: str) -> str | None:
    """The kind of a column, None where nobody declared it."""
    return _COLUMNS[name].kind if name in _COLUMNS else None


@dataclass
class Batch:
    """Columns with one leading axis `B`, and what belongs to each row.

    `mask` (`Bool "B T"`) marks trained decisions; real positions are those with `author >= 0`
    where there is an author column. `origin` says where a drawn row came from: `(episode, t)`.
    """

    columns: dict[str, Tensor]
    problems: list[Problem | None] = field(default_factory=list)
    info: list[dict[str, Any]] = field(default_factory=list)
    origin: tuple[Tensor, Tensor | None] | None = None

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self.columns[name]
        except KeyError:
            raise KeyError(f"the batch has no column {name!r}; it has {sorted(self.columns)}") from None

    def __setitem__(self, name: str, value: Tensor) -> None:
        kind = declared(name).kind
        if value.shape[0] != self.rows:
            raise ValueError(f"column {name!r}: first axis is {value.shape[0]}, the batch has {self.rows} rows")
        if kind == "step" and "mask" in self.columns and value.shape[1] != self.steps:
            raise ValueError(f"column {name!r} (step): second axis is {value.shape[1]}, the batch has {self.steps}")
        self.columns[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __len__(self) -> int:
        return self.rows

    @property
    def rows(self) -> int:
        return next(iter(self.columns.values())).shape[0]

    @property
    def steps(self) -> int:
        return self.columns["mask"].shape[1]

    @property
    def device(self) -> torch.device:
        return next(iter(self.columns.values())).device

    def real(self) -> Tensor:
        """Positions that are not padding, `Bool "B T"`."""
        return self.columns["author"] >= 0 if "author" in self.columns else torch.ones_like(self["mask"])

    def take(self, rows: Tensor | Sequence[int]) -> Batch:
        """The given rows, step axes trimmed to the longest of them."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.device)
        picked = {name: value[index] for name, value in self.columns.items()}
        if "author" in picked and len(index):
            longest = max(int((picked["author"] >= 0).sum(1).max()), 1)
            for name, value in picked.items():
                kind = declared(name).kind
                if kind == "step":
                    picked[name] = value[:, :longest]
                elif kind == "edge":
                    picked[name] = value[:, : longest + 1]
        order = index.tolist()
        origin = None
        if self.origin is not None:
            episode, t = self.origin
            origin = (episode[index], None if t is None else t[index])
        return Batch(
            picked,
            [self.problems[i] for i in order] if self.problems else [],
            [self.info[i] for i in order] if self.info else [],
            origin,
        )

    def chunks(self, tokens: int | None) -> Iterator[Batch]:
        """Micro-batches of at most `tokens` real positions (never less than one row), in order of length.

        Splitting changes no number: whatever depends on the whole minibatch is a column already.
        """
        if tokens is None or self.rows <= 1:
            yield self
            return
        lengths = self.real().sum(1)
        if int(lengths.sum()) <= tokens:
            yield self
            return
        order = torch.argsort(lengths, stable=True).tolist()
        start, spent = 0, 0
        for position, row in enumerate(order):
            size = int(lengths[row])
            if spent and spent + size > tokens:
                yield self.take(order[start:position])
                start, spent = position, 0
            spent += size
        yield self.take(order[start:])

    def lift(self, name: str, level: str = "step") -> Tensor:
        """A row column as `[B, 1]`, ready for `[B, T]` arithmetic; a turn column spread over its turn's decisions."""
        kind = declared(name).kind
        if level != "step":
            raise ValueError(f"lift: only level 'step' is supported, got {level!r}")
        if kind == "row":
            return self[name].unsqueeze(1)
        if kind == "turn":
            turn = self["turn"].clamp(min=0)
            spread = self[name].gather(1, turn.clamp(max=self[name].shape[1] - 1))
            return torch.where(self["turn"] >= 0, spread, torch.zeros_like(spread))
        return self[name]

    def fold(self, axis: int = 2) -> Batch:
        """Move a trailing axis (agents) of every step column that has it into the rows: `[B, T, N] -> [B N, T]`."""
        size = self["mask"].shape[axis] if self["mask"].dim() > axis else 0
        if not size:
            raise ValueError("fold: the mask has no trailing axis to fold")
        folded = {}
        for name, value in self.columns.items():
            kind = declared(name).kind
            if kind in ("step", "edge") and value.dim() > axis and value.shape[axis] == size:
                folded[name] = value.movedim(axis, 1).reshape(
                    -1, *[s for i, s in enumerate(value.shape) if i not in (0, axis)]
                )
            else:
                folded[name] = value.repeat_interleave(size, 0)
        problems = [p for p in self.problems for _ in range(size)]
        return Batch(folded, problems, [i for i in self.info for _ in range(size)])

    def flatten(self) -> Batch:
        """`[B, T] -> [N, 1]`, one row a decision; edge columns become `[N, 2, *]`. Only for Markov policies.

        An edge column `x` whose row runs through the end of an episode has a step column `next_x` with what each
        decision really led to; the second entry is taken from there.
        """
        rows, steps = torch.nonzero(self["mask"], as_tuple=True)
        flat: dict[str, Tensor] = {}
        for name, value in self.columns.items():
            kind = declared(name).kind
            if name.startswith("next_") and declared_kind(name.removeprefix("next_")) == "edge":
                continue
            if kind == "step":
                flat[name] = value[rows, steps].unsqueeze(1)
            elif kind == "edge":
                after = self.columns[f"next_{name}"] if f"next_{name}" in self.columns else value[:, 1:]
                flat[name] = torch.stack((value[rows, steps], after[rows, steps]), 1)
            else:
                flat[name] = value[rows]
        order = rows.tolist()
        problems = [self.problems[i] for i in order] if self.problems else []
        return Batch(flat, problems, [], origin=(rows, steps))

    def rewards_at(self, level: str) -> Tensor:
        """All rewards at one level: a row's reward stands on its last turn and decision; upwards they are summed."""
        row = self.columns.get("reward")
        turn = self.columns.get("turn_rewards")
        step = self.columns.get("rewards")
        step = settle_on_decisions(step, self["mask"]) if step is not None else None
        if level == "row":
            total = torch.zeros(self.rows, device=self.device)
            total = total + row if row is not None else total
            total = total + (turn * self["turn_mask"]).sum(1) if turn is not None else total
            return total + step.sum(1) if step is not None else total
        if level == "step":
            total = step if step is not None else torch.zeros(self["mask"].shape, device=self.device)
            if turn is not None:
                total = total + place_on_turns(turn * self["turn_mask"], self["turn"], self["mask"])
            return total + place_on_last(row, self["mask"]) if row is not None else total
        if level == "turn":
            total = (
                turn * self["turn_mask"]
                if turn is not None
                else torch.zeros(self["turn_mask"].shape, device=self.device)
            )
            if row is not None:
                total = total + place_on_last(row, self["turn_mask"].bool())
            if step is not None:
                spread = torch.zeros_like(total)
                index = self["turn"].clamp(0, total.shape[1] - 1)
                total = total + spread.scatter_add(1, index, step)
            return total
        raise ValueError(f"rewards_at: level must be row, turn or step, got {level!r}")


def collate(trajectories: Sequence[Trajectory], device: torch.device | str = "cpu") -> Batch:
    """Trajectories to columns, padded on the right with each column's filler.

    Raises:
        ValueError: no trajectory, or two trajectories with different columns.
    """
    if not trajectories:
        raise ValueError("collate: no trajectories")
    names = set(trajectories[0].columns)
    for trajectory in trajectories:
        if set(trajectory.columns) != names:
            raise ValueError(f"trajectories differ in columns: {sorted(names ^ set(trajectory.columns))}")
    columns: dict[str, Tensor] = {}
    for name in sorted(names):
        spec = declared(name)
        values = [trajectory.columns[name] for trajectory in trajectories]
        if spec.kind == "row":
            columns[name] = torch.stack([value.reshape(()) for value in values])
        else:
            columns[name] = torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=spec.fill)
    for name, get in _ROW_FIELDS.items():
        columns[name] = torch.tensor([get(trajectory) for trajectory in trajectories])
    for name in trajectories[0].parts:
        parts = [trajectory.parts.get(name) for trajectory in trajectories]
        columns[f"parts/{name}"] = torch.tensor([float("nan") if v is None else float(v) for v in parts])
    columns = {name: value.to(device) for name, value in columns.items()}
    return Batch(columns, [t.problem for t in trajectories], [t.info for t in trajectories])


_ROW_FIELDS = {
    "group": lambda t: t.group,
    "sample": lambda t: t.sample,
    "episode": lambda t: t.episode,
    "version": lambda t: t.version,
    "stop": lambda t: t.stop.code,
    "truncated": lambda t: t.stop in ("length", "context", "turns", "time_limit"),
}
