"""Types that every room shares. Importing this package imports torch and nothing heavier."""

from gainstage.types.columns import KINDS, Batch, collate, column, declared
from gainstage.types.context import Act, Ctx, Index, Models, Policy, PolicyOut, StoreView
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
from gainstage.types.simulation import BatchedEnv, ControlTask, Stepped
from gainstage.types.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

__all__ = [
    "KINDS",
    "Act",
    "Author",
    "Batch",
    "BatchedEnv",
    "Box",
    "Completion",
    "ControlTask",
    "Ctx",
    "Discrete",
    "EnvStep",
    "Ids",
    "Index",
    "Message",
    "Models",
    "MultiBinary",
    "MultiDiscrete",
    "Policy",
    "PolicyOut",
    "Problem",
    "Prompt",
    "Request",
    "Sampling",
    "Space",
    "Stepped",
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
