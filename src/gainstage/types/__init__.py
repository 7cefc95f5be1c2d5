"""Types that every room shares. Importing this package imports torch and nothing heavier."""

from gainstage.types.columns import KINDS, Batch, collate, column, declared
from gainstage.types.context import Act, Ctx, Models, Policy, PolicyOut, StoreView
from gainstage.types.records import (
    Author,
    Completion,
    EnvStep,
    Ids,
    Message,
    Problem,
    Prompt,
    Request,
    Sampling,
    Stop,
    Task,
    TextEnv,
    Trajectory,
    Verdict,
)

__all__ = [
    "KINDS",
    "Act",
    "Author",
    "Batch",
    "Completion",
    "Ctx",
    "EnvStep",
    "Ids",
    "Message",
    "Models",
    "Policy",
    "PolicyOut",
    "Problem",
    "Prompt",
    "Request",
    "Sampling",
    "Stop",
    "StoreView",
    "Task",
    "TextEnv",
    "Trajectory",
    "Verdict",
    "collate",
    "column",
    "declared",
]
