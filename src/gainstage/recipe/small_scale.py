"""What a recipe says about its own proof: the small-scale check of its claim, and how it may be tuned."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Expectation = Literal["higher", "lower", "not lower", "not higher", "equal", "open"]
"""What the claim says of a metric, against the baseline; `open`: it says nothing about it."""


class SmallScaleCheck(BaseModel):
    """The claim of a method as an experiment of minutes: against what, on which tasks, at which budget, and what the
    claim predicts there. Without a word from the recipe: no worse than GRPO on two tasks at equal generated tokens.
    """

    model_config = ConfigDict(extra="forbid", validate_default=True)

    against: str = Field("grpo", description="baseline, as `compare` takes an arm: `recipe` or `recipe,key=value,...`")
    own: list[str] = Field([], description="changes of the method's own arm")
    common: list[str] = Field([], description="changes of every arm")
    arms: dict[str, dict[str, Expectation]] = Field(
        {}, description="further arms, as `compare` takes them, each with its own expectations"
    )
    expect: dict[str, Expectation] = Field(
        {"pass@1": "not lower"}, min_length=1, description="metric -> what the claim says; the first is the main one"
    )
    margin: float = Field(
        0.05, ge=0, description="what counts as equal: absolute for shares, relative to the baseline for the rest"
    )
    tasks: list[str | dict[str, Any]] = Field(["arithmetic", "modular_chain"], min_length=1)
    budget: dict[str, float] = Field({"generated_tokens": 60_000}, min_length=1, description="of each run")
    seeds: int = Field(5, ge=1)
    note: str = Field("", description="what a reader must know to read the result right")

    @field_validator("tasks")
    @classmethod
    def _one_each(cls, tasks: list[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
        if any(isinstance(task, dict) and len(task) != 1 for task in tasks):
            raise ValueError("a task is a name or one `name: settings` pair")
        return tasks


class SearchSpace(BaseModel):
    """Values that a setting may take in a search: `choices`, `low` to `high`, or `around`: x / around to x * around."""

    model_config = ConfigDict(extra="forbid")

    low: float | None = None
    high: float | None = None
    log: bool = False
    around: float | None = Field(None, gt=1)
    choices: list[Any] | None = Field(None, min_length=1)

    @field_validator("choices")
    @classmethod
    def _plain(cls, values: list[Any] | None) -> list[Any] | None:
        if values and not all(value is None or isinstance(value, bool | int | float | str) for value in values):
            raise ValueError("choices are numbers, words, true, false or null")
        return values

    @model_validator(mode="after")
    def _one_way(self) -> SearchSpace:
        ways = [self.choices is not None, self.around is not None, self.low is not None or self.high is not None]
        if sum(ways) != 1:
            raise ValueError("a search space has either choices, or around, or low and high")
        if ways[2] and (self.low is None or self.high is None or not self.low < self.high):
            raise ValueError("low and high must both be given, low below high")
        if self.log and (self.low is None or self.low <= 0):
            raise ValueError("log needs a low above 0")
        return self
