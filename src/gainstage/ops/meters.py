"""The meter of those whom nobody counts."""

from __future__ import annotations


class NoMeter:
    """Takes every charge and books nothing; stands in where a handle is used outside a run."""

    def charge(self, kind: str, amount: float, by: str = "") -> None:
        return None
