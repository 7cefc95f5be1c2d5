"""What `gainstage check-env` has to say of an environment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Complaint:
    """One thing that is wrong (`error`), or worth knowing.

    Attributes:
        about: what it concerns: `observation`, `reward`, `seed`, `end`, `info`, ...
        text: what was seen, where first, and what to do.
        times: how often it was seen.
    """

    error: bool
    about: str
    text: str
    times: int = 1


@dataclass
class Findings:
    """Complaints, each kind once, and what was looked at."""

    complaints: list[Complaint] = field(default_factory=list)
    steps: int = 0
    lengths: list[int] = field(default_factory=list)
    seconds: float = 0.0
    _kinds: dict[str, Complaint] = field(default_factory=dict)

    def add(self, about: str, kind: str, text: str, *, error: bool = True) -> None:
        """Complain; of one kind only the first text is kept, and counted."""
        if kind in self._kinds:
            self._kinds[kind].times += 1
            return
        self._kinds[kind] = Complaint(error, about, text)
        self.complaints.append(self._kinds[kind])

    @property
    def errors(self) -> int:
        return sum(complaint.error for complaint in self.complaints)
