"""What a run leaves behind: its folder, its metrics, its samples, its model card; and what it shows meanwhile."""

from gainstage.tracking.card import Figure, write_card
from gainstage.tracking.folder import RunExists, RunFolder, read_metrics, read_status
from gainstage.tracking.names import ALIASES, NAMES, describe, spelling
from gainstage.tracking.plan import arithmetic
from gainstage.tracking.progress import Progress, count, duration
from gainstage.tracking.rollouts import read_rollouts, write_rollouts
from gainstage.tracking.secrets import redact
from gainstage.tracking.sinks import SINKS, Sinks

__all__ = [
    "ALIASES", "NAMES", "SINKS", "Figure", "Progress", "RunExists", "RunFolder", "Sinks", "arithmetic", "count",
    "describe", "duration", "read_metrics", "read_rollouts", "read_status", "redact", "spelling", "write_card",
    "write_rollouts",
]  # fmt: skip
